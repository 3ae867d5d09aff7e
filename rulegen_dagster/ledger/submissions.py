"""Submissions: one job for one submission key and input, whoever asks and however often."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rulegen_dagster.domain.behaviour import Behaviour, FrozenBehaviour, Pack
from rulegen_dagster.domain.errors import SubmissionConflictError, TenantNotFoundError
from rulegen_dagster.domain.failpoints import INTAKE
from rulegen_dagster.domain.identity import JobName, job_partition_key
from rulegen_dagster.domain.prompt import Prompt
from rulegen_dagster.domain.states import JobState
from rulegen_dagster.ledger.behaviours import keep
from rulegen_dagster.ledger.database import Database, again_after_conflicts
from rulegen_dagster.ledger.schema import job, job_trace, submission, tenant
from rulegen_dagster.ledger.stages import Stages, log_job


@dataclass(frozen=True, kw_only=True)
class Submission:
    """What a client hands in. `input_digest` is the SHA-256 of the upload's bytes, which are stored already.

    `prompts` and `packs` are the texts that the behaviour names. `deadline_ms` counts from when the job is made; None
    makes a job that has no deadline. `traceparent` is where the submission stands in a trace, for all work on the job
    to stand below it.
    """

    name: JobName
    input_digest: str
    file_name: str
    size_bytes: int
    ruleset: str
    behaviour: Behaviour
    prompts: tuple[Prompt, ...] = ()
    packs: tuple[Pack, ...] = ()
    deadline_ms: int | None = None
    traceparent: str | None = None


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """The job of a submission; `existing` tells whether the submission was here before."""

    job_id: int
    existing: bool


class Submissions:
    """Accepts submissions and keeps the list of tenants."""

    def __init__(self, database: Database, stages: Stages) -> None:
        """Create jobs through `stages`."""
        self._database = database
        self._stages = stages

    @again_after_conflicts
    def add_tenant(self, name: str) -> bool:
        """Add a tenant; return False where it exists already."""
        with self._database.write() as connection:
            added = connection.execute(
                _insert(connection, tenant)
                .values(tenant=name, created_at=self._database.now)
                .on_conflict_do_nothing()
                .returning(tenant.c.tenant)
            ).first()
            return added is not None

    def tenants(self) -> tuple[str, ...]:
        """Return every tenant's name, sorted."""
        with self._database.read() as connection:
            return tuple(connection.execute(sa.select(tenant.c.tenant).order_by(tenant.c.tenant)).scalars())

    def check(self, name: JobName, input_digest: str) -> None:
        """Raise what `submit` would raise for this key and input as things stand, and store nothing."""
        with self._database.read() as connection:
            _require_tenant(connection, name)
            taken = connection.execute(
                sa.select(submission.c.input_digest).where(
                    submission.c.tenant == name.tenant, submission.c.submission_key == name.submission_key
                )
            ).scalar_one_or_none()
        if taken is not None:
            _require_same_input(name, taken, input_digest)

    @again_after_conflicts
    def submit(self, request: Submission, *, actor: str) -> Accepted:
        """Create the job with its parse item, or return the one that the same key and input made before.

        One transaction; two clients that race end with one job. Raises `TenantNotFoundError`, and
        `SubmissionConflictError` where the key is taken by another input.
        """
        now = self._database.now
        with self._database.write([INTAKE]) as connection:
            _require_tenant(connection, request.name)
            stored = store_submission(
                connection,
                now,
                request.name,
                input_digest=request.input_digest,
                file_name=request.file_name,
                size_bytes=request.size_bytes,
            )
            if not stored:
                return _existing(connection, request)
            keep(
                connection,
                now,
                FrozenBehaviour(behaviour=request.behaviour, prompts=request.prompts, packs=request.packs),
            )
            return self._create_job(connection, request, actor)

    def _create_job(self, connection: Connection, request: Submission, actor: str) -> Accepted:
        job_id = create_job(
            connection,
            self._database.now,
            request.name,
            ruleset=request.ruleset,
            behaviour_digest=request.behaviour.digest,
            spec_digest=request.input_digest,
            predecessor_job_id=_predecessor(connection, request),
            deadline_ms=request.deadline_ms,
            cause="submitted",
            actor=actor,
        )
        self._stages.open_parse(connection, job_id)
        place_in_trace(connection, self._database.now, job_id, request.traceparent)
        return Accepted(job_id=job_id, existing=False)


def store_submission(
    connection: Connection,
    now: sa.ColumnElement[int],
    name: JobName,
    *,
    input_digest: str,
    file_name: str,
    size_bytes: int,
) -> bool:
    """Store a submission; return False where its key is taken. Of two at once, the second waits for the first."""
    inserted = connection.execute(
        _insert(connection, submission)
        .values(
            tenant=name.tenant,
            submission_key=name.submission_key,
            input_digest=input_digest,
            file_name=file_name,
            size_bytes=size_bytes,
            received_at=now,
        )
        .on_conflict_do_nothing()
        .returning(submission.c.submission_key)
    ).first()
    return inserted is not None


def place_in_trace(connection: Connection, now: sa.ColumnElement[int], job_id: int, traceparent: str | None) -> None:
    """Keep where the submission of a new job stands in a trace, if it does."""
    if traceparent is not None:
        connection.execute(sa.insert(job_trace).values(job_id=job_id, traceparent=traceparent, at=now))


def create_job(
    connection: Connection,
    now: sa.ColumnElement[int],
    name: JobName,
    *,
    ruleset: str,
    behaviour_digest: str,
    spec_digest: str,
    predecessor_job_id: int | None,
    deadline_ms: int | None,
    cause: str,
    actor: str,
) -> int:
    """Create the job of a stored submission and take it to where it is parsed, still without items; return its number.

    Its deadline, if it gets one, counts from now on the ledger's clock.
    """
    job_id: int = connection.execute(
        sa.insert(job)
        .values(
            tenant=name.tenant,
            submission_key=name.submission_key,
            partition_key=job_partition_key(name),
            ruleset=ruleset,
            state=JobState.RECEIVED,
            behaviour_digest=behaviour_digest,
            spec_digest=spec_digest,
            predecessor_job_id=predecessor_job_id,
            deadline_at=None if deadline_ms is None else now + deadline_ms,
            created_at=now,
            updated_at=now,
        )
        .returning(job.c.job_id)
    ).scalar_one()
    steps: tuple[tuple[JobState | None, JobState, str], ...] = (
        (None, JobState.RECEIVED, cause),
        (JobState.RECEIVED, JobState.AUTHORIZED, "tenant_known"),
        (JobState.AUTHORIZED, JobState.EXTRACTING, "parse_opened"),
    )
    for before, after, step_cause in steps:
        if before is not None:
            connection.execute(sa.update(job).where(job.c.job_id == job_id).values(state=after))
        log_job(connection, now, job_id, before, after, cause=step_cause, actor=actor)
    return job_id


def _existing(connection: Connection, request: Submission) -> Accepted:
    found = connection.execute(
        sa.select(submission.c.input_digest, job.c.job_id)
        .join(
            job,
            sa.and_(job.c.tenant == submission.c.tenant, job.c.submission_key == submission.c.submission_key),
        )
        .where(
            submission.c.tenant == request.name.tenant,
            submission.c.submission_key == request.name.submission_key,
        )
    ).one()
    _require_same_input(request.name, found.input_digest, request.input_digest)
    return Accepted(job_id=found.job_id, existing=True)


def _require_tenant(connection: Connection, name: JobName) -> None:
    if not connection.execute(sa.select(tenant.c.tenant).where(tenant.c.tenant == name.tenant)).first():
        raise TenantNotFoundError(
            f"there is no tenant '{name.tenant}'; an operator adds one with 'rulegen tenant add {name.tenant}'"
        )


def _require_same_input(name: JobName, taken_digest: str, input_digest: str) -> None:
    if taken_digest != input_digest:
        raise SubmissionConflictError(
            f"the submission key '{name.submission_key}' of tenant '{name.tenant}' belongs to another input; submit"
            " this one under a new key"
        )


def _predecessor(connection: Connection, request: Submission) -> int | None:
    return connection.execute(
        sa.select(job.c.job_id)
        .join(
            submission,
            sa.and_(job.c.tenant == submission.c.tenant, job.c.submission_key == submission.c.submission_key),
        )
        .where(
            submission.c.tenant == request.name.tenant,
            submission.c.file_name == request.file_name,
            submission.c.submission_key != request.name.submission_key,
        )
        .order_by(job.c.job_id.desc())
        .limit(1)
    ).scalar_one_or_none()


def _insert(connection: Connection, table: sa.Table) -> Any:
    # ON CONFLICT is spelled alike in both dialects but lives in two modules of SQLAlchemy, each slow to import.
    return import_module(f"sqlalchemy.dialects.{connection.dialect.name}").insert(table)
