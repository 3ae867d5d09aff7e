"""Open stages: where work can be claimed now, as what plans the next runs needs to know it."""

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from rulegen_dagster.domain.deadline import DeadlinePolicy
from rulegen_dagster.domain.identity import JobName
from rulegen_dagster.domain.states import JOB_STATE_OF_STAGE, Stage, WorkState
from rulegen_dagster.ledger.claims import can_be_claimed, is_in_time, is_open
from rulegen_dagster.ledger.schema import attempt, job, transition, work_item


@dataclass(frozen=True, kw_only=True)
class OpenItem:
    """An unfinished item of an open stage.

    `can_be_claimed` is false while a worker holds its lease, or its retry is due later. `last_run_id` is the Dagster
    run of its latest attempt, which began at `last_started_at` (ms).
    """

    item_key: str
    partition_key: str | None
    can_be_claimed: bool
    is_leased: bool
    last_run_id: str | None
    last_started_at: int


@dataclass(frozen=True, kw_only=True)
class OpenStage:
    """The stage that a job is in, with its unfinished items in document order; `revision` counts its transitions."""

    job_id: int
    name: JobName
    job_partition_key: str
    stage: Stage
    items: tuple[OpenItem, ...]
    revision: int


def open_stages(connection: sa.Connection, now: sa.ColumnElement[int], deadlines: DeadlinePolicy) -> list[OpenStage]:
    """Return the stages that have items to claim now, oldest job first."""
    in_stage = sa.or_(
        *(
            sa.and_(work_item.c.stage == stage.value, job.c.state == state.value)
            for stage, state in JOB_STATE_OF_STAGE.items()
        )
    )
    latest = sa.and_(
        *(attempt.c[name] == work_item.c[name] for name in ("job_id", "stage", "item_key", "stage_version")),
        attempt.c.attempt == work_item.c.attempts,
    )
    query = (
        sa.select(
            work_item.c.job_id,
            job.c.tenant,
            job.c.submission_key,
            job.c.partition_key.label("job_partition_key"),
            work_item.c.stage,
            work_item.c.item_key,
            work_item.c.partition_key,
            can_be_claimed(now).label("can_be_claimed"),
            sa.and_(work_item.c.state == WorkState.RUNNING, work_item.c.lease_until > now).label("is_leased"),
            attempt.c.dagster_run_id,
            attempt.c.started_at,
        )
        .join(job, job.c.job_id == work_item.c.job_id)
        .join(attempt, latest, isouter=True)
        .where(is_open(), in_stage, is_in_time(now, deadlines))
        .order_by(work_item.c.job_id, work_item.c.ordinal)
    )
    groups: dict[tuple[int, str], list[sa.Row[Any]]] = {}
    for row in connection.execute(query):
        groups.setdefault((row.job_id, row.stage), []).append(row)
    ready = {key: rows for key, rows in groups.items() if any(row.can_be_claimed for row in rows)}
    revision_of = revisions(connection, {job_id for job_id, _ in ready})
    return [
        OpenStage(
            job_id=job_id,
            name=JobName(tenant=rows[0].tenant, submission_key=rows[0].submission_key),
            job_partition_key=rows[0].job_partition_key,
            stage=Stage(stage),
            items=tuple(map(_open_item, rows)),
            revision=revision_of[job_id],
        )
        for (job_id, stage), rows in ready.items()
    ]


def is_newest() -> sa.ColumnElement[bool]:
    """Return the condition that an item is the newest of its versions: the one that the job's state is about."""
    newer = work_item.alias("newer")
    same = (newer.c[name] == work_item.c[name] for name in ("job_id", "stage", "item_key"))
    return ~sa.exists().where(*same, newer.c.stage_version > work_item.c.stage_version)


def revisions(connection: sa.Connection, job_ids: set[int]) -> dict[int, int]:
    """Return the number of each job's last transition."""
    rows = connection.execute(
        sa.select(transition.c.job_id, sa.func.max(transition.c.transition_id))
        .where(transition.c.job_id.in_(sorted(job_ids)))
        .group_by(transition.c.job_id)
    )
    return {job_id: int(last) for job_id, last in rows}


def _open_item(row: sa.Row[Any]) -> OpenItem:
    return OpenItem(
        item_key=row.item_key,
        partition_key=row.partition_key,
        can_be_claimed=bool(row.can_be_claimed),
        is_leased=bool(row.is_leased),
        last_run_id=row.dagster_run_id,
        last_started_at=row.started_at or 0,
    )
