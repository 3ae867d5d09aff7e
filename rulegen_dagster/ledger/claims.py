"""Claims: the right to complete an item, as a fresh token with a lease on the ledger's clock.

An item can be claimed when it is pending, when its retry is due, or when the lease of its last claim has passed. The
last case is how a crash is found: the lost attempt is booked as crashed, and counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rulegen_dagster.domain.deadline import DeadlinePolicy, remaining_ms
from rulegen_dagster.domain.refusal import refusals_from_json
from rulegen_dagster.domain.states import (
    TERMINAL_JOB_STATES,
    AttemptOutcome,
    Stage,
    WorkState,
)
from rulegen_dagster.domain.work import AttemptKind, Claim, WorkKey
from rulegen_dagster.ledger.batch import batch, rows_of
from rulegen_dagster.ledger.database import Database
from rulegen_dagster.ledger.guarded import Addition, Columns, GuardedWrites
from rulegen_dagster.ledger.limits import ClaimLimits
from rulegen_dagster.ledger.picks import Found, Picks
from rulegen_dagster.ledger.reservations import QuotaTurn
from rulegen_dagster.ledger.schema import OPEN_WORK_STATES, attempt, job, transition, work_item

PROVIDER_STAGES = frozenset({Stage.GENERATE_RULES, Stage.GENERATE_TESTS})
"""Stages whose attempts call a provider; a lost attempt of theirs counts as a call."""


_FIRST, _RETRY, _REPAIR = (kind.value for kind in (AttemptKind.FIRST, AttemptKind.RETRY, AttemptKind.REPAIR))


@dataclass(frozen=True, kw_only=True)
class Scope:
    """Which items a worker may claim: its stages in order, and optionally only some jobs or some items."""

    stages: tuple[Stage, ...]
    job_ids: tuple[int, ...] | None = None
    items: tuple[WorkKey, ...] | None = None

    @property
    def jobs(self) -> frozenset[int] | None:
        """The jobs whose items may be claimed; None where it may be any."""
        if self.items is not None:
            return frozenset(key.job_id for key in self.items)
        return None if self.job_ids is None else frozenset(self.job_ids)


@dataclass(frozen=True, kw_only=True)
class Claimant:
    """Who claims, and for how long (ms); `run_id` is the Dagster run, if there is one.

    `monotonic_s` is the worker's own monotonic clock before the turn; it goes into the claims, which measure by it.
    """

    worker: str
    lease_ms: int
    run_id: str | None = None
    monotonic_s: float = 0.0


class Claims:
    """The statements that hand out, renew and take over claims; built once for a database."""

    def __init__(self, database: Database, deadlines: DeadlinePolicy, limits: ClaimLimits) -> None:
        """Build the statements for the database's dialect.

        Nothing is claimed where `deadlines` leaves too little, nor beyond `limits`.
        """
        dialect, now = database.dialect, database.now
        self._margin_ms = deadlines.margin_ms
        self._picks = Picks(database, sa.and_(can_be_claimed(now), is_in_time(now, deadlines)), limits)
        self._take = GuardedWrites(
            database,
            _Taken,
            lambda row: _take(now, row),
            Addition(table=attempt, values=lambda row: _open_attempt(now, row)),
            Addition(table=transition, values=lambda row: _log_claim(now, row)),
        )
        lost = batch(dialect, "lost", token=sa.Text).alias("lost_claims")
        self._book_crashes = (
            sa.update(attempt)
            .where(attempt.c.token == lost.c.token, attempt.c.outcome.is_(None))
            .values(outcome=AttemptOutcome.CRASHED, ended_at=now, error_code="lease_expired")
        )
        spent = batch(
            dialect, "spent", job_id=sa.BigInteger, stage=sa.Text, item_key=sa.Text, stage_version=sa.Integer
        ).alias("spent_items")
        self._exhaust = (
            sa.update(work_item)
            .where(_same_item(work_item, spent), work_item.c.state == WorkState.RUNNING)
            .values(
                state=WorkState.FAILED,
                token=None,
                lease_until=None,
                worker=None,
                error_code="attempts_exhausted",
                error_message="the last attempt's worker was lost, and no attempt is left",
                updated_at=now,
            )
        )
        self._log_exhausted = sa.insert(transition).from_select(
            ["job_id", "subject", "stage", "subject_key", "from_state", "to_state", "cause", "actor", "at"],
            sa.select(
                spent.c.job_id,
                sa.literal("work_item"),
                spent.c.stage,
                spent.c.item_key,
                sa.literal(WorkState.RUNNING.value),
                sa.literal(WorkState.FAILED.value),
                sa.literal("attempts_exhausted"),
                sa.literal("ledger"),
                now,
            ),
        )
        # In the order of their keys, like a cancellation: two that lock rows in different orders would wait for ever.
        self._lock_held = (
            sa.select(work_item.c.token)
            .where(work_item.c.token.in_(sa.bindparam("tokens", expanding=True)))
            .order_by(work_item.c.job_id, work_item.c.stage, work_item.c.item_key, work_item.c.stage_version)
            .with_for_update()
        )
        self._lock_lost = (
            sa.select(attempt.c.token)
            .where(attempt.c.token.in_(sa.bindparam("tokens", expanding=True)))
            .with_for_update(skip_locked=True)
        )
        held = batch(dialect, "held", token=sa.Text, lease_ms=sa.BigInteger).alias("held_claims")
        self._extend = (
            sa.update(work_item)
            .where(
                work_item.c.token == held.c.token,
                work_item.c.state == WorkState.RUNNING,
                work_item.c.lease_until > now,
            )
            .values(lease_until=now + held.c.lease_ms)
            .returning(work_item.c.token)
        )

    def take(
        self,
        connection: Connection,
        scope: Scope,
        *,
        tokens: Sequence[str],
        claimant: Claimant,
        quotas: QuotaTurn,
    ) -> tuple[Claim, ...]:
        """Claim at most `len(tokens)` items: tenants by weight, their jobs alike, within a job in document order.

        An item whose lease passed with its attempts used up becomes `failed` instead, with a transition that says so.
        One that would call a provider is claimed only where `quotas` has room for the call. An item of a waived clause
        calls nobody, and is claimed without either.
        """
        claims: list[Claim] = []
        if quotas.is_on and not PROVIDER_STAGES.isdisjoint(scope.stages):
            quotas.begin(scope.jobs)
        for stage in scope.stages:
            passed_over = set[int]()
            while len(claims) < len(tokens):
                found = self._picks.rows(
                    connection,
                    stage,
                    len(tokens) - len(claims),
                    job_ids=scope.job_ids,
                    items=scope.items,
                    passed_over=passed_over,
                )
                picked = self._without_locked(connection, found.rows, passed_over)
                spent = [row for row in picked if _is_spent(row)]
                fresh = [row for row in picked if not _is_spent(row)]
                free = tokens[len(claims) :]
                if stage in PROVIDER_STAGES and quotas.has_begun:
                    # What no quota has room for is left as it is; whoever lost it holds nothing of the quota any more.
                    fresh = _admitted(fresh, stage, free, quotas, passed_over)
                self._take_over(connection, [row for row in (*fresh, *spent) if row.token], spent)
                made = self._claim_rows(connection, stage, fresh, free, claimant, bounded=quotas.bounded)
                claims += made
                if len(made) < len(fresh):
                    quotas.withdraw(set(free[: len(fresh)]).difference(claim.token for claim in made))
                if not spent and not found.more:
                    break
        return tuple(claims)

    def renew(self, connection: Connection, claims: Sequence[Claim], *, lease_ms: int) -> frozenset[str]:
        """Extend the leases that still hold; return their tokens. A missing token means that the claim is lost."""
        if not claims:
            return frozenset()
        if connection.dialect.name == "postgresql":
            connection.execute(self._lock_held, {"tokens": [claim.token for claim in claims]}).all()
        held = rows_of({"token": claim.token, "lease_ms": lease_ms} for claim in claims)
        return frozenset(connection.execute(self._extend, {"held": held}).scalars())

    def _without_locked(self, connection: Connection, rows: Sequence[Found], passed_over: set[int]) -> Sequence[Found]:
        """Leave out lost items whose worker reports at this moment, and pass over their jobs in this transaction.

        A claim waits for nobody (see `ClaimLimits`).
        """
        lost = [row.token for row in rows if row.token]
        if not lost or connection.dialect.name != "postgresql":
            return rows
        free = frozenset(connection.execute(self._lock_lost, {"tokens": lost}).scalars())
        passed_over.update(row.job_id for row in rows if row.token and row.token not in free)
        return [row for row in rows if not row.token or row.token in free]

    def _take_over(self, connection: Connection, lost: Sequence[Found], spent: Sequence[Found]) -> None:
        if lost:
            connection.execute(self._book_crashes, {"lost": rows_of({"token": row.token} for row in lost)})
        if spent:
            rows = rows_of(
                {"job_id": r.job_id, "stage": r.stage, "item_key": r.item_key, "stage_version": r.stage_version}
                for r in spent
            )
            connection.execute(self._exhaust, {"spent": rows})
            connection.execute(self._log_exhausted, {"spent": rows})

    def _claim_rows(
        self,
        connection: Connection,
        stage: Stage,
        rows: Sequence[Found],
        tokens: Sequence[str],
        claimant: Claimant,
        *,
        bounded: frozenset[str],
    ) -> list[Claim]:
        if not rows:
            return []
        offered = [_taken(row, token, claimant) for row, token in zip(rows, tokens, strict=False)]
        verdicts = self._take.run(
            connection,
            offered,
            worker=claimant.worker,
            run_id=claimant.run_id,
            provider_called=stage in PROVIDER_STAGES,
        )
        return [
            Claim(
                key=WorkKey(job_id=row.job_id, stage=stage, item_key=row.item_key, stage_version=row.stage_version),
                job=f"{row.tenant}/{row.submission_key}",
                partition_key=row.partition_key,
                clause_ordinal=row.clause_ordinal,
                token=taken.token,
                attempt=taken.attempt,
                attempt_limit=row.attempt_limit,
                operation_key=taken.operation_key,
                lease_until=taken.lease_until,
                remaining_ms=self._remaining(row.deadline_at, row.now),
                claimed_s=claimant.monotonic_s,
                repair=refusals_from_json(row.repair) if row.repair else (),
                longer_answer=row.wants_longer_answer and taken.token not in bounded,
                waived=row.waived,
            )
            for row, taken, has_landed in zip(rows, offered, verdicts, strict=False)
            if has_landed
        ]

    def _remaining(self, deadline_at: int | None, now: int) -> int | None:
        return None if deadline_at is None else remaining_ms(deadline_at, now, self._margin_ms)


def is_open() -> sa.ColumnElement[bool]:
    """Return the condition that an item is unfinished, in literals, in the words of the partial index of open items."""
    return sa.or_(*(work_item.c.state == sa.literal_column(f"'{state}'") for state in OPEN_WORK_STATES))


def can_be_claimed(now: sa.ColumnElement[int]) -> sa.ColumnElement[bool]:
    """Return the condition that an item can be claimed: pending, a retry that is due, or a lease that has passed."""
    return sa.and_(
        is_open(),
        sa.or_(
            work_item.c.state == WorkState.PENDING,
            sa.and_(work_item.c.state == WorkState.WAITING, work_item.c.next_attempt_at <= now),
            sa.and_(work_item.c.state == WorkState.RUNNING, work_item.c.lease_until <= now),
        ),
    )


def is_in_time(now: sa.ColumnElement[int], deadlines: DeadlinePolicy) -> sa.ColumnElement[bool]:
    """Return the condition that the job's deadline, if it has one, leaves time for a useful call."""
    return sa.or_(job.c.deadline_at.is_(None), job.c.deadline_at >= now + deadlines.reserve_ms)


def not_terminal(job_id: sa.ColumnElement[int]) -> sa.ColumnElement[bool]:
    """Return the condition that a job has not ended."""
    # Plain comparisons: SQLite would build an index for a list of literals, for each row.
    ended = sa.or_(*(job.c.state == sa.literal(state.value) for state in sorted(TERMINAL_JOB_STATES)))
    return ~sa.exists().where(job.c.job_id == job_id, ended)


def _same_item(table: sa.FromClause, other: sa.FromClause) -> sa.ColumnElement[bool]:
    return sa.and_(*(table.c[name] == other.c[name] for name in ("job_id", "stage", "item_key", "stage_version")))


def _admitted(
    rows: Sequence[Found], stage: Stage, tokens: Sequence[str], quotas: QuotaTurn, passed_over: set[int]
) -> list[Found]:
    """Return the rows that quotas have room for, each with the token of its place; pass over the jobs of the others."""
    admitted: list[Found] = []
    for row in quotas.order(rows):
        is_free = row.waived is not None
        if is_free or quotas.admits(row.job_id, stage, tokens[len(admitted)], longer=row.wants_longer_answer):
            admitted.append(row)
        else:
            passed_over.add(row.job_id)
    return admitted


def _is_spent(row: Found) -> bool:
    return row.state == WorkState.RUNNING and row.attempts >= row.attempt_limit and row.waived is None


class _Taken(NamedTuple):
    """What a claim writes of one item, its attempt and its transition; `state` is the one before."""

    job_id: int
    stage: str
    item_key: str
    stage_version: int
    state: str
    attempt: int
    kind: str
    token: str
    operation_key: str
    lease_until: int
    cause: str


def _taken(row: Found, token: str, claimant: Claimant) -> _Taken:
    return _Taken(
        row.job_id,
        row.stage,
        row.item_key,
        row.stage_version,
        row.state,
        row.attempts + 1,
        _REPAIR if row.repair else _RETRY if row.attempts else _FIRST,
        token,
        f"{row.tenant}/{row.submission_key}/{row.stage}/{row.item_key}/v{row.stage_version}",
        row.now + claimant.lease_ms,
        "lease_expired" if row.state == WorkState.RUNNING else "claimed",
    )


def _take(now: sa.ColumnElement[int], row: Columns) -> sa.Update:
    of_item = (work_item.c[name] == row[name] for name in ("job_id", "stage", "item_key", "stage_version"))
    return (
        sa.update(work_item)
        .where(*of_item, work_item.c.attempts == row["attempt"] - 1)
        .values(
            state=WorkState.RUNNING.value,
            token=row["token"],
            worker=sa.bindparam("worker", type_=sa.Text),
            lease_until=row["lease_until"],
            attempts=row["attempt"],
            next_attempt_at=sa.null(),
            error_code=sa.null(),
            error_message=sa.null(),
            updated_at=now,
        )
    )


def _open_attempt(now: sa.ColumnElement[int], row: Columns) -> Columns:
    return {
        **{name: row[name] for name in ("job_id", "stage", "item_key", "stage_version", "attempt", "kind", "token")},
        "worker": sa.bindparam("worker", type_=sa.Text),
        "dagster_run_id": sa.bindparam("run_id", type_=sa.Text),
        "operation_key": row["operation_key"],
        "provider_called": sa.bindparam("provider_called", type_=sa.Boolean),
        "started_at": now,
    }


def _log_claim(now: sa.ColumnElement[int], row: Columns) -> Columns:
    return {
        "job_id": row["job_id"],
        "subject": sa.literal("work_item"),
        "stage": row["stage"],
        "subject_key": row["item_key"],
        "from_state": row["state"],
        "to_state": sa.literal(WorkState.RUNNING.value),
        "cause": row["cause"],
        "actor": sa.bindparam("worker", type_=sa.Text),
        "at": now,
    }
