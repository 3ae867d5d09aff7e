"""Cancellations: a person ends a job; whatever of it is unfinished ends in the same transaction.

Accepted outputs stay. An item in flight loses its token and lease, so no completion can land any more; its worker
finds out by `withdrawn`, or when it reports, and what the call cost is then kept on its attempt.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rulegen_dagster.domain.errors import StateError
from rulegen_dagster.domain.states import (
    TERMINAL_JOB_STATES,
    ActionState,
    AttemptOutcome,
    JobState,
    WorkState,
)
from rulegen_dagster.domain.work import Claim
from rulegen_dagster.ledger.claims import is_open
from rulegen_dagster.ledger.database import Database
from rulegen_dagster.ledger.schema import action, attempt, job, transition, work_item
from rulegen_dagster.ledger.stages import log_job

_NOT_BEGUN = (ActionState.PROPOSED.value, ActionState.CONFIRMED.value)
_LOGGED = ("job_id", "subject", "stage", "subject_key", "from_state", "to_state", "cause", "actor", "at")


@dataclass(frozen=True, kw_only=True)
class Cancellation:
    """What a cancellation ended: unfinished items, and how many of them were in flight."""

    items: int
    in_flight: int


class Cancellations:
    """Ends jobs on request, and tells workers what was taken from them."""

    def __init__(self, database: Database) -> None:
        """Work on the given database."""
        self._database = database

    def cancel(self, job_id: int, *, actor: str, reason: str) -> Cancellation:
        """End a job as cancelled, with its unfinished items and its actions that nobody has begun.

        Raises `StateError` for a job that has ended, and for one whose publication was begun: its effect may be there
        already, and is reconciled, not given up.
        """
        now = self._database.now
        with self._database.write() as connection:
            # The job first, then its items: the order in which completions lock, so that neither waits for the other.
            state = JobState(
                connection.execute(
                    sa.select(job.c.state).where(job.c.job_id == job_id).with_for_update(key_share=True)
                ).scalar_one()
            )
            if state in TERMINAL_JOB_STATES:
                raise StateError(f"the job is {state}; a job that has ended cannot be cancelled")
            self._give_up_actions(connection, job_id, actor)
            ended = self._end_items(connection, job_id, actor)
            connection.execute(
                sa.update(job)
                .where(job.c.job_id == job_id)
                .values(state=JobState.CANCELLED, end_reason=reason, updated_at=now)
            )
            log_job(connection, now, job_id, state, JobState.CANCELLED, cause="cancelled", actor=actor)
            return ended

    def withdrawn(self, claims: Sequence[Claim]) -> frozenset[str]:
        """Return the tokens of the claims whose items are no longer theirs: cancelled, or taken over.

        One read without a lock, cheap enough to repeat while calls are in flight.
        """
        tokens = frozenset(claim.token for claim in claims)
        with self._database.read() as connection:
            held = connection.execute(sa.select(work_item.c.token).where(work_item.c.token.in_(sorted(tokens))))
            return tokens - frozenset(held.scalars())

    def _give_up_actions(self, connection: Connection, job_id: int, actor: str) -> None:
        of_job = action.c.job_id == job_id
        states = set(
            connection.execute(
                sa.select(action.c.state).where(of_job).order_by(action.c.action_key).with_for_update()
            ).scalars()
        )
        if states & {ActionState.EXECUTING, ActionState.UNKNOWN, ActionState.DONE}:
            raise StateError(
                "the publication was begun, and its effect may be there; the next publisher goes on with it"
            )
        not_begun = sa.and_(of_job, action.c.state.in_(_NOT_BEGUN))
        now = self._database.now
        connection.execute(
            sa.insert(transition).from_select(
                _LOGGED,
                sa.select(
                    action.c.job_id,
                    sa.literal("action"),
                    action.c.kind,
                    action.c.action_key,
                    action.c.state,
                    sa.literal(ActionState.FAILED.value),
                    sa.literal("job_cancelled"),
                    sa.literal(actor),
                    now,
                ).where(not_begun),
            )
        )
        connection.execute(
            sa.update(action)
            .where(not_begun)
            .values(state=ActionState.FAILED, error_code="job_cancelled", updated_at=now)
        )

    def _end_items(self, connection: Connection, job_id: int, actor: str) -> Cancellation:
        now = self._database.now
        unfinished = sa.and_(work_item.c.job_id == job_id, is_open())
        if self._database.dialect == "postgresql":
            # In the order of their keys, like a renewal; a claim never waits for a locked item.
            key = (work_item.c.stage, work_item.c.item_key, work_item.c.stage_version)
            connection.execute(sa.select(sa.literal(1)).where(unfinished).order_by(*key).with_for_update()).all()
        connection.execute(
            sa.insert(transition).from_select(
                _LOGGED,
                sa.select(
                    work_item.c.job_id,
                    sa.literal("work_item"),
                    work_item.c.stage,
                    work_item.c.item_key,
                    work_item.c.state,
                    sa.literal(WorkState.CANCELLED.value),
                    sa.literal("job_cancelled"),
                    sa.literal(actor),
                    now,
                ).where(unfinished),
            )
        )
        # A lease that passed unnoticed is still a crash.
        self._end_attempts(connection, job_id, work_item.c.lease_until <= now, AttemptOutcome.CRASHED, "lease_expired")
        in_flight = self._end_attempts(
            connection, job_id, work_item.c.lease_until > now, AttemptOutcome.CANCELLED, "job_cancelled"
        )
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
        return Cancellation(items=ended.rowcount, in_flight=in_flight)

    def _end_attempts(
        self,
        connection: Connection,
        job_id: int,
        lease: sa.ColumnElement[bool],
        outcome: AttemptOutcome,
        error_code: str,
    ) -> int:
        tokens = sa.select(work_item.c.token).where(
            work_item.c.job_id == job_id, work_item.c.state == WorkState.RUNNING.value, lease
        )
        ended = connection.execute(
            sa.update(attempt)
            .where(attempt.c.token.in_(tokens), attempt.c.outcome.is_(None))
            .values(outcome=outcome, ended_at=self._database.now, error_code=error_code)
        )
        return ended.rowcount
