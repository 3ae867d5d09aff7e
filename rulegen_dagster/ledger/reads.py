"""Reads: what the ledger holds, as values. Nothing here writes."""

import json
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from rulegen_dagster.domain.clause import Clause, ClauseKind, ClauseRole
from rulegen_dagster.domain.deadline import DeadlinePolicy
from rulegen_dagster.domain.errors import JobNotFoundError
from rulegen_dagster.domain.identity import JobName
from rulegen_dagster.domain.refusal import Refusal, refusals_from_json
from rulegen_dagster.domain.states import ActionState, AttemptOutcome, JobState, Stage, WorkState
from rulegen_dagster.domain.work import WorkKey
from rulegen_dagster.ledger.attempts import AttemptRecord, attempt_record
from rulegen_dagster.ledger.database import Database
from rulegen_dagster.ledger.open_stages import OpenStage, is_newest, open_stages, revisions
from rulegen_dagster.ledger.schema import (
    action,
    action_set,
    attempt,
    behaviour,
    clause,
    job,
    submission,
    work_item,
)
from rulegen_dagster.ledger.unused_calls import UnusedCalls, unused_calls


@dataclass(frozen=True, kw_only=True)
class JobRecord:
    """One job as the ledger holds it; digests name blobs."""

    job_id: int
    name: JobName
    partition_key: str
    ruleset: str
    state: JobState
    file_name: str
    size_bytes: int
    spec_digest: str
    canonical_digest: str | None
    spec_format: str | None
    behaviour_digest: str
    behaviour: dict[str, Any]
    validation_passed: bool | None
    action_set_digest: str | None
    predecessor: JobName | None
    end_reason: str | None
    deadline_at: int | None
    created_at: int
    updated_at: int


@dataclass(frozen=True, kw_only=True)
class ItemRecord:
    """One work item with its output, if it has one; `lease_until` and `next_attempt_at` in ms.

    `repair` is what the next attempt, or the one in flight, shall mend of a refused draft.
    """

    key: WorkKey
    ordinal: int
    clause_ordinal: int | None
    partition_key: str | None
    state: WorkState
    attempts: int
    attempt_limit: int
    worker: str | None
    lease_until: int | None
    next_attempt_at: int | None
    output: str | None
    output_digest: str | None
    error_code: str | None
    error_message: str | None
    repair: tuple[Refusal, ...]


@dataclass(frozen=True, kw_only=True)
class ActionRecord:
    """One action of a job's action set; `worker` and `lease_until` (ms) while a publisher holds it."""

    action_key: str
    kind: str
    state: str
    receipt: dict[str, Any] | None
    error_code: str | None
    worker: str | None
    lease_until: int | None
    updated_at: int


_PREDECESSOR = job.alias("predecessor")


class Reads:
    """Queries over one database."""

    def __init__(self, database: Database, deadlines: DeadlinePolicy) -> None:
        """Read from the given database; `deadlines` says which jobs have no time left for their open items."""
        self._database = database
        self._deadlines = deadlines

    def now(self) -> int:
        """Return the ledger's clock, in ms."""
        with self._database.read() as connection:
            return int(connection.execute(sa.select(self._database.now)).scalar_one())

    def job(self, name: JobName) -> JobRecord:
        """Return a job by its outward name. Raises `JobNotFoundError`."""
        found = self._jobs(job.c.tenant == name.tenant, job.c.submission_key == name.submission_key)
        if not found:
            raise JobNotFoundError(f"there is no job '{name}'; 'rulegen list' shows the tenant's jobs")
        return found[0]

    def job_by_partition(self, partition_key: str) -> JobRecord | None:
        """Return the job behind a key of the `jobs` partition set, or None."""
        found = self._jobs(job.c.partition_key == partition_key)
        return found[0] if found else None

    def job_by_id(self, job_id: int) -> JobRecord:
        """Return a job by the ledger's number."""
        return self._jobs(job.c.job_id == job_id)[0]

    def jobs(self, *, tenant: str | None = None, states: tuple[JobState, ...] | None = None) -> list[JobRecord]:
        """Return jobs, oldest first, of one tenant or all, in some states or any."""
        conditions: list[sa.ColumnElement[bool]] = []
        if tenant is not None:
            conditions.append(job.c.tenant == tenant)
        if states is not None:
            conditions.append(job.c.state.in_([state.value for state in states]))
        return self._jobs(*conditions)

    def stage_counts(self, job_id: int) -> dict[Stage, dict[WorkState, int]]:
        """Return how many items each stage has in each state; every stage and state is present, an item counts once."""
        counts = {stage: dict.fromkeys(WorkState, 0) for stage in Stage}
        with self._database.read() as connection:
            for row in connection.execute(
                sa.select(work_item.c.stage, work_item.c.state, sa.func.count())
                .where(work_item.c.job_id == job_id, is_newest())
                .group_by(work_item.c.stage, work_item.c.state)
            ):
                counts[Stage(row[0])][WorkState(row[1])] = row[2]
        return counts

    def provider_calls(self, job_id: int, *, worker: str | None = None) -> int:
        """Return how many attempts of the job, or of one worker at it, called a provider.

        A lost attempt counts as a call.
        """
        query = sa.select(sa.func.count()).where(attempt.c.job_id == job_id, attempt.c.provider_called)
        if worker is not None:
            query = query.where(attempt.c.worker == worker)
        with self._database.read() as connection:
            return int(connection.execute(query).scalar_one())

    def unused_calls(self, job_id: int, *, limit: int) -> UnusedCalls:
        """Return the provider calls that were paid for, or may have been, and whose output was not used."""
        with self._database.read() as connection:
            return unused_calls(connection, job_id, limit=limit)

    def items(self, job_id: int, stage: Stage, item_key: str | None = None) -> list[ItemRecord]:
        """Return a stage's items in document order, or the one of a key; each in its newest version alone."""
        chosen = [work_item.c.job_id == job_id, work_item.c.stage == stage.value]
        return self._items(*chosen, *([work_item.c.item_key == item_key] if item_key is not None else ()))

    def items_by_partition(self, stage: Stage, partition_keys: tuple[str, ...]) -> dict[str, ItemRecord]:
        """Return the items behind keys of the `rules` partition set; a key without an item is absent."""
        found: dict[str, ItemRecord] = {}
        # Both databases limit the parameters of one statement; 500 stays far below either limit.
        for start in range(0, len(partition_keys), 500):
            part = partition_keys[start : start + 500]
            for item in self._items(work_item.c.stage == stage.value, work_item.c.partition_key.in_(part)):
                found[str(item.partition_key)] = item
        return found

    def attempts(self, job_id: int, item: WorkKey | None = None) -> list[AttemptRecord]:
        """Return every attempt of a job, or of one of its items, in the order in which they began."""
        chosen = [attempt.c.job_id == job_id]
        if item is not None:
            chosen += [
                attempt.c.stage == item.stage.value,
                attempt.c.item_key == item.item_key,
                attempt.c.stage_version == item.stage_version,
            ]
        with self._database.read() as connection:
            rows = connection.execute(
                sa.select(attempt)
                .where(*chosen)
                .order_by(attempt.c.started_at, attempt.c.stage, attempt.c.item_key, attempt.c.attempt)
            ).all()
        return [attempt_record(row) for row in rows]

    def accepted_attempts(self, job_ids: set[int]) -> dict[WorkKey, AttemptRecord]:
        """Return the attempt behind each accepted output of some jobs."""
        with self._database.read() as connection:
            rows = connection.execute(
                sa.select(attempt).where(
                    attempt.c.job_id.in_(sorted(job_ids)), attempt.c.outcome == AttemptOutcome.ACCEPTED.value
                )
            ).all()
        return {record.key: record for record in map(attempt_record, rows)}

    def clauses(self, job_id: int) -> list[Clause]:
        """Return a job's clauses in document order."""
        with self._database.read() as connection:
            rows = connection.execute(
                sa.select(clause).where(clause.c.job_id == job_id).order_by(clause.c.ordinal)
            ).all()
        return [
            Clause(
                ordinal=row.ordinal,
                start=row.start,
                end=row.end,
                text=row.text,
                kind=ClauseKind(row.kind),
                heading_path=tuple(json.loads(row.heading_path)),
                label=row.label,
                lead=row.lead,
                table_header=tuple(json.loads(row.table_header)),
                content_hash=row.content_hash,
                context_hash=row.context_hash,
                role=ClauseRole(row.role),
                role_reason=row.role_reason,
            )
            for row in rows
        ]

    def actions(self, job_id: int) -> list[ActionRecord]:
        """Return a job's actions."""
        with self._database.read() as connection:
            rows = connection.execute(
                sa.select(action).where(action.c.job_id == job_id).order_by(action.c.action_key)
            ).all()
        return [
            ActionRecord(
                action_key=row.action_key,
                kind=row.kind,
                state=row.state,
                receipt=json.loads(row.receipt) if row.receipt else None,
                error_code=row.error_code,
                worker=row.worker,
                lease_until=row.lease_until,
                updated_at=row.updated_at,
            )
            for row in rows
        ]

    def action_set(self, job_id: int, digest: str) -> str:
        """Return an action set's canonical JSON."""
        with self._database.read() as connection:
            return str(
                connection.execute(
                    sa.select(action_set.c.content).where(action_set.c.job_id == job_id, action_set.c.digest == digest)
                ).scalar_one()
            )

    def open_stages(self) -> list[OpenStage]:
        """Return the stages that have items to claim now, oldest job first."""
        with self._database.read() as connection:
            return open_stages(connection, self._database.now, self._deadlines)

    def publishable_jobs(self) -> list[JobRecord]:
        """Return the jobs with an action that a publisher can claim now: confirmed, unknown, or its executor lost."""
        lost = sa.and_(action.c.state == ActionState.EXECUTING.value, action.c.lease_until <= self._database.now)
        waiting = action.c.state.in_([ActionState.CONFIRMED.value, ActionState.UNKNOWN.value])
        claimable = sa.exists().where(action.c.job_id == job.c.job_id, sa.or_(waiting, lost))
        return self._jobs(job.c.state == JobState.EXECUTING.value, claimable)

    def rule_partition_keys(self, job_id: int) -> tuple[str, ...]:
        """Return a job's keys of the `rules` partition set, in document order, without reading any output."""
        of_rules = (
            sa.select(work_item.c.partition_key)
            .where(work_item.c.job_id == job_id, work_item.c.stage == Stage.GENERATE_RULES.value)
            .order_by(work_item.c.ordinal)
        )
        with self._database.read() as connection:
            return tuple(map(str, connection.execute(of_rules).scalars()))

    def revision(self, job_id: int) -> int:
        """Return the number of the job's last transition; it grows with every change."""
        with self._database.read() as connection:
            return revisions(connection, {job_id}).get(job_id, 0)

    def _jobs(self, *conditions: sa.ColumnElement[bool]) -> list[JobRecord]:
        with self._database.read() as connection:
            rows = connection.execute(
                sa.select(
                    job,
                    submission.c.file_name,
                    submission.c.size_bytes,
                    behaviour.c.content.label("behaviour"),
                    _PREDECESSOR.c.tenant.label("predecessor_tenant"),
                    _PREDECESSOR.c.submission_key.label("predecessor_key"),
                )
                .join(
                    submission,
                    sa.and_(job.c.tenant == submission.c.tenant, job.c.submission_key == submission.c.submission_key),
                )
                .join(behaviour, behaviour.c.digest == job.c.behaviour_digest)
                .join(_PREDECESSOR, _PREDECESSOR.c.job_id == job.c.predecessor_job_id, isouter=True)
                .where(*conditions)
                .order_by(job.c.job_id)
            ).all()
        return [_job_record(row) for row in rows]

    def _items(self, *conditions: sa.ColumnElement[bool]) -> list[ItemRecord]:
        with self._database.read() as connection:
            rows = connection.execute(
                sa.select(work_item).where(*conditions, is_newest()).order_by(work_item.c.job_id, work_item.c.ordinal)
            ).all()
        return [
            ItemRecord(
                key=WorkKey(
                    job_id=row.job_id, stage=Stage(row.stage), item_key=row.item_key, stage_version=row.stage_version
                ),
                ordinal=row.ordinal,
                clause_ordinal=row.clause_ordinal,
                partition_key=row.partition_key,
                state=WorkState(row.state),
                attempts=row.attempts,
                attempt_limit=row.attempt_limit,
                worker=row.worker,
                lease_until=row.lease_until,
                next_attempt_at=row.next_attempt_at,
                output=row.output,
                output_digest=row.output_digest,
                error_code=row.error_code,
                error_message=row.error_message,
                repair=refusals_from_json(row.repair),
            )
            for row in rows
        ]


def _job_record(row: sa.Row[Any]) -> JobRecord:
    predecessor = None
    if row.predecessor_key is not None:
        predecessor = JobName(tenant=row.predecessor_tenant, submission_key=row.predecessor_key)
    return JobRecord(
        job_id=row.job_id,
        name=JobName(tenant=row.tenant, submission_key=row.submission_key),
        partition_key=row.partition_key,
        ruleset=row.ruleset,
        state=JobState(row.state),
        file_name=row.file_name,
        size_bytes=row.size_bytes,
        spec_digest=row.spec_digest,
        canonical_digest=row.canonical_digest,
        spec_format=row.spec_format,
        behaviour_digest=row.behaviour_digest,
        behaviour=json.loads(row.behaviour),
        validation_passed=row.validation_passed,
        action_set_digest=row.action_set_digest,
        predecessor=predecessor,
        end_reason=row.end_reason,
        deadline_at=row.deadline_at,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )
