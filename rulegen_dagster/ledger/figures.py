"""Figures: how much of everything there is, counted by the database for whoever watches it.

A job that has ended changes no more, except for what late answers of its calls tell about themselves. So a `Figures`
that lives counts the jobs that ended over an hour ago once, and at each later look only the others: what a look costs
then goes by the work that is going on, and not by the number of items in the ledger.
"""

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rulegen_dagster.domain.quota import Bucket
from rulegen_dagster.domain.states import (
    JOB_STATE_OF_STAGE,
    TERMINAL_JOB_STATES,
    JobState,
    Stage,
    WorkState,
)
from rulegen_dagster.ledger.claims import can_be_claimed, is_open
from rulegen_dagster.ledger.database import Database
from rulegen_dagster.ledger.quota_rows import QuotaRows
from rulegen_dagster.ledger.schema import action, attempt, job, outbox, work_item
from rulegen_dagster.ledger.unused_calls import UNUSED_OUTCOMES

SETTLED_AFTER_MS: Final = 3_600_000
"""How long after its end a job is looked at again for late answers."""


@dataclass(frozen=True)
class ItemsOf:
    """What items are counted by."""

    tenant: str
    stage: str
    state: str


@dataclass(frozen=True)
class AttemptsOf:
    """What attempts that have ended are counted by; provider and model are empty where nobody was called."""

    tenant: str
    stage: str
    outcome: str
    provider: str
    model: str
    is_call: bool


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What attempts used, as far as their providers told; `unpriced` of them told no cost."""

    attempts: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cost_micros: int = 0
    unpriced: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        """Return both together."""
        return Usage(
            attempts=self.attempts + other.attempts,
            tokens_in=self.tokens_in + other.tokens_in,
            tokens_out=self.tokens_out + other.tokens_out,
            cost_micros=self.cost_micros + other.cost_micros,
            unpriced=self.unpriced + other.unpriced,
        )


@dataclass(frozen=True, kw_only=True)
class Waits:
    """The open items of a stage that jobs have reached; times in ms.

    `due_since` is since when the item has been claimable that has been so for longest, `leases_passed` counts items
    whose worker has let its lease pass.
    """

    due: int = 0
    due_since: int | None = None
    later: int = 0
    leases: int = 0
    leases_passed: int = 0


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Everything that is counted, at `now` (ms on the ledger's clock)."""

    now: int
    jobs: dict[tuple[str, str], int]
    items: dict[ItemsOf, int]
    attempts: dict[AttemptsOf, Usage]
    actions: dict[tuple[str, str], int]
    waits: dict[Stage, Waits]
    confirmation_since: int | None
    unmirrored: int
    unmirrored_since: int | None
    quotas: dict[str, Bucket]


@dataclass
class _Settled:
    """What was counted of the jobs that ended before `until`."""

    until: int = 0
    items: Counter[ItemsOf] = field(default_factory=Counter)
    attempts: dict[AttemptsOf, Usage] = field(default_factory=dict)


class Figures:
    """Counts; keep one for as long as somebody looks. Safe to share between threads."""

    def __init__(self, database: Database) -> None:
        """Count in the given database."""
        self._database = database
        self._quotas = QuotaRows(database)
        self._settled = _Settled()
        self._lock = threading.Lock()

    def look(self) -> Snapshot:
        """Count now. Raises `LedgerError`."""
        with self._lock, self._database.read() as connection:
            now = int(connection.execute(sa.select(self._database.now)).scalar_one())
            self._settle(connection, now - SETTLED_AFTER_MS)
            moving = _jobs(connection, sa.or_(job.c.state.not_in(_ENDED), job.c.updated_at >= self._settled.until))
            items = self._settled.items + _items(connection, moving)
            attempts = _sum([*self._settled.attempts.items(), *_attempts(connection, moving)])
            pending = connection.execute(
                sa.select(sa.func.count().label("amount"), sa.func.min(outbox.c.created_at).label("since")).where(
                    outbox.c.mirrored_at.is_(None)
                )
            ).one()
            buckets, _ = self._quotas.buckets(connection, None)
            return Snapshot(
                now=now,
                jobs={(row.tenant, row.state): row.amount for row in connection.execute(_JOBS)},
                items=dict(items),
                attempts=attempts,
                actions={(row.kind, row.state): row.amount for row in connection.execute(_ACTIONS)},
                waits=_waits(connection, self._database.now),
                confirmation_since=connection.execute(_CONFIRMATIONS).scalar_one(),
                unmirrored=pending.amount,
                unmirrored_since=pending.since,
                quotas=dict(buckets),
            )

    def _settle(self, connection: Connection, until: int) -> None:
        """Count the jobs that have ended between the last time and `until`, for good."""
        before = self._settled
        if until <= before.until:
            return
        ended = sa.and_(job.c.state.in_(_ENDED), job.c.updated_at >= before.until, job.c.updated_at < until)
        jobs = _jobs(connection, ended)
        self._settled = _Settled(
            until=until,
            items=before.items + _items(connection, jobs),
            attempts=_sum([*before.attempts.items(), *_attempts(connection, jobs)]),
        )


_JOBS_AT_ONCE: Final = 500
_ENDED: Final = sorted(state.value for state in TERMINAL_JOB_STATES)
_JOBS: Final = sa.select(job.c.tenant, job.c.state, sa.func.count().label("amount")).group_by(job.c.tenant, job.c.state)
_ACTIONS: Final = sa.select(action.c.kind, action.c.state, sa.func.count().label("amount")).group_by(
    action.c.kind, action.c.state
)
_CONFIRMATIONS: Final = sa.select(sa.func.min(job.c.updated_at)).where(
    job.c.state == JobState.AWAITING_CONFIRMATION.value
)


def _jobs(connection: Connection, wanted: sa.ColumnElement[bool]) -> dict[int, str]:
    """Return the tenants of jobs by their numbers; nothing larger than the table of jobs is read."""
    rows = connection.execute(sa.select(job.c.job_id, job.c.tenant).where(wanted).order_by(job.c.job_id))
    return {row.job_id: row.tenant for row in rows}


def _parts(jobs: Mapping[int, str]) -> Iterable[list[int]]:
    # Named one by one, so that both databases go by the key and never through everything.
    numbers = list(jobs)
    return (numbers[start : start + _JOBS_AT_ONCE] for start in range(0, len(numbers), _JOBS_AT_ONCE))


def _items(connection: Connection, jobs: Mapping[int, str]) -> Counter[ItemsOf]:
    by = (work_item.c.job_id, work_item.c.stage, work_item.c.state)
    counted = Counter[ItemsOf]()
    for part in _parts(jobs):
        query = sa.select(*by, sa.func.count().label("amount")).where(work_item.c.job_id.in_(part)).group_by(*by)
        for row in connection.execute(query):
            counted[ItemsOf(jobs[row.job_id], row.stage, row.state)] += row.amount
    return counted


def _attempts(connection: Connection, jobs: Mapping[int, str]) -> Iterable[tuple[AttemptsOf, Usage]]:
    by = (
        attempt.c.job_id,
        attempt.c.stage,
        attempt.c.outcome,
        attempt.c.provider,
        attempt.c.model_id,
        attempt.c.provider_called,
    )
    unpriced = sa.and_(attempt.c.provider_called, attempt.c.cost_micros.is_(None))
    query = (
        sa.select(
            *by,
            sa.func.count().label("amount"),
            sa.func.coalesce(sa.func.sum(attempt.c.tokens_in), 0).label("tokens_in"),
            sa.func.coalesce(sa.func.sum(attempt.c.tokens_out), 0).label("tokens_out"),
            sa.func.coalesce(sa.func.sum(attempt.c.cost_micros), 0).label("cost_micros"),
            sa.func.sum(sa.case((unpriced, 1), else_=0)).label("unpriced"),
        )
        # What a successor took over was called for, and is counted, in its predecessor.
        .where(attempt.c.outcome.is_not(None), attempt.c.inherited_from.is_(None))
        .group_by(*by)
    )
    for part in _parts(jobs):
        for row in connection.execute(query.where(attempt.c.job_id.in_(part))):
            yield (
                AttemptsOf(
                    tenant=jobs[row.job_id],
                    stage=row.stage,
                    outcome=row.outcome,
                    provider=row.provider or "",
                    model=row.model_id or "",
                    is_call=bool(row.provider_called),
                ),
                Usage(
                    attempts=int(row.amount),
                    tokens_in=int(row.tokens_in),
                    tokens_out=int(row.tokens_out),
                    cost_micros=int(row.cost_micros),
                    unpriced=int(row.unpriced),
                ),
            )


def _sum(counted: Iterable[tuple[AttemptsOf, Usage]]) -> dict[AttemptsOf, Usage]:
    summed: dict[AttemptsOf, Usage] = {}
    for key, usage in counted:
        summed[key] = summed.get(key, Usage()) + usage
    return summed


def _waits(connection: Connection, now: sa.ColumnElement[int]) -> dict[Stage, Waits]:
    in_stage = sa.or_(
        *(
            sa.and_(work_item.c.stage == stage.value, job.c.state == state.value)
            for stage, state in JOB_STATE_OF_STAGE.items()
        )
    )
    due = can_be_claimed(now)
    running = work_item.c.state == WorkState.RUNNING.value
    since = sa.case(
        (work_item.c.state == WorkState.WAITING.value, work_item.c.next_attempt_at),
        (running, work_item.c.lease_until),
        else_=work_item.c.updated_at,
    )
    query = (
        sa.select(
            work_item.c.stage,
            sa.func.sum(sa.case((due, 1), else_=0)).label("due"),
            sa.func.min(sa.case((due, since))).label("due_since"),
            sa.func.sum(sa.case((sa.or_(due, running), 0), else_=1)).label("later"),
            sa.func.sum(sa.case((running, 1), else_=0)).label("leases"),
            sa.func.sum(sa.case((sa.and_(running, due), 1), else_=0)).label("leases_passed"),
        )
        .join(job, job.c.job_id == work_item.c.job_id)
        .where(is_open(), in_stage)
        .group_by(work_item.c.stage)
    )
    return {
        Stage(row.stage): Waits(
            due=int(row.due),
            due_since=row.due_since,
            later=int(row.later),
            leases=int(row.leases),
            leases_passed=int(row.leases_passed),
        )
        for row in connection.execute(query)
    }


def is_unused(key: AttemptsOf) -> bool:
    """Tell whether such attempts are calls that were paid for, or may be, and not used."""
    return key.is_call and key.outcome in UNUSED_OUTCOMES
