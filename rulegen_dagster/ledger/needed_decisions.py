"""Needed decisions, read: why a job cannot go on without one, what was decided, and which models were reported."""

from dataclasses import dataclass

import sqlalchemy as sa

from rulegen_dagster.domain.behaviour import Choice, Incompatibility, Part
from rulegen_dagster.domain.states import AttemptOutcome, JobState
from rulegen_dagster.ledger.behaviour_schema import job_behaviour, needed_decision
from rulegen_dagster.ledger.database import Database
from rulegen_dagster.ledger.schema import attempt, job

_HAS_ANSWERED = (AttemptOutcome.ACCEPTED.value, AttemptOutcome.INVALID_OUTPUT.value, AttemptOutcome.STALE.value)
"""Outcomes of attempts whose model is the provider's own word; the others repeat what was asked for."""

_UNREADABLE = "answer_unreadable"
"""The code of an answer that was none, so that it named no model either."""


@dataclass(frozen=True, kw_only=True)
class NeededDecision:
    """Why a job cannot go on without a decision, from which state, and what was decided so far; times in ms.

    `decision` is set before it is carried out where a job is retained for a release that is not here.
    """

    incompatibility: Incompatibility
    from_state: JobState
    asked_by: str
    asked_at: int
    decision: Choice | None
    decided_by: str | None
    decided_at: int | None
    reason: str | None
    settled_at: int | None


def decisions_of_job(database: Database, job_id: int) -> tuple[NeededDecision, ...]:
    """Return every decision that a job ever needed, in order; the last one is the current one."""
    query = sa.select(needed_decision).where(needed_decision.c.job_id == job_id).order_by(needed_decision.c.number)
    with database.read() as connection:
        return tuple(map(_record, connection.execute(query)))


def retained_jobs(database: Database) -> tuple[int, ...]:
    """Return the numbers of the jobs that wait for a release that honours them, oldest first."""
    query = (
        sa.select(job.c.job_id)
        .join(needed_decision, needed_decision.c.job_id == job.c.job_id)
        .where(
            job.c.state == JobState.NEEDS_DECISION.value,
            needed_decision.c.settled_at.is_(None),
            needed_decision.c.decision == Choice.RETAIN.value,
        )
        .order_by(job.c.job_id)
    )
    with database.read() as connection:
        return tuple(connection.execute(query).scalars())


def reported_models(database: Database, job_id: int) -> tuple[str, ...]:
    """Return the models that the provider reported under the job's present behaviour, in the order of appearance.

    Derived from the attempts alone, so that no crash can lose a change of them.
    """
    changed_at = sa.select(sa.func.max(job_behaviour.c.at)).where(job_behaviour.c.job_id == job_id)
    first = sa.func.min(attempt.c.ended_at)
    query = (
        sa.select(attempt.c.model_id)
        .where(
            attempt.c.job_id == job_id,
            attempt.c.provider_called,
            attempt.c.model_id.is_not(None),
            attempt.c.outcome.in_(_HAS_ANSWERED),
            attempt.c.error_code.is_distinct_from(_UNREADABLE),
            attempt.c.started_at > sa.func.coalesce(changed_at.scalar_subquery(), -1),
        )
        .group_by(attempt.c.model_id)
        .order_by(first, attempt.c.model_id)
    )
    with database.read() as connection:
        return tuple(connection.execute(query).scalars())


def _record(row: sa.Row[tuple[object, ...]]) -> NeededDecision:
    return NeededDecision(
        incompatibility=Incompatibility(part=Part(row.part), was=row.was, now=row.now),
        from_state=JobState(row.from_state),
        asked_by=row.asked_by,
        asked_at=row.asked_at,
        decision=Choice(row.decision) if row.decision else None,
        decided_by=row.decided_by,
        decided_at=row.decided_at,
        reason=row.reason,
        settled_at=row.settled_at,
    )
