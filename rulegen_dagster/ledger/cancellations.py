"""Cancellations: a person ends a job; whatever of it is unfinished ends in the same transaction.

Accepted outputs stay. An item in flight loses its token and lease, so no completion can land any more; its worker
finds out by `withdrawn`, or when it reports, and what the call cost is then kept on its attempt.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from rulegen_dagster.domain.errors import StateError
from rulegen_dagster.domain.failpoints import CANCELLATION
from rulegen_dagster.domain.states import TERMINAL_JOB_STATES, JobState
from rulegen_dagster.domain.work import Claim
from rulegen_dagster.ledger.database import Database, again_after_conflicts
from rulegen_dagster.ledger.endings import Ending, end_job, publication_was_begun
from rulegen_dagster.ledger.schema import job, work_item

_CANCELLED = Ending(state=JobState.CANCELLED, cause="cancelled", code="job_cancelled")


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

    @again_after_conflicts
    def cancel(self, job_id: int, *, actor: str, reason: str) -> Cancellation:
        """End a job as cancelled, with its unfinished items and its actions that nobody has begun.

        Raises `StateError` for a job that has ended, and for one whose publication was begun: its effect may be there
        already, and is reconciled, not given up.
        """
        with self._database.write([CANCELLATION]) as connection:
            # The job first, then its items: the order in which completions lock, so that neither waits for the other.
            state = JobState(
                connection.execute(
                    sa.select(job.c.state).where(job.c.job_id == job_id).with_for_update(key_share=True)
                ).scalar_one()
            )
            if state in TERMINAL_JOB_STATES:
                raise StateError(f"the job is {state}; a job that has ended cannot be cancelled")
            if publication_was_begun(connection, job_id):
                raise StateError(
                    "the publication was begun, and its effect may be there; the next publisher goes on with it"
                )
            ended = end_job(connection, self._database, job_id, state, _CANCELLED, actor=actor, reason=reason)
            return Cancellation(items=ended.items, in_flight=ended.in_flight)

    def withdrawn(self, claims: Sequence[Claim]) -> frozenset[str]:
        """Return the tokens of the claims whose items are no longer theirs: cancelled, or taken over.

        One read without a lock, cheap enough to repeat while calls are in flight.
        """
        tokens = frozenset(claim.token for claim in claims)
        with self._database.read() as connection:
            held = connection.execute(sa.select(work_item.c.token).where(work_item.c.token.in_(sorted(tokens))))
            return tokens - frozenset(held.scalars())
