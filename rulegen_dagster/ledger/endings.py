"""Endings: a job that ends before its work is done takes whatever of it is unfinished with it, in one transaction.

Accepted outputs stay. An item in flight loses its token and lease, so no completion can land any more. The caller
holds the job's lock, decides whether the job may end, and ends it here; both databases then have one story to tell.
"""

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rulegen_dagster.domain.states import ActionState, AttemptOutcome, JobState, WorkState
from rulegen_dagster.ledger.claims import is_open
from rulegen_dagster.ledger.database import Database
from rulegen_dagster.ledger.schema import action, attempt, job, transition, work_item
from rulegen_dagster.ledger.stages import LOGGED, log_actions, log_job

_NOT_BEGUN = (ActionState.PROPOSED.value, ActionState.CONFIRMED.value)
BEGUN = (ActionState.EXECUTING.value, ActionState.UNKNOWN.value, ActionState.DONE.value)
"""The states of an action whose effect may be there already."""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a job ends: its last state, the cause of that in the log, and the code that its unfinished parts get."""

    state: JobState
    cause: str
    code: str


@dataclass(frozen=True, kw_only=True)
class EndedParts:
    """How many unfinished items ended with the job, and how many of them were in flight."""

    items: int
    in_flight: int


def publication_was_begun(connection: Connection, job_id: int) -> bool:
    """Lock the job's actions and return whether somebody has begun one: its effect may be there already."""
    states = connection.execute(
        sa.select(action.c.state).where(action.c.job_id == job_id).order_by(action.c.action_key).with_for_update()
    ).scalars()
    return bool(set(states) & set(BEGUN))


def end_job(
    connection: Connection,
    database: Database,
    job_id: int,
    before: JobState,
    ending: Ending,
    *,
    actor: str,
    reason: str,
) -> EndedParts:
    """End a job with its actions that nobody has begun and its unfinished items.

    The caller holds the job's lock and knows that it is in the state `before`, which is not terminal, and that its
    publication was not begun.
    """
    now = database.now
    give_up_actions(connection, now, job_id, ending, actor)
    ended = _end_items(connection, database, job_id, ending, actor)
    connection.execute(
        sa.update(job).where(job.c.job_id == job_id).values(state=ending.state, end_reason=reason, updated_at=now)
    )
    log_job(connection, now, job_id, before, ending.state, cause=ending.cause, actor=actor)
    return ended


def give_up_actions(
    connection: Connection, now: sa.ColumnElement[int], job_id: int, ending: Ending, actor: str
) -> None:
    """Fail the actions that nobody has begun, with the ending's code."""
    not_begun = sa.and_(action.c.job_id == job_id, action.c.state.in_(_NOT_BEGUN))
    log_actions(connection, now, not_begun, ActionState.FAILED, cause=ending.code, actor=actor)
    connection.execute(
        sa.update(action).where(not_begun).values(state=ActionState.FAILED, error_code=ending.code, updated_at=now)
    )


def _end_items(connection: Connection, database: Database, job_id: int, ending: Ending, actor: str) -> EndedParts:
    now = database.now
    unfinished = sa.and_(work_item.c.job_id == job_id, is_open())
    if database.dialect == "postgresql":
        # In the order of their keys, like a renewal; a claim never waits for a locked item.
        key = (work_item.c.stage, work_item.c.item_key, work_item.c.stage_version)
        connection.execute(sa.select(sa.literal(1)).where(unfinished).order_by(*key).with_for_update()).all()
    connection.execute(
        sa.insert(transition).from_select(
            LOGGED,
            sa.select(
                work_item.c.job_id,
                sa.literal("work_item"),
                work_item.c.stage,
                work_item.c.item_key,
                work_item.c.state,
                sa.literal(WorkState.CANCELLED.value),
                sa.literal(ending.code),
                sa.literal(actor),
                now,
            ).where(unfinished),
        )
    )
    # A lease that passed unnoticed is still a crash.
    passed, held = work_item.c.lease_until <= now, work_item.c.lease_until > now
    _end_attempts(connection, now, job_id, passed, outcome=AttemptOutcome.CRASHED, error_code="lease_expired")
    in_flight = _end_attempts(connection, now, job_id, held, outcome=AttemptOutcome.CANCELLED, error_code=ending.code)
    ended = connection.execute(
        sa.update(work_item)
        .where(unfinished)
        .values(
            state=WorkState.CANCELLED,
            token=None,
            lease_until=None,
            worker=None,
            next_attempt_at=None,
            updated_at=now,
        )
    )
    return EndedParts(items=ended.rowcount, in_flight=in_flight)


def _end_attempts(
    connection: Connection,
    now: sa.ColumnElement[int],
    job_id: int,
    lease: sa.ColumnElement[bool],
    *,
    outcome: AttemptOutcome,
    error_code: str,
) -> int:
    tokens = sa.select(work_item.c.token).where(
        work_item.c.job_id == job_id, work_item.c.state == WorkState.RUNNING.value, lease
    )
    ended = connection.execute(
        sa.update(attempt)
        .where(attempt.c.token.in_(tokens), attempt.c.outcome.is_(None))
        .values(outcome=outcome, ended_at=now, error_code=error_code)
    )
    return ended.rowcount
