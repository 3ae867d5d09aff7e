"""Retention: which content of jobs that ended long ago was removed, and what may go next.

A row says first, for good, that a job's content is removed; only then is it, by the collection of files that no row
names any more. A process that is lost between the two leaves files that the next collection finds. Content that
another job still needs stays where it is. Digests, clauses, accepted outputs and behaviours are never touched.
"""

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rulegen_dagster.domain.identity import JobName
from rulegen_dagster.domain.retention import ContentKind
from rulegen_dagster.domain.states import TERMINAL_JOB_STATES
from rulegen_dagster.ledger.behaviour_schema import behaviour_prompt, prompt
from rulegen_dagster.ledger.database import Database, again_after_conflicts
from rulegen_dagster.ledger.schema import job, removed_content

_JOBS_PER_TRANSACTION = 200


@dataclass(frozen=True, kw_only=True)
class JobContent:
    """One kind of content of one job."""

    job_id: int
    job: JobName
    kind: ContentKind


class Retention:
    """Marks content as removed, and tells what was."""

    def __init__(self, database: Database) -> None:
        """Work on the given database."""
        self._database = database

    def due(self, *, ended_before: int) -> tuple[JobContent, ...]:
        """Return the uploads and texts of jobs that ended before a time (ms on the ledger's clock), still there."""
        with self._database.read() as connection:
            return tuple(_due(connection, ended_before, limit=None))

    @again_after_conflicts
    def mark(self, *, ended_before: int, actor: str) -> tuple[JobContent, ...]:
        """Mark as removed what is due of the next jobs, in one transaction; nothing is left where this is empty."""
        with self._database.write() as connection:
            jobs = {content.job_id for content in _due(connection, ended_before, limit=_JOBS_PER_TRANSACTION)}
            # A successor that is being opened takes the content over first, or finds that it is gone.
            locked = sa.select(job.c.job_id).where(job.c.job_id.in_(jobs)).order_by(job.c.job_id).with_for_update()
            connection.execute(locked).all()
            still_due = _due(connection, ended_before, limit=_JOBS_PER_TRANSACTION)
            return self._insert(connection, [content for content in still_due if content.job_id in jobs], actor)

    @again_after_conflicts
    def mark_prompts(self, *, ended_before: int, actor: str) -> tuple[JobContent, ...]:
        """Mark the prompts of jobs that ended before then, where none of their texts is there any more."""
        named = behaviour_prompt.c.behaviour_digest == job.c.behaviour_digest
        left = sa.exists().where(
            named, prompt.c.digest == behaviour_prompt.c.prompt_digest, prompt.c.content.is_not(None)
        )
        query = (
            sa.select(job.c.job_id, job.c.tenant, job.c.submission_key)
            .where(
                ended(ended_before),
                sa.exists().where(named),
                ~left,
                ~is_removed(ContentKind.PROMPTS),
            )
            .order_by(job.c.job_id)
        )
        with self._database.write() as connection:
            found = [_content(row, ContentKind.PROMPTS) for row in connection.execute(query)]
            return self._insert(connection, found, actor)

    def removed(self, job_id: int) -> dict[ContentKind, int]:
        """Return which content of a job was removed, and when (ms)."""
        query = sa.select(removed_content.c.kind, removed_content.c.removed_at).where(
            removed_content.c.job_id == job_id
        )
        with self._database.read() as connection:
            return {ContentKind(row.kind): row.removed_at for row in connection.execute(query.order_by("kind"))}

    def _insert(self, connection: Connection, found: list[JobContent], actor: str) -> tuple[JobContent, ...]:
        for content in found:
            values = {"job_id": content.job_id, "kind": content.kind.value, "actor": actor}
            connection.execute(sa.insert(removed_content).values(removed_at=self._database.now, **values))
        return tuple(found)


def ended(before: int) -> sa.ColumnElement[bool]:
    """Return the condition that a job ended before a time; an ended job never changes again."""
    return sa.and_(job.c.state.in_(sorted(state.value for state in TERMINAL_JOB_STATES)), job.c.updated_at < before)


def is_removed(kind: ContentKind) -> sa.ColumnElement[bool]:
    """Return the condition that a kind of a job's content is marked as removed."""
    return sa.exists().where(removed_content.c.job_id == job.c.job_id, removed_content.c.kind == kind.value)


def _due(connection: Connection, ended_before: int, *, limit: int | None) -> list[JobContent]:
    there = {
        ContentKind.UPLOAD: ~is_removed(ContentKind.UPLOAD),
        ContentKind.CANONICAL_TEXT: sa.and_(
            job.c.canonical_digest.is_not(None), ~is_removed(ContentKind.CANONICAL_TEXT)
        ),
    }
    query = (
        sa.select(
            job.c.job_id,
            job.c.tenant,
            job.c.submission_key,
            *(condition.label(kind.value) for kind, condition in there.items()),
        )
        .where(ended(ended_before), sa.or_(*there.values()))
        .order_by(job.c.job_id)
        .limit(limit)
    )
    rows = connection.execute(query).all()
    return [_content(row, kind) for row in rows for kind in there if getattr(row, kind.value)]


def _content(row: sa.Row[tuple[int, str, str]], kind: ContentKind) -> JobContent:
    name = JobName(tenant=row.tenant, submission_key=row.submission_key)
    return JobContent(job_id=row.job_id, job=name, kind=kind)
