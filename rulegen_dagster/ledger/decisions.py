"""Decisions: a job that a release cannot go on with waits for a person, and does what that person decides.

`ask` puts it into `needs_decision`, where nothing of it is claimed. A person retains it (it keeps what it froze, and
goes back to where it stood once a release honours that), migrates it (it takes another behaviour, on record), or stops
it. Each is one transaction under the job's lock: of two at once, one lands. What was in flight meanwhile is accepted as
ever, and what it would have opened is opened when the job goes back.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rulegen_dagster.domain.behaviour import Choice, FrozenBehaviour, Incompatibility, Part
from rulegen_dagster.domain.errors import StateError
from rulegen_dagster.domain.failpoints import DECISION, DECISION_NEEDED, RESUMPTION, Commit
from rulegen_dagster.domain.states import (
    TERMINAL_JOB_STATES,
    ActionState,
    JobState,
    Stage,
    WorkState,
)
from rulegen_dagster.ledger.actions import complete_published
from rulegen_dagster.ledger.behaviour_schema import job_behaviour, needed_decision
from rulegen_dagster.ledger.behaviours import keep
from rulegen_dagster.ledger.database import Database, again_after_conflicts
from rulegen_dagster.ledger.endings import Ending, end_job, give_up_actions, publication_was_begun
from rulegen_dagster.ledger.schema import action, action_set, job, work_item
from rulegen_dagster.ledger.stages import Stages, log_job

_STOPPED = Ending(state=JobState.CANCELLED, cause="stopped", code="job_stopped")
_MIGRATED = Ending(state=JobState.VALIDATING, cause="migrated", code="job_migrated")
_LONGEST_CAUSE = 200


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Whether a job needs a decision from now on; if not, because others work on it, when their last lease ends."""

    is_held: bool
    lease_until: int | None = None


@dataclass(frozen=True, kw_only=True)
class Retained:
    """Whether the decision is new, and whether the job went back to where it stood."""

    is_new: bool
    is_resumed: bool


class Decisions:
    """Asks for decisions, and carries them out."""

    def __init__(self, database: Database, stages: Stages) -> None:
        """Open through `stages` what a job that goes back lacks."""
        self._database = database
        self._stages = stages

    @again_after_conflicts
    def ask(self, job_id: int, found: Incompatibility, *, actor: str, whoever_works: bool = False) -> Asked:
        """Put a job into `needs_decision`; nothing of it is claimed from then on, and no attempt is used up.

        A job that somebody works on is left to them until their leases end, for their release may honour it; with
        `whoever_works` it is not. A job that was retained for the same reason before is retained again at once.
        """
        commits: set[Commit] = set()
        with self._database.write(commits) as connection:
            state = self._locked(connection, job_id)
            if state in TERMINAL_JOB_STATES:
                return Asked(is_held=False)
            if state is JobState.NEEDS_DECISION:
                return Asked(is_held=True)
            lease_until = None if whoever_works else self._last_lease(connection, job_id)
            if lease_until is not None:
                return Asked(is_held=False, lease_until=lease_until)
            before = self._latest(connection, job_id)
            row: dict[str, Any] = {
                "job_id": job_id,
                "number": 1 if before is None else before.number + 1,
                "part": found.part.value,
                "was": found.was,
                "now": found.now,
                "from_state": state,
                "asked_by": actor,
                "asked_at": self._database.now,
            }
            if before is not None and before.decision == Choice.RETAIN and _is_same(before, found):
                row |= {name: before._mapping[name] for name in ("decision", "decided_by", "decided_at", "reason")}
            connection.execute(sa.insert(needed_decision).values(**row))
            self._move(
                connection, job_id, state, JobState.NEEDS_DECISION, cause=f"incompatible: {found.text}", actor=actor
            )
            commits.add(DECISION_NEEDED)
            return Asked(is_held=True)

    @again_after_conflicts
    def retain(self, job_id: int, *, actor: str, reason: str | None, resume: bool) -> Retained:
        """Keep a job with what it froze; with `resume` it goes back to where it stood, for this release honours that.

        Raises `StateError` where the job needs no decision.
        """
        commits: set[Commit] = set()
        with self._database.write(commits) as connection:
            needed = self._needed(connection, job_id)
            is_new = needed.decision is None
            if is_new:
                self._decide(connection, job_id, needed, Choice.RETAIN, actor=actor, reason=reason)
            if resume:
                self._settle(connection, job_id)
                self._go_back(connection, job_id, JobState(needed.from_state), _cause("retained", reason), actor)
            elif is_new:
                now, state = self._database.now, JobState.NEEDS_DECISION
                log_job(connection, now, job_id, state, state, cause=_cause("retained", reason), actor=actor)
            if is_new or resume:
                commits.add(DECISION)
            return Retained(is_new=is_new, is_resumed=resume)

    @again_after_conflicts
    def resume(self, job_id: int, *, actor: str) -> bool:
        """Send a retained job back to where it stood, in a release that honours it; return whether it landed."""
        commits: set[Commit] = set()
        with self._database.write(commits) as connection:
            if self._locked(connection, job_id) is not JobState.NEEDS_DECISION:
                return False
            needed = self._latest(connection, job_id)
            if needed is None or needed.settled_at is not None or needed.decision != Choice.RETAIN:
                return False
            self._settle(connection, job_id)
            self._go_back(connection, job_id, JobState(needed.from_state), "honoured_again", actor)
            commits.add(RESUMPTION)
            return True

    @again_after_conflicts
    def migrate(
        self,
        job_id: int,
        frozen: FrozenBehaviour,
        *,
        actor: str,
        reason: str | None,
        unreadable: Collection[Stage] = (),
    ) -> None:
        """Give a job another behaviour from here on, with a record of the change; what is accepted stays.

        What was validated is validated again. `unreadable` are the stages whose outputs, as the job has them, the new
        behaviour cannot read. Raises `StateError` where one of them is accepted, where the job needs no decision, where
        something of it is still in flight under the old behaviour, where nothing would change, and where its
        publication was confirmed.
        """
        with self._database.write([DECISION]) as connection:
            needed = self._needed(connection, job_id)
            row = connection.execute(sa.select(job.c.behaviour_digest).where(job.c.job_id == job_id)).one()
            self._require_migratable(connection, job_id, needed, unreadable)
            if row.behaviour_digest == frozen.behaviour.digest:
                raise StateError(
                    "this release would give the job the behaviour that it has; retain it, or stop it",
                    code="nothing_to_migrate",
                )
            keep(connection, self._database.now, frozen)
            number = sa.select(sa.func.coalesce(sa.func.max(job_behaviour.c.number), 0) + 1).where(
                job_behaviour.c.job_id == job_id
            )
            connection.execute(
                sa.insert(job_behaviour).values(
                    job_id=job_id,
                    number=connection.execute(number).scalar_one(),
                    from_digest=row.behaviour_digest,
                    to_digest=frozen.behaviour.digest,
                    actor=actor,
                    reason=reason,
                    at=self._database.now,
                )
            )
            connection.execute(
                sa.update(job).where(job.c.job_id == job_id).values(behaviour_digest=frozen.behaviour.digest)
            )
            self._decide(connection, job_id, needed, Choice.MIGRATE, actor=actor, reason=reason)
            self._settle(connection, job_id)
            self._validate_again(connection, job_id, JobState(needed.from_state), _cause("migrated", reason), actor)

    def require(self, job_id: int) -> None:
        """Raise `StateError` where a job needs no decision, as things stand."""
        with self._database.read() as connection:
            state = connection.execute(sa.select(job.c.state).where(job.c.job_id == job_id)).scalar_one()
            self._require_needed(JobState(state), self._latest(connection, job_id))

    @again_after_conflicts
    def stop(self, job_id: int, *, actor: str, reason: str) -> None:
        """End a job that needs a decision as cancelled; what is accepted stays, for a successor.

        Raises `StateError` where it needs none, or its publication was begun.
        """
        with self._database.write([DECISION]) as connection:
            needed = self._needed(connection, job_id)
            if publication_was_begun(connection, job_id):
                raise StateError("the publication was begun, and its effect may be there; retain the job")
            self._decide(connection, job_id, needed, Choice.STOP, actor=actor, reason=reason)
            self._settle(connection, job_id)
            end_job(connection, self._database, job_id, JobState.NEEDS_DECISION, _STOPPED, actor=actor, reason=reason)

    def _locked(self, connection: Connection, job_id: int) -> JobState:
        locked = sa.select(job.c.state).where(job.c.job_id == job_id).with_for_update(key_share=True)
        return JobState(connection.execute(locked).scalar_one())

    def _latest(self, connection: Connection, job_id: int) -> sa.Row[Any] | None:
        return connection.execute(
            sa.select(needed_decision)
            .where(needed_decision.c.job_id == job_id)
            .order_by(needed_decision.c.number.desc())
            .limit(1)
        ).first()

    def _needed(self, connection: Connection, job_id: int) -> sa.Row[Any]:
        return self._require_needed(self._locked(connection, job_id), self._latest(connection, job_id))

    def _require_needed(self, state: JobState, needed: sa.Row[Any] | None) -> sa.Row[Any]:
        if state is not JobState.NEEDS_DECISION or needed is None or needed.settled_at is not None:
            raise StateError(f"the job is {state}; nothing is to be decided about it", code="nothing_to_decide")
        return needed

    def _last_lease(self, connection: Connection, job_id: int) -> int | None:
        now = self._database.now
        of_items = sa.select(sa.func.max(work_item.c.lease_until)).where(
            work_item.c.job_id == job_id, work_item.c.state == WorkState.RUNNING.value, work_item.c.lease_until > now
        )
        of_actions = sa.select(sa.func.max(action.c.lease_until)).where(
            action.c.job_id == job_id, action.c.state == ActionState.EXECUTING.value, action.c.lease_until > now
        )
        # Locked, so that no publisher begins between this look and the end of the transaction.
        locked = sa.select(action.c.action_key).where(action.c.job_id == job_id).order_by(action.c.action_key)
        connection.execute(locked.with_for_update()).all()
        leases = [connection.execute(query).scalar_one_or_none() for query in (of_items, of_actions)]
        return max((lease for lease in leases if lease is not None), default=None)

    def _require_migratable(
        self, connection: Connection, job_id: int, needed: sa.Row[Any], unreadable: Collection[Stage]
    ) -> None:
        if needed.from_state == JobState.EXECUTING:
            raise StateError(
                "a person has confirmed its publication, which names its behaviour; retain the job, or stop it",
                code="migration_refused",
            )
        if self._last_lease(connection, job_id) is not None:
            raise StateError(
                "calls under the old behaviour are still in flight; decide again when they have ended",
                code="in_flight",
            )
        accepted = sa.select(work_item.c.stage).where(
            work_item.c.job_id == job_id,
            work_item.c.state == WorkState.SUCCEEDED.value,
            work_item.c.stage.in_(sorted(stage.value for stage in unreadable)),
        )
        found = connection.execute(accepted.limit(1)).scalar_one_or_none()
        if found is not None:
            raise StateError(
                f"this release cannot read what is accepted of {found}; retain the job for the release that can, or"
                " stop it and submit the specification under a new key",
                code="migration_refused",
            )

    def _decide(
        self,
        connection: Connection,
        job_id: int,
        needed: sa.Row[Any],
        choice: Choice,
        *,
        actor: str,
        reason: str | None,
    ) -> None:
        connection.execute(
            sa.update(needed_decision)
            .where(needed_decision.c.job_id == job_id, needed_decision.c.number == needed.number)
            .values(decision=choice.value, decided_by=actor, decided_at=self._database.now, reason=reason)
        )

    def _settle(self, connection: Connection, job_id: int) -> None:
        connection.execute(
            sa.update(needed_decision)
            .where(needed_decision.c.job_id == job_id, needed_decision.c.settled_at.is_(None))
            .values(settled_at=self._database.now)
        )

    def _go_back(self, connection: Connection, job_id: int, state: JobState, cause: str, actor: str) -> None:
        """Send a job back to a state, and open what outputs have opened that were accepted meanwhile."""
        self._move(connection, job_id, JobState.NEEDS_DECISION, state, cause=cause, actor=actor)
        if state is JobState.EXTRACTING:
            self._pass_parse(connection, job_id, actor)
        elif state is JobState.VALIDATING:
            self._pass_validation(connection, job_id, actor)
        elif state is JobState.EXECUTING:
            complete_published(connection, self._database.now, job_id, actor=actor)
        self._stages.advance(connection, job_id, actor)

    def _pass_parse(self, connection: Connection, job_id: int, actor: str) -> None:
        output = self._newest_output(connection, job_id, Stage.PARSE)
        if output is not None:
            parsed = json.loads(output)
            connection.execute(
                sa.update(job)
                .where(job.c.job_id == job_id)
                .values(canonical_digest=parsed.get("canonical_digest"), spec_format=parsed.get("format"))
            )
            self._move(connection, job_id, JobState.EXTRACTING, JobState.RETRIEVING, cause="parsed", actor=actor)

    def _pass_validation(self, connection: Connection, job_id: int, actor: str) -> None:
        proposed = sa.exists().where(
            action.c.job_id == action_set.c.job_id,
            action.c.action_set_digest == action_set.c.digest,
            action.c.state == ActionState.PROPOSED.value,
        )
        digest = connection.execute(
            sa.select(action_set.c.digest).where(action_set.c.job_id == job_id, proposed)
        ).scalar_one_or_none()
        if digest is not None:
            connection.execute(
                sa.update(job).where(job.c.job_id == job_id).values(action_set_digest=digest, validation_passed=True)
            )
            self._move(
                connection, job_id, JobState.VALIDATING, JobState.AWAITING_CONFIRMATION, cause="validated", actor=actor
            )

    def _validate_again(self, connection: Connection, job_id: int, state: JobState, cause: str, actor: str) -> None:
        """Send a migrated job back; what an earlier validation found, and asked to be confirmed, holds no more."""
        if state is JobState.AWAITING_CONFIRMATION:
            give_up_actions(connection, self._database.now, job_id, _MIGRATED, actor)
            connection.execute(sa.update(job).where(job.c.job_id == job_id).values(action_set_digest=None))
            state = JobState.VALIDATING
        if state is JobState.VALIDATING and self._newest_output(connection, job_id, Stage.VALIDATE) is not None:
            give_up_actions(connection, self._database.now, job_id, _MIGRATED, actor)
            version = sa.select(sa.func.max(work_item.c.stage_version)).where(
                work_item.c.job_id == job_id, work_item.c.stage == Stage.VALIDATE.value
            )
            newest = connection.execute(version).scalar_one()
            self._stages.open_validation_again(connection, job_id, newest + 1)
        self._go_back(connection, job_id, state, cause, actor)

    def _newest_output(self, connection: Connection, job_id: int, stage: Stage) -> str | None:
        row = connection.execute(
            sa.select(work_item.c.output)
            .where(work_item.c.job_id == job_id, work_item.c.stage == stage.value)
            .order_by(work_item.c.stage_version.desc())
            .limit(1)
        ).first()
        return None if row is None else row.output

    def _move(
        self, connection: Connection, job_id: int, before: JobState, after: JobState, *, cause: str, actor: str
    ) -> None:
        now = self._database.now
        connection.execute(sa.update(job).where(job.c.job_id == job_id).values(state=after, updated_at=now))
        log_job(connection, now, job_id, before, after, cause=cause[:_LONGEST_CAUSE], actor=actor)


def _is_same(row: sa.Row[Any], found: Incompatibility) -> bool:
    """Return whether a job needs a decision for what was decided before; a provider's word is new each time."""
    return found.part is not Part.REPORTED_MODEL and (row.part, row.was) == (found.part.value, found.was)


def _cause(what: str, reason: str | None) -> str:
    return f"{what}: {reason}" if reason else what
