"""Actions: what publishing will do, who confirmed it, and how far it got."""

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rulegen_dagster.domain.errors import ActionSetMismatchError, StateError
from rulegen_dagster.domain.failpoints import ACTION_CLAIM, ACTION_RELEASE, CONFIRMATION, RECEIPT, REJECTION, Commit
from rulegen_dagster.domain.limits import Group
from rulegen_dagster.domain.states import TERMINAL_JOB_STATES, ActionState, JobState, Stage
from rulegen_dagster.ledger.claims import Claimant
from rulegen_dagster.ledger.database import Database, again_after_conflicts
from rulegen_dagster.ledger.limits import ClaimLimits
from rulegen_dagster.ledger.outbox import add_published
from rulegen_dagster.ledger.schema import action, action_set, confirmation, job, transition
from rulegen_dagster.ledger.stages import log_job


@dataclass(frozen=True, kw_only=True)
class ActionClaim:
    """The right to execute one action, and what was confirmed.

    An earlier claim may have been lost on the way, so the effect is looked for before it is made.
    """

    action_key: str
    job_id: int
    action_set_digest: str
    content: str
    token: str
    run_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class Decision:
    """A person's decision on one action set."""

    action_set_digest: str
    decision: str
    actor: str
    reason: str | None
    decided_at: int


class Actions:
    """Confirmations, and the execution of confirmed actions."""

    def __init__(self, database: Database, limits: ClaimLimits) -> None:
        """Work on the given database, within the limit of actions."""
        self._database = database
        self._limits = limits

    @again_after_conflicts
    def confirm(self, job_id: int, digest: str, *, actor: str) -> bool:
        """Confirm exactly this action set; return False where it was confirmed before.

        Raises `ActionSetMismatchError` for any other digest than the job's current one, and `StateError` where the
        job awaits no confirmation.
        """
        with self._database.write([CONFIRMATION]) as connection:
            row = self._locked_job(connection, job_id)
            state = JobState(row.state)
            if row.action_set_digest is not None and digest != row.action_set_digest:
                raise ActionSetMismatchError(
                    f"the job's action set is {row.action_set_digest}, not the one given; review the job again and"
                    " confirm what it shows"
                )
            if state in {JobState.EXECUTING, JobState.COMPLETED} and self._decision(connection, job_id, digest):
                return False
            if state is not JobState.AWAITING_CONFIRMATION:
                raise StateError(f"the job is {state}; only a job that is awaiting_confirmation can be confirmed")
            self._decide(connection, job_id, digest, "confirmed", actor=actor)
            connection.execute(
                sa.update(action)
                .where(action.c.job_id == job_id, action.c.action_set_digest == digest)
                .values(state=ActionState.CONFIRMED, updated_at=self._database.now)
            )
            self._log_actions(connection, job_id, digest, ActionState.CONFIRMED, actor=actor)
            self._move_job(connection, job_id, state, JobState.EXECUTING, cause="confirmed", actor=actor)
            return True

    @again_after_conflicts
    def reject(self, job_id: int, *, actor: str, reason: str) -> None:
        """End a job that waits for a person, with the reason. Raises `StateError` in any other state.

        A job whose validation failed waits for a person too.
        """
        with self._database.write([REJECTION]) as connection:
            row = self._locked_job(connection, job_id)
            state = JobState(row.state)
            stuck = state is JobState.VALIDATING and row.validation_passed is False
            if state is not JobState.AWAITING_CONFIRMATION and not stuck:
                if state in TERMINAL_JOB_STATES:
                    raise StateError(f"the job is {state}, and has ended; a job that has ended cannot be rejected")
                raise StateError(
                    f"the job is {state}; only a job that waits for a person can be rejected, and"
                    " 'rulegen cancel JOB --reason …' ends any other"
                )
            if row.action_set_digest is not None:
                self._decide(connection, job_id, row.action_set_digest, "rejected", actor=actor, reason=reason)
                connection.execute(
                    sa.update(action)
                    .where(action.c.job_id == job_id, action.c.state == ActionState.PROPOSED.value)
                    .values(state=ActionState.FAILED, error_code="rejected", updated_at=self._database.now)
                )
                self._log_actions(connection, job_id, row.action_set_digest, ActionState.FAILED, actor=actor)
            self._move_job(
                connection, job_id, state, JobState.CANCELLED, cause="rejected", actor=actor, end_reason=reason
            )

    @again_after_conflicts
    def claim(self, job_id: int, *, token: str, claimant: Claimant) -> ActionClaim | None:
        """Claim the job's next confirmed action, or one whose executor was lost; None where there is none to do now."""
        now = self._database.now
        with self._database.write([ACTION_CLAIM]) as connection:
            if not self._limits.has_room(connection, Group.ACTIONS):
                return None
            row = connection.execute(
                sa.select(action, action_set.c.content)
                .join(
                    action_set,
                    sa.and_(action_set.c.job_id == action.c.job_id, action_set.c.digest == action.c.action_set_digest),
                )
                .join(job, job.c.job_id == action.c.job_id)
                .where(
                    action.c.job_id == job_id,
                    # Not while the job needs a decision.
                    job.c.state == JobState.EXECUTING.value,
                    sa.or_(
                        action.c.state.in_([ActionState.CONFIRMED.value, ActionState.UNKNOWN.value]),
                        sa.and_(action.c.state == ActionState.EXECUTING.value, action.c.lease_until <= now),
                    ),
                )
                .order_by(action.c.action_key)
                .limit(1)
                .with_for_update(of=action, skip_locked=True)
            ).first()
            if row is None:
                return None
            connection.execute(
                sa.update(action)
                .where(action.c.action_key == row.action_key)
                .values(
                    state=ActionState.EXECUTING,
                    token=token,
                    worker=claimant.worker,
                    lease_until=now + claimant.lease_ms,
                    updated_at=now,
                )
            )
            self._log_action(connection, row, row.state, ActionState.EXECUTING, cause="claimed", actor=claimant.worker)
            return ActionClaim(
                action_key=row.action_key,
                job_id=job_id,
                action_set_digest=row.action_set_digest,
                content=row.content,
                token=token,
                run_id=claimant.run_id,
            )

    @again_after_conflicts
    def finish(self, claim: ActionClaim, *, receipt: str, actor: str) -> bool:
        """Store the receipt and complete the job when nothing is left to do; return whether it landed.

        False means that another executor holds the action now, or has finished it with another receipt.
        """
        now = self._database.now
        with self._database.write([RECEIPT]) as connection:
            row = self._locked_job(connection, claim.job_id)
            done = connection.execute(
                sa.update(action)
                .where(
                    action.c.action_key == claim.action_key,
                    action.c.state == ActionState.EXECUTING.value,
                    action.c.token == claim.token,
                    action.c.lease_until > now,
                )
                .values(
                    state=ActionState.DONE, receipt=receipt, token=None, lease_until=None, worker=None, updated_at=now
                )
                .returning(action)
            ).first()
            if done is None:
                # A commit whose answer was lost is tried again by its publisher: the receipt is there.
                stored = sa.select(action.c.receipt).where(action.c.action_key == claim.action_key)
                return bool(connection.execute(stored).scalar_one_or_none() == receipt)
            self._log_action(connection, done, ActionState.EXECUTING, ActionState.DONE, cause="published", actor=actor)
            if done.kind == Stage.PUBLISH:
                add_published(connection, now, claim.job_id, claim.run_id)
            # A job that needs a decision by now is completed when it goes back.
            if JobState(row.state) is JobState.EXECUTING:
                complete_published(connection, now, claim.job_id, actor=actor)
            return True

    @again_after_conflicts
    def release(self, claim: ActionClaim, *, error_code: str, actor: str) -> bool:
        """Give an action back whose effect could not be made or verified: it becomes `unknown`, to be reconciled."""
        commits: set[Commit] = set()
        with self._database.write(commits) as connection:
            row = connection.execute(
                sa.update(action)
                .where(action.c.action_key == claim.action_key, action.c.token == claim.token)
                .values(
                    state=ActionState.UNKNOWN,
                    token=None,
                    lease_until=None,
                    worker=None,
                    error_code=error_code,
                    updated_at=self._database.now,
                )
                .returning(action)
            ).first()
            if row is None:
                return False
            commits.add(ACTION_RELEASE)
            self._log_action(connection, row, ActionState.EXECUTING, ActionState.UNKNOWN, cause=error_code, actor=actor)
            return True

    def decision(self, job_id: int, digest: str) -> Decision | None:
        """Return what a person decided on an action set, if anyone did."""
        with self._database.read() as connection:
            return self._decision(connection, job_id, digest)

    def _decision(self, connection: Connection, job_id: int, digest: str) -> Decision | None:
        row = connection.execute(
            sa.select(confirmation).where(confirmation.c.job_id == job_id, confirmation.c.action_set_digest == digest)
        ).first()
        if row is None:
            return None
        return Decision(
            action_set_digest=digest,
            decision=row.decision,
            actor=row.actor,
            reason=row.reason,
            decided_at=row.decided_at,
        )

    def _decide(
        self, connection: Connection, job_id: int, digest: str, decision: str, *, actor: str, reason: str | None = None
    ) -> None:
        connection.execute(
            sa.insert(confirmation).values(
                job_id=job_id,
                action_set_digest=digest,
                decision=decision,
                actor=actor,
                reason=reason,
                decided_at=self._database.now,
            )
        )

    def _locked_job(self, connection: Connection, job_id: int) -> sa.Row[Any]:
        return connection.execute(
            sa.select(job.c.state, job.c.action_set_digest, job.c.validation_passed)
            .where(job.c.job_id == job_id)
            .with_for_update(key_share=True)
        ).one()

    def _move_job(
        self, connection: Connection, job_id: int, before: JobState, after: JobState, *, cause: str, actor: str,
        **values: Any,
    ) -> None:  # fmt: skip
        connection.execute(
            sa.update(job)
            .where(job.c.job_id == job_id, job.c.state == before.value)
            .values(state=after, updated_at=self._database.now, **values)
        )
        log_job(connection, self._database.now, job_id, before, after, cause=cause, actor=actor)

    def _log_action(
        self, connection: Connection, row: sa.Row[Any], before: str, after: ActionState, *, cause: str, actor: str
    ) -> None:
        connection.execute(
            sa.insert(transition).values(
                job_id=row.job_id,
                subject="action",
                stage=row.kind,
                subject_key=row.action_key,
                from_state=before,
                to_state=after,
                cause=cause,
                actor=actor,
                at=self._database.now,
            )
        )

    def _log_actions(self, connection: Connection, job_id: int, digest: str, after: ActionState, *, actor: str) -> None:
        """Log that a person's decision moved every proposed action of a set."""
        of_set = sa.select(action).where(action.c.job_id == job_id, action.c.action_set_digest == digest)
        for row in connection.execute(of_set).all():
            self._log_action(connection, row, ActionState.PROPOSED, after, cause=after.value, actor=actor)


def complete_published(connection: Connection, now: sa.ColumnElement[int], job_id: int, *, actor: str) -> None:
    """Complete a job that is being published once every action of its action set is done."""
    of_set = sa.and_(action.c.job_id == job.c.job_id, action.c.action_set_digest == job.c.action_set_digest)
    moved = connection.execute(
        sa.update(job)
        .where(
            job.c.job_id == job_id,
            job.c.state == JobState.EXECUTING.value,
            ~sa.exists().where(of_set, action.c.state != ActionState.DONE.value),
        )
        .values(state=JobState.COMPLETED, end_reason="published", updated_at=now)
    )
    if moved.rowcount == 1:
        log_job(connection, now, job_id, JobState.EXECUTING, JobState.COMPLETED, cause="published", actor=actor)
