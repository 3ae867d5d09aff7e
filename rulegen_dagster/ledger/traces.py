"""Traces: where submissions and attempts stand in a trace, as W3C `traceparent`; nothing reads them to decide."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from rulegen_dagster.domain.work import Claim
from rulegen_dagster.ledger.database import Database
from rulegen_dagster.ledger.schema import attempt, attempt_trace, job, job_trace


@dataclass(frozen=True, kw_only=True)
class SubmissionTrace:
    """Where a job's submission stands, and how long ago that was (ms)."""

    traceparent: str
    age_ms: int


@dataclass(frozen=True, kw_only=True)
class EarlierAttempt:
    """The last attempt at an item before another; `traceparent` is None where it was not traced."""

    worker: str
    traceparent: str | None


class Traces:
    """Reads and writes the places of submissions and attempts."""

    def __init__(self, database: Database) -> None:
        """Work on the given database."""
        self._database = database

    def of_jobs(self, job_ids: Collection[int]) -> dict[int, SubmissionTrace]:
        """Return the places of those submissions that were traced."""
        query = sa.select(
            job_trace.c.job_id, job_trace.c.traceparent, (self._database.now - job_trace.c.at).label("age_ms")
        ).where(job_trace.c.job_id.in_(sorted(job_ids)))
        with self._database.read() as connection:
            rows = connection.execute(query).all()
        return {row.job_id: SubmissionTrace(traceparent=row.traceparent, age_ms=row.age_ms) for row in rows}

    def of_partitions(self, job_keys: Collection[str]) -> dict[str, str]:
        """Return the places of those submissions that were traced, by the partition keys of their jobs."""
        query = (
            sa.select(job.c.partition_key, job_trace.c.traceparent)
            .join(job_trace, job_trace.c.job_id == job.c.job_id)
            .where(job.c.partition_key.in_(sorted(job_keys)))
        )
        with self._database.read() as connection:
            return {row.partition_key: row.traceparent for row in connection.execute(query)}

    def note(self, places: Sequence[tuple[str, str]]) -> None:
        """Write where attempts stand, as pairs of token and `traceparent`, in one transaction."""
        rows = [{"token": token, "traceparent": traceparent} for token, traceparent in places]
        with self._database.write() as connection:
            connection.execute(sa.insert(attempt_trace), rows)

    def before(self, claim: Claim) -> EarlierAttempt | None:
        """Return the attempt at the claim's item before it."""
        key = claim.key
        query = (
            sa.select(attempt.c.worker, attempt_trace.c.traceparent)
            .outerjoin(attempt_trace, attempt_trace.c.token == attempt.c.token)
            .where(
                attempt.c.job_id == key.job_id,
                attempt.c.stage == key.stage.value,
                attempt.c.item_key == key.item_key,
                attempt.c.stage_version == key.stage_version,
                attempt.c.attempt < claim.attempt,
            )
            .order_by(attempt.c.attempt.desc())
            .limit(1)
        )
        with self._database.read() as connection:
            row = connection.execute(query).first()
        return None if row is None else EarlierAttempt(worker=row.worker, traceparent=row.traceparent)
