"""Open stages: where work can be claimed now, as what plans the next runs needs to know it."""

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from rulegen_dagster.domain.identity import JobName
from rulegen_dagster.domain.states import JOB_STATE_OF_STAGE, Stage, WorkState
from rulegen_dagster.ledger.schema import attempt, job, transition, work_item


@dataclass(frozen=True, kw_only=True)
class OpenStage:
    """A stage of a job with items that can be claimed now; `partition_keys` are theirs, in document order.

    `revision` counts the job's transitions, `live_leases` the stage's items that a worker holds, and `last_run_id` is
    the Dagster run of the stage's latest attempt.
    """

    job_id: int
    name: JobName
    job_partition_key: str
    stage: Stage
    partition_keys: tuple[str, ...]
    revision: int
    live_leases: int
    last_run_id: str | None


def open_stages(connection: sa.Connection, now: sa.ColumnElement[int]) -> list[OpenStage]:
    """Return the stages that have items to claim now, oldest job first."""
    in_stage = sa.or_(
        *(
            sa.and_(work_item.c.stage == stage.value, job.c.state == state.value)
            for stage, state in JOB_STATE_OF_STAGE.items()
        )
    )
    claimable = sa.or_(
        work_item.c.state == WorkState.PENDING.value,
        sa.and_(work_item.c.state == WorkState.WAITING.value, work_item.c.next_attempt_at <= now),
        sa.and_(work_item.c.state == WorkState.RUNNING.value, work_item.c.lease_until <= now),
    )
    rows = connection.execute(
        sa.select(
            work_item.c.job_id,
            job.c.tenant,
            job.c.submission_key,
            job.c.partition_key.label("job_partition_key"),
            work_item.c.stage,
            work_item.c.partition_key,
        )
        .join(job, job.c.job_id == work_item.c.job_id)
        .where(_is_open(), in_stage, claimable)
        .order_by(work_item.c.job_id, work_item.c.stage, work_item.c.ordinal)
    ).all()
    groups: dict[tuple[int, str], list[sa.Row[Any]]] = {}
    for row in rows:
        groups.setdefault((row.job_id, row.stage), []).append(row)
    revision_of = revisions(connection, {job_id for job_id, _ in groups})
    return [
        OpenStage(
            job_id=job_id,
            name=JobName(tenant=group[0].tenant, submission_key=group[0].submission_key),
            job_partition_key=group[0].job_partition_key,
            stage=Stage(stage),
            partition_keys=tuple(row.partition_key for row in group if row.partition_key),
            revision=revision_of[job_id],
            live_leases=_live_leases(connection, now, job_id, stage),
            last_run_id=_last_run_id(connection, job_id, stage),
        )
        for (job_id, stage), group in groups.items()
    ]


def revisions(connection: sa.Connection, job_ids: set[int]) -> dict[int, int]:
    """Return the number of each job's last transition."""
    rows = connection.execute(
        sa.select(transition.c.job_id, sa.func.max(transition.c.transition_id))
        .where(transition.c.job_id.in_(sorted(job_ids)))
        .group_by(transition.c.job_id)
    )
    return {job_id: int(last) for job_id, last in rows}


def _live_leases(connection: sa.Connection, now: sa.ColumnElement[int], job_id: int, stage: str) -> int:
    return int(
        connection.execute(
            sa.select(sa.func.count()).where(
                _is_open(),
                work_item.c.job_id == job_id,
                work_item.c.stage == stage,
                work_item.c.state == WorkState.RUNNING.value,
                work_item.c.lease_until > now,
            )
        ).scalar_one()
    )


def _is_open() -> sa.ColumnElement[bool]:
    # Literals, so that the partial index of open items applies.
    return work_item.c.state.in_(
        [sa.literal_column("'pending'"), sa.literal_column("'running'"), sa.literal_column("'waiting'")]
    )


def _last_run_id(connection: sa.Connection, job_id: int, stage: str) -> str | None:
    return connection.execute(
        sa.select(attempt.c.dagster_run_id)
        .where(attempt.c.job_id == job_id, attempt.c.stage == stage, attempt.c.dagster_run_id.is_not(None))
        .order_by(attempt.c.started_at.desc())
        .limit(1)
    ).scalar_one_or_none()
