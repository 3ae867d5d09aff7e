"""Deadlines: jobs that have too little time left expire, and a person may give a job more before that.

Both are one conditional transaction under the job's lock. Of an expiry, a cancellation, a completion and an extension
that meet at the same instant, the one that commits first decides, and the others find the job as it left it.
"""

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rulegen_dagster.domain.deadline import DeadlinePolicy, duration, is_enough, remaining_ms
from rulegen_dagster.domain.errors import StateError
from rulegen_dagster.domain.failpoints import EXPIRY, EXTENSION, Commit
from rulegen_dagster.domain.states import TERMINAL_JOB_STATES, JobState
from rulegen_dagster.domain.text import instant
from rulegen_dagster.ledger.claims import is_in_time
from rulegen_dagster.ledger.database import Database, again_after_conflicts
from rulegen_dagster.ledger.endings import BEGUN, Ending, end_job, publication_was_begun
from rulegen_dagster.ledger.schema import action, job
from rulegen_dagster.ledger.stages import log_job

_EXPIRED = Ending(state=JobState.EXPIRED, cause="deadline_passed", code="deadline_passed")
_LONGEST_CAUSE = 200


@dataclass(frozen=True, kw_only=True)
class Expiry:
    """What an expiry ended: unfinished items, and how many of them were in flight."""

    items: int
    in_flight: int


@dataclass(frozen=True, kw_only=True)
class _Standing:
    state: JobState
    deadline_at: int | None
    now: int


class Deadlines:
    """Expires jobs and moves their deadlines; `policy` says how much has to be left for a job to go on."""

    def __init__(self, database: Database, policy: DeadlinePolicy) -> None:
        """Work on the given database."""
        self._database = database
        self.policy = policy

    def overdue(self) -> tuple[int, ...]:
        """Return the numbers of the jobs that have too little time left, oldest first.

        A job whose publication was begun is not among them: it is finished, however late.
        """
        begun = sa.exists().where(action.c.job_id == job.c.job_id, action.c.state.in_(BEGUN))
        query = (
            sa.select(job.c.job_id)
            .where(
                job.c.state.not_in([state.value for state in TERMINAL_JOB_STATES]),
                ~is_in_time(self._database.now, self.policy),
                ~begun,
            )
            .order_by(job.c.job_id)
        )
        with self._database.read() as connection:
            return tuple(connection.execute(query).scalars())

    @again_after_conflicts
    def expire(self, job_id: int, *, actor: str, wait_ms: int = 0) -> Expiry | None:
        """End a job as expired where too little time is left, or would be left after a wait of `wait_ms`.

        Return None, with nothing changed, where it has ended, has time left or no deadline, or where its publication
        was begun.
        """
        commits: set[Commit] = set()
        with self._database.write(commits) as connection:
            found = self._locked(connection, job_id)
            if found.state in TERMINAL_JOB_STATES or found.deadline_at is None:
                return None
            left = remaining_ms(found.deadline_at, found.now, self.policy.margin_ms)
            if is_enough(left, self.policy, wait_ms=wait_ms) or publication_was_begun(connection, job_id):
                return None
            waiting = f" after a wait of {duration(wait_ms)}" if is_enough(left, self.policy) else ""
            ended = end_job(
                connection,
                self._database,
                job_id,
                found.state,
                _EXPIRED,
                actor=actor,
                reason=f"the deadline, {instant(found.deadline_at)}, left no time for another call{waiting}",
            )
            commits.add(EXPIRY)
            return Expiry(items=ended.items, in_flight=ended.in_flight)

    @again_after_conflicts
    def extend(self, job_id: int, *, by_ms: int, actor: str, reason: str) -> int:
        """Move the deadline of a job that has not ended; return the new one (ms on the ledger's clock).

        It moves by `by_ms` from where it was, or from now where it has passed. Raises `StateError` for a job that has
        ended, and for one that has no deadline.
        """
        commits: set[Commit] = set()
        with self._database.write(commits) as connection:
            found = self._locked(connection, job_id)
            if found.state in TERMINAL_JOB_STATES:
                successor = "" if found.state is JobState.COMPLETED else "; 'rulegen fork' opens its successor"
                raise StateError(
                    f"the job is {found.state}; the deadline of a job that has ended cannot be moved{successor}"
                )
            if found.deadline_at is None:
                raise StateError("the job has no deadline; it goes on without an extension", code="no_deadline")
            deadline_at = max(found.deadline_at, found.now) + by_ms
            connection.execute(
                sa.update(job)
                .where(job.c.job_id == job_id)
                .values(deadline_at=deadline_at, updated_at=self._database.now)
            )
            # The job stays where it is; the row is there for its time, actor and reason.
            log_job(
                connection,
                self._database.now,
                job_id,
                found.state,
                found.state,
                cause=f"extended by {duration(by_ms)}: {reason}"[:_LONGEST_CAUSE],
                actor=actor,
            )
            commits.add(EXTENSION)
            return deadline_at

    def _locked(self, connection: Connection, job_id: int) -> _Standing:
        row = connection.execute(
            sa.select(job.c.state, job.c.deadline_at).where(job.c.job_id == job_id).with_for_update(key_share=True)
        ).one()
        # Asked once the lock is held: the wait for it may have been long.
        now = int(connection.execute(sa.select(self._database.now)).scalar_one())
        return _Standing(state=JobState(row.state), deadline_at=row.deadline_at, now=now)
