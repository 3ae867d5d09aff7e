"""Claims: the right to complete an item, as a fresh token with a lease on the ledger's clock.

An item can be claimed when it is pending, when its retry is due, or when the lease of its last claim has passed. The
last case is how a crash is found: the lost attempt is booked as crashed, and counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rulegen_dagster.domain.states import (
    JOB_STATE_OF_STAGE,
    TERMINAL_JOB_STATES,
    AttemptOutcome,
    Stage,
    WorkState,
)
from rulegen_dagster.domain.work import Claim, WorkKey
from rulegen_dagster.ledger.batch import batch, in_one_trip, rows_of
from rulegen_dagster.ledger.database import Database
from rulegen_dagster.ledger.schema import attempt, job, transition, work_item

PROVIDER_STAGES = frozenset({Stage.GENERATE_RULES, Stage.GENERATE_TESTS})
"""Stages whose attempts call a provider; a lost attempt of theirs counts as a call."""


@dataclass(frozen=True, kw_only=True)
class Scope:
    """Which items a worker may claim: its stages in order, and optionally only some jobs or some items."""

    stages: tuple[Stage, ...]
    job_ids: tuple[int, ...] | None = None
    items: tuple[WorkKey, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Claimant:
    """Who claims, and for how long (ms); `run_id` is the Dagster run, if there is one."""

    worker: str
    lease_ms: int
    run_id: str | None = None


class Claims:
    """The statements that hand out, renew and take over claims; built once for a database."""

    def __init__(self, database: Database) -> None:
        """Build the statements for the database's dialect."""
        dialect, now = database.dialect, database.now
        self._picks = {kind: self._pick(dialect, now, kind) for kind in ("any", "jobs", "items")}
        claimed = batch(
            dialect,
            "claims",
            job_id=sa.BigInteger,
            stage=sa.Text,
            item_key=sa.Text,
            stage_version=sa.Integer,
            state=sa.Text,
            attempt=sa.Integer,
            token=sa.Text,
            worker=sa.Text,
            run_id=sa.Text,
            operation_key=sa.Text,
            provider_called=sa.Boolean,
            lease_ms=sa.BigInteger,
            cause=sa.Text,
        ).alias("claimed")
        self._take = (
            sa.update(work_item)
            .where(_same_item(work_item, claimed), work_item.c.attempts == claimed.c.attempt - 1)
            .values(
                state=WorkState.RUNNING,
                token=claimed.c.token,
                worker=claimed.c.worker,
                lease_until=now + claimed.c.lease_ms,
                attempts=claimed.c.attempt,
                next_attempt_at=None,
                error_code=None,
                error_message=None,
                updated_at=now,
            )
            .returning(work_item.c.token, work_item.c.lease_until)
        )
        open_attempts = sa.insert(attempt).from_select(
            [
                "job_id",
                "stage",
                "item_key",
                "stage_version",
                "attempt",
                "token",
                "worker",
                "dagster_run_id",
                "operation_key",
                "provider_called",
                "started_at",
            ],
            sa.select(
                claimed.c.job_id,
                claimed.c.stage,
                claimed.c.item_key,
                claimed.c.stage_version,
                claimed.c.attempt,
                claimed.c.token,
                claimed.c.worker,
                claimed.c.run_id,
                claimed.c.operation_key,
                claimed.c.provider_called,
                now,
            ),
        )
        log = sa.insert(transition).from_select(
            ["job_id", "subject", "stage", "subject_key", "from_state", "to_state", "cause", "actor", "at"],
            sa.select(
                claimed.c.job_id,
                sa.literal("work_item"),
                claimed.c.stage,
                claimed.c.item_key,
                claimed.c.state,
                sa.literal(WorkState.RUNNING.value),
                claimed.c.cause,
                claimed.c.worker,
                now,
            ),
        )
        self._record = in_one_trip(dialect, open_attempts, log)
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

    @staticmethod
    def _pick(dialect: str, now: sa.ColumnElement[int], kind: str) -> sa.Select[Any]:
        query = (
            sa.select(
                work_item.c.job_id,
                work_item.c.stage,
                work_item.c.item_key,
                work_item.c.stage_version,
                work_item.c.state,
                work_item.c.attempts,
                work_item.c.attempt_limit,
                work_item.c.token,
                work_item.c.clause_ordinal,
                work_item.c.partition_key,
                job.c.tenant,
                job.c.submission_key,
            )
            .join(job, job.c.job_id == work_item.c.job_id)
            .where(
                work_item.c.stage == sa.bindparam("stage", type_=sa.Text),
                job.c.state == sa.bindparam("job_state", type_=sa.Text),
                can_be_claimed(now),
            )
            .order_by(work_item.c.job_id, work_item.c.ordinal)
            .limit(sa.bindparam("count", type_=sa.Integer))
            .with_for_update(of=work_item, skip_locked=True)
        )
        if kind == "jobs":
            wanted = batch(dialect, "wanted", job_id=sa.BigInteger).alias("wanted_jobs")
            query = query.where(work_item.c.job_id.in_(sa.select(wanted.c.job_id)))
        elif kind == "items":
            wanted = batch(dialect, "wanted", job_id=sa.BigInteger, item_key=sa.Text).alias("wanted_items")
            query = query.where(
                sa.exists().where(wanted.c.job_id == work_item.c.job_id, wanted.c.item_key == work_item.c.item_key)
            )
        return query

    def take(
        self, connection: Connection, scope: Scope, *, tokens: Sequence[str], claimant: Claimant
    ) -> tuple[Claim, ...]:
        """Claim at most `len(tokens)` items, the oldest job first, in document order.

        An item whose lease passed with its attempts used up becomes `failed` instead, with a transition that says so.
        """
        claims: list[Claim] = []
        for stage in scope.stages:
            while len(claims) < len(tokens):
                picked = self._picked(connection, scope, stage, len(tokens) - len(claims))
                spent = [row for row in picked if _is_spent(row)]
                fresh = [row for row in picked if not _is_spent(row)]
                self._take_over(connection, [row for row in picked if row.token], spent)
                claims += self._claim_rows(connection, fresh, tokens[len(claims) :], claimant)
                if not spent:
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

    def _picked(self, connection: Connection, scope: Scope, stage: Stage, count: int) -> Sequence[sa.Row[Any]]:
        parameters: dict[str, Any] = {"stage": stage, "job_state": JOB_STATE_OF_STAGE[stage], "count": count}
        kind = "any"
        if scope.items is not None:
            kind = "items"
            wanted = [{"job_id": key.job_id, "item_key": key.item_key} for key in scope.items if key.stage is stage]
            if not wanted:
                return ()
            parameters["wanted"] = rows_of(wanted)
        elif scope.job_ids is not None:
            kind = "jobs"
            parameters["wanted"] = rows_of({"job_id": job_id} for job_id in scope.job_ids)
        return connection.execute(self._picks[kind], parameters).all()

    def _take_over(self, connection: Connection, lost: Sequence[sa.Row[Any]], spent: Sequence[sa.Row[Any]]) -> None:
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
        self, connection: Connection, rows: Sequence[sa.Row[Any]], tokens: Sequence[str], claimant: Claimant
    ) -> list[Claim]:
        if not rows:
            return []
        named = list(zip(rows, tokens, strict=False))
        parameters = {"claims": rows_of(_claim_row(row, token, claimant) for row, token in named)}
        leases = {row.token: row.lease_until for row in connection.execute(self._take, parameters)}
        for statement in self._record:
            connection.execute(statement, parameters)
        return [
            Claim(
                key=WorkKey(
                    job_id=row.job_id,
                    stage=Stage(row.stage),
                    item_key=row.item_key,
                    stage_version=row.stage_version,
                ),
                job=f"{row.tenant}/{row.submission_key}",
                partition_key=row.partition_key,
                clause_ordinal=row.clause_ordinal,
                token=token,
                attempt=row.attempts + 1,
                attempt_limit=row.attempt_limit,
                operation_key=_operation_key(row),
                lease_until=leases[token],
            )
            for row, token in named
        ]


def is_open() -> sa.ColumnElement[bool]:
    """Return the condition that an item is unfinished, in literals, so that the partial index of open items applies."""
    return work_item.c.state.in_(
        [sa.literal_column("'pending'"), sa.literal_column("'running'"), sa.literal_column("'waiting'")]
    )


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


def not_terminal(job_id: sa.ColumnElement[int]) -> sa.ColumnElement[bool]:
    """Return the condition that a job has not ended."""
    return ~sa.exists().where(
        job.c.job_id == job_id, job.c.state.in_([sa.literal(state.value) for state in sorted(TERMINAL_JOB_STATES)])
    )


def _same_item(table: sa.FromClause, other: sa.FromClause) -> sa.ColumnElement[bool]:
    return sa.and_(*(table.c[name] == other.c[name] for name in ("job_id", "stage", "item_key", "stage_version")))


def _is_spent(row: sa.Row[Any]) -> bool:
    return bool(row.state == WorkState.RUNNING and row.attempts >= row.attempt_limit)


def _operation_key(row: sa.Row[Any]) -> str:
    return f"{row.tenant}/{row.submission_key}/{row.stage}/{row.item_key}/v{row.stage_version}"


def _claim_row(row: sa.Row[Any], token: str, claimant: Claimant) -> dict[str, Any]:
    return {
        "job_id": row.job_id,
        "stage": row.stage,
        "item_key": row.item_key,
        "stage_version": row.stage_version,
        "state": row.state,
        "attempt": row.attempts + 1,
        "token": token,
        "worker": claimant.worker,
        "run_id": claimant.run_id,
        "operation_key": _operation_key(row),
        "provider_called": row.stage in PROVIDER_STAGES,
        "lease_ms": claimant.lease_ms,
        "cause": "lease_expired" if row.state == WorkState.RUNNING else "claimed",
    }
