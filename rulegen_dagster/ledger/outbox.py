"""The outbox: one row for each acceptance, written in its transaction, until its event is in Dagster's log.

An acceptance never waits for that log. Whoever has written an event marks the row afterwards; where a crash came
between the two, the row stays unmirrored and a later look finds the event there, or writes it. A row is never deleted.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.sql.selectable import FromClause

from rulegen_dagster.domain.failpoints import MIRROR, MIRROR_HOLD
from rulegen_dagster.domain.identity import JobName
from rulegen_dagster.domain.states import ActionState, AttemptOutcome, Stage, WorkState
from rulegen_dagster.domain.work import DOCUMENT_ITEM, STAGE_VERSION, Usage, WorkKey
from rulegen_dagster.ledger.batch import batch, rows_of
from rulegen_dagster.ledger.database import Database
from rulegen_dagster.ledger.guarded import Columns
from rulegen_dagster.ledger.schema import action, attempt, job, outbox, work_item


@dataclass(frozen=True, kw_only=True)
class OutboxRow:
    """One row: the Dagster run that accepted the output, if it was one, and whether the event is known to be there."""

    outbox_id: int
    run_id: str | None
    is_mirrored: bool


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """What an event tells of one accepted output; `accepted_at` in ms.

    `partition_key` is the item's own, and the job's where the stage treats the job as a whole. For `publish`, `output`
    is the receipt and `digest` that of the bundle's manifest.
    """

    outbox_id: int
    key: WorkKey
    job: JobName
    partition_key: str
    run_id: str | None
    accepted_at: int
    output: str
    digest: str
    attempt: int
    provider: str | None
    provider_called: bool
    usage: Usage


class Outbox:
    """The rows of the outbox: which are to be mirrored, who mirrors them now, and which are."""

    def __init__(self, database: Database) -> None:
        """Build the statements for the database's dialect."""
        dialect, now = database.dialect, database.now
        self._database = database
        chosen = batch(dialect, "chosen", outbox_id=sa.BigInteger).alias("chosen_rows")
        self._hold = (
            sa.update(outbox)
            .where(
                outbox.c.outbox_id == chosen.c.outbox_id,
                sa.or_(outbox.c.lease_until.is_(None), outbox.c.lease_until <= now),
            )
            .values(lease_until=now + sa.bindparam("lease_ms", type_=sa.BigInteger))
            .returning(outbox.c.outbox_id, outbox.c.lease_until)
        )
        released = batch(dialect, "held", outbox_id=sa.BigInteger, lease_until=sa.BigInteger).alias("held_rows")
        self._release = (
            sa.update(outbox)
            # A lease is never given twice with the same end: the next holder's is later.
            .where(outbox.c.outbox_id == released.c.outbox_id, outbox.c.lease_until == released.c.lease_until)
            .values(lease_until=None)
        )
        self._mark = (
            sa.update(outbox)
            .where(outbox.c.outbox_id == chosen.c.outbox_id, outbox.c.mirrored_at.is_(None))
            .values(mirrored_at=now)
            .returning(outbox.c.outbox_id)
        )
        items = batch(
            dialect, "items", job_id=sa.BigInteger, stage=sa.Text, item_key=sa.Text, stage_version=sa.Integer
        ).alias("mirrored_items")
        self._mark_items = (
            sa.update(outbox)
            .where(
                outbox.c.job_id == items.c.job_id,
                outbox.c.stage == items.c.stage,
                outbox.c.item_key == items.c.item_key,
                outbox.c.stage_version == items.c.stage_version,
                outbox.c.mirrored_at.is_(None),
            )
            .values(mirrored_at=now)
            .returning(outbox.c.outbox_id)
        )
        self._acceptances = _acceptances(chosen)

    def rows(
        self, *, after: int = 0, limit: int, unmirrored: bool = True, besides: Collection[str] = ()
    ) -> list[OutboxRow]:
        """Return at most `limit` rows behind number `after`, oldest first.

        All of them, or only the unmirrored ones. `besides` are Dagster runs whose rows are left out.
        """
        query = sa.select(outbox.c.outbox_id, outbox.c.dagster_run_id, outbox.c.mirrored_at).where(
            outbox.c.outbox_id > after
        )
        if unmirrored:
            query = query.where(outbox.c.mirrored_at.is_(None))
        if besides:
            foreign = outbox.c.dagster_run_id.not_in(sorted(besides))
            query = query.where(sa.or_(outbox.c.dagster_run_id.is_(None), foreign))
        with self._database.read() as connection:
            found = connection.execute(query.order_by(outbox.c.outbox_id).limit(limit)).all()
        return [
            OutboxRow(outbox_id=row.outbox_id, run_id=row.dagster_run_id, is_mirrored=row.mirrored_at is not None)
            for row in found
        ]

    def unmirrored(self) -> int:
        """Return how many rows are not mirrored yet."""
        query = sa.select(sa.func.count()).where(outbox.c.mirrored_at.is_(None)).select_from(outbox)
        with self._database.read() as connection:
            return int(connection.execute(query).scalar_one())

    def hold(self, outbox_ids: Sequence[int], *, lease_ms: int) -> dict[int, int]:
        """Take rows, mirrored or not, for one mirroring process.

        Return those that nobody else holds, each with the end of its lease; a lost holder's lease ends by itself.
        """
        if not outbox_ids:
            return {}
        with self._database.write([MIRROR_HOLD]) as connection:
            held = connection.execute(self._hold, {"chosen": _numbers(outbox_ids), "lease_ms": lease_ms})
            return {row.outbox_id: row.lease_until for row in held}

    def acceptances(self, outbox_ids: Sequence[int]) -> list[Acceptance]:
        """Return what the events of these rows tell, oldest row first."""
        with self._database.read() as connection:
            found = connection.execute(self._acceptances, {"chosen": _numbers(outbox_ids)}).all()
        return [_acceptance(row) for row in found]

    def mirrored(self, outbox_ids: Sequence[int], *, held: Mapping[int, int] | None = None) -> frozenset[int]:
        """Mark rows whose event is in Dagster's log; return those that this call marked, as the first.

        Leases in `held` that are still this holder's are given back.
        """
        if not outbox_ids and not held:
            return frozenset()
        with self._database.write([MIRROR]) as connection:
            marked = frozenset(connection.execute(self._mark, {"chosen": _numbers(outbox_ids)}).scalars())
            leases = [{"outbox_id": number, "lease_until": until} for number, until in (held or {}).items()]
            if leases:
                connection.execute(self._release, {"held": rows_of(leases)})
            return marked

    def mirrored_items(self, keys: Sequence[WorkKey]) -> frozenset[int]:
        """Mark the rows of these work items, like `mirrored`."""
        if not keys:
            return frozenset()
        with self._database.write([MIRROR]) as connection:
            return frozenset(connection.execute(self._mark_items, {"items": rows_of(map(vars, keys))}).scalars())


def outbox_row(item: Columns, now: sa.ColumnElement[int]) -> Columns:
    """Return the row of a work item that was accepted; the parameter `run_id` names the Dagster run."""
    return {
        **{name: item[name] for name in ("job_id", "stage", "item_key", "stage_version")},
        "dagster_run_id": sa.bindparam("run_id", type_=sa.Text),
        "created_at": now,
    }


def add_published(connection: Connection, now: sa.ColumnElement[int], job_id: int, run_id: str | None) -> None:
    """Write the row of a job's published ruleset."""
    connection.execute(
        sa.insert(outbox).values(
            job_id=job_id,
            stage=Stage.PUBLISH,
            item_key=DOCUMENT_ITEM,
            stage_version=STAGE_VERSION,
            dagster_run_id=run_id,
            created_at=now,
        )
    )


def add_missing(connection: Connection, now: sa.ColumnElement[int], job_id: int) -> None:
    """Write the row of each accepted output of a job that has none: outputs that no worker completed."""
    missing = ~sa.exists().where(
        outbox.c.job_id == work_item.c.job_id,
        outbox.c.stage == work_item.c.stage,
        outbox.c.item_key == work_item.c.item_key,
        outbox.c.stage_version == work_item.c.stage_version,
    )
    given = sa.select(
        work_item.c.job_id,
        work_item.c.stage,
        work_item.c.item_key,
        work_item.c.stage_version,
        sa.cast(sa.null(), sa.Text),
        now,
    ).where(work_item.c.job_id == job_id, work_item.c.state == WorkState.SUCCEEDED.value, missing)
    columns = ["job_id", "stage", "item_key", "stage_version", "dagster_run_id", "created_at"]
    connection.execute(sa.insert(outbox).from_select(columns, given.order_by(work_item.c.stage, work_item.c.ordinal)))


def _acceptances(chosen: FromClause) -> sa.Select[Any]:
    of_item = (work_item.c.job_id, work_item.c.stage, work_item.c.item_key, work_item.c.stage_version)
    of_attempt = (attempt.c.job_id, attempt.c.stage, attempt.c.item_key, attempt.c.stage_version)
    of_row = (outbox.c.job_id, outbox.c.stage, outbox.c.item_key, outbox.c.stage_version)
    return (
        sa.select(
            outbox,
            job.c.tenant,
            job.c.submission_key,
            job.c.partition_key.label("job_partition_key"),
            work_item.c.partition_key,
            work_item.c.attempts,
            work_item.c.output,
            work_item.c.output_digest,
            attempt.c.attempt,
            attempt.c.provider,
            attempt.c.provider_called,
            attempt.c.model_id,
            attempt.c.provider_request_id,
            attempt.c.tokens_in,
            attempt.c.tokens_out,
            attempt.c.cost_micros,
            action.c.receipt,
        )
        .join(chosen, chosen.c.outbox_id == outbox.c.outbox_id)
        .join(job, job.c.job_id == outbox.c.job_id)
        .outerjoin(work_item, sa.and_(*(one == other for one, other in zip(of_item, of_row, strict=True))))
        .outerjoin(
            attempt,
            sa.and_(
                *(one == other for one, other in zip(of_attempt, of_row, strict=True)),
                attempt.c.outcome == AttemptOutcome.ACCEPTED.value,
            ),
        )
        .outerjoin(
            action,
            sa.and_(
                outbox.c.stage == Stage.PUBLISH.value,
                action.c.job_id == outbox.c.job_id,
                action.c.kind == Stage.PUBLISH.value,
                action.c.state == ActionState.DONE.value,
            ),
        )
        .order_by(outbox.c.outbox_id)
    )


def _acceptance(row: sa.Row[Any]) -> Acceptance:
    output = str(row.output if row.receipt is None else row.receipt)
    return Acceptance(
        outbox_id=row.outbox_id,
        key=WorkKey(job_id=row.job_id, stage=Stage(row.stage), item_key=row.item_key, stage_version=row.stage_version),
        job=JobName(tenant=row.tenant, submission_key=row.submission_key),
        partition_key=row.partition_key or row.job_partition_key,
        run_id=row.dagster_run_id,
        accepted_at=row.created_at,
        output=output,
        digest=row.output_digest or str(json.loads(output)["manifest_sha256"]),
        attempt=row.attempt or row.attempts or 1,
        provider=row.provider,
        provider_called=bool(row.provider_called),
        usage=Usage(
            model_id=row.model_id,
            request_id=row.provider_request_id,
            tokens_in=row.tokens_in,
            tokens_out=row.tokens_out,
            cost_micros=row.cost_micros,
        ),
    )


def _numbers(outbox_ids: Sequence[int]) -> str:
    return rows_of({"outbox_id": number} for number in outbox_ids)
