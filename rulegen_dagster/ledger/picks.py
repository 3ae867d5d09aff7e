"""Picks: which items the next claims take, in document order within a job."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rulegen_dagster.domain.limits import GROUP_OF_STAGE, TENANT_LIMITED
from rulegen_dagster.domain.refusal import refusals_from_json, wants_longer_answer
from rulegen_dagster.domain.states import JOB_STATE_OF_STAGE, Stage
from rulegen_dagster.domain.work import WorkKey
from rulegen_dagster.ledger.batch import batch, rows_of
from rulegen_dagster.ledger.compiled import Query
from rulegen_dagster.ledger.database import Database
from rulegen_dagster.ledger.limits import ClaimLimits
from rulegen_dagster.ledger.schema import job, tenant, waiver, work_item
from rulegen_dagster.ledger.shares import Shares


class Found(NamedTuple):
    """A claimable item with what of its job and tenant a claim needs; its fields are the columns of every pick."""

    job_id: int
    stage: str
    item_key: str
    stage_version: int
    state: str
    attempts: int
    attempt_limit: int
    token: str | None
    clause_ordinal: int | None
    partition_key: str | None
    repair: str | None
    waived: str | None
    tenant: str
    submission_key: str
    deadline_at: int | None
    claim_limit: int | None
    now: int

    @property
    def wants_longer_answer(self) -> bool:
        """Whether the item's answer was cut off, and is to be repaired."""
        return self.repair is not None and wants_longer_answer(refusals_from_json(self.repair))


@dataclass(frozen=True, kw_only=True)
class Picked:
    """Items to claim, locked where the database locks rows; `more` tells whether another look may find others."""

    rows: Sequence[Found]
    more: bool


_NOTHING = Picked(rows=(), more=False)


class Picks:
    """The statements that find claimable items of a stage and lock them; built once for a database.

    A scope of one job is one statement. Elsewhere `Shares` divides the slots between jobs first. An item that another
    transaction has locked is passed over, and so is a lost one whose attempt is locked: nobody is waited for.
    """

    def __init__(self, database: Database, claimable: sa.ColumnElement[bool], limits: ClaimLimits) -> None:
        """Build the statements for the database; `claimable` is the condition of an item that can be claimed now."""
        dialect, now = database.dialect, database.now
        self._limits = limits
        self._shares = Shares(database, claimable, limits)
        self._of_one, self._of_many = (
            {
                kind: Query(database, partial(query, dialect, now, claimable, kind), Found._make)
                for kind in ("job", "items")
            }
            for query in (_of_one, _of_many)
        )

    def rows(
        self,
        connection: Connection,
        stage: Stage,
        count: int,
        *,
        job_ids: tuple[int, ...] | None = None,
        items: tuple[WorkKey, ...] | None = None,
        passed_over: set[int],
    ) -> Picked:
        """Return at most `count` claimable items of the stage, within every limit.

        `passed_over` is the caller's, for the looks of one transaction: jobs that gave less than their share go in, and
        are not looked at again.
        """
        parameters: dict[str, Any] = {"stage": stage, "job_state": JOB_STATE_OF_STAGE[stage]}
        kind, wanted = "job", set(job_ids) if job_ids is not None else None
        if items is not None:
            items = tuple(key for key in items if key.stage is stage)
            kind, wanted = "items", {key.job_id for key in items}
            parameters["wanted"] = rows_of({"job_id": key.job_id, "item_key": key.item_key} for key in items)
        if wanted is not None and len(wanted) <= 1:
            return Picked(rows=self._one(connection, kind, count, wanted, parameters), more=False)
        while True:
            given = self._shares.divide(connection, stage, count, job_ids=wanted, items=items, passed_over=passed_over)
            if not given:
                return _NOTHING
            rows = self._many(connection, kind, given, parameters)
            found = dict.fromkeys(given, 0)
            for row in rows:
                found[row.job_id] += 1
            passed_over.update(job_id for job_id, asked in given.items() if found[job_id] < asked)
            if rows:
                return Picked(rows=rows, more=True)

    def _one(
        self,
        connection: Connection,
        kind: str,
        count: int,
        wanted: set[int],
        parameters: dict[str, Any],
    ) -> Sequence[Found]:
        group = GROUP_OF_STAGE[parameters["stage"]]
        limit = self._limits.of(group)
        if limit is not None:
            self._limits.hold(connection)
            count = min(count, limit - sum(one.items for one in self._limits.in_flight(connection, group)))
        if not wanted or count <= 0:
            return ()
        (job_id,) = wanted
        rows = self._of_one[kind].rows(connection, **parameters, job_id=job_id, count=count)
        if not rows or rows[0].claim_limit is None or group is not TENANT_LIMITED:
            return rows
        self._limits.hold(connection)
        in_flight = self._limits.in_flight(connection, group)
        own = sum(one.items for one in in_flight if one.tenant == rows[0].tenant)
        return rows[: max(0, rows[0].claim_limit - own)]

    def _many(
        self, connection: Connection, kind: str, given: dict[int, int], parameters: dict[str, Any]
    ) -> Sequence[Found]:
        shared = rows_of({"job_id": job_id, "most": most} for job_id, most in given.items())
        return self._of_many[kind].rows(connection, **parameters, given=shared, count=max(given.values()))


def _of_one(dialect: str, now: sa.ColumnElement[int], claimable: sa.ColumnElement[bool], kind: str) -> sa.Select[Any]:
    """Return the query for one job's next items."""
    job_id = sa.bindparam("job_id", type_=sa.BigInteger)
    return (
        _columns(now, work_item, job, work_item)
        .where(*_conditions(dialect, claimable, kind, job_id))
        .order_by(work_item.c.ordinal)
        .limit(sa.bindparam("count", type_=sa.Integer))
        .with_for_update(of=work_item, skip_locked=True)
    )


def _of_many(dialect: str, now: sa.ColumnElement[int], claimable: sa.ColumnElement[bool], kind: str) -> sa.Select[Any]:
    """Return the query for the next items of several jobs, of each at most `most`."""
    given = batch(dialect, "given", job_id=sa.BigInteger, most=sa.Integer).alias("given")
    conditions = _conditions(dialect, claimable, kind, given.c.job_id)
    if dialect == "postgresql":
        picked = (
            _columns(now, work_item, job, work_item)
            .where(*conditions)
            .order_by(work_item.c.ordinal)
            .limit(given.c.most)
            .with_for_update(of=work_item, skip_locked=True)
            .correlate(given)
            .lateral("picked")
        )
        return sa.select(picked).select_from(given.join(picked, sa.true()))
    # SQLite has no lateral join and no limit that depends on a row, but it can unpack an array that does.
    first = (
        sa.select(sa.literal_column("work_item.rowid").label("item"))
        .select_from(work_item.join(job, job.c.job_id == work_item.c.job_id))
        .where(*conditions)
        .order_by(work_item.c.ordinal)
        .limit(sa.bindparam("count", type_=sa.Integer))
        .correlate(given)
        .subquery("first_items")
    )
    listed = sa.select(sa.func.json_group_array(first.c.item)).correlate(given).scalar_subquery()
    each = sa.func.json_each(listed).table_valued("key", "value", name="each_item")
    of_job, item = job.alias("job_of_item"), work_item.alias("item")
    source = given.join(each, each.c.key < given.c.most)
    source = source.join(item, sa.literal_column("item.rowid", sa.BigInteger) == each.c.value)
    return _columns(now, item, of_job, source)


def _columns(
    now: sa.ColumnElement[int], item: sa.FromClause, of_job: sa.FromClause, source: sa.FromClause
) -> sa.Select[Any]:
    # A waiver that was given while somebody held the item is found by whoever takes it next, in this one statement.
    waived = (
        sa.select(waiver.c.reason)
        .where(waiver.c.job_id == item.c.job_id, waiver.c.clause_ordinal == item.c.clause_ordinal)
        .correlate(item)
        .scalar_subquery()
    )
    joined = source.join(of_job, of_job.c.job_id == item.c.job_id).join(tenant, tenant.c.tenant == of_job.c.tenant)
    return sa.select(
        item.c.job_id,
        item.c.stage,
        item.c.item_key,
        item.c.stage_version,
        item.c.state,
        item.c.attempts,
        item.c.attempt_limit,
        item.c.token,
        item.c.clause_ordinal,
        item.c.partition_key,
        item.c.repair,
        waived.label("waived"),
        of_job.c.tenant,
        of_job.c.submission_key,
        of_job.c.deadline_at,
        tenant.c.claim_limit,
        now.label("now"),
    ).select_from(joined)


def _conditions(
    dialect: str, claimable: sa.ColumnElement[bool], kind: str, job_id: sa.ColumnElement[int]
) -> list[sa.ColumnElement[bool]]:
    conditions = [
        work_item.c.stage == sa.bindparam("stage", type_=sa.Text),
        work_item.c.job_id == job_id,
        job.c.state == sa.bindparam("job_state", type_=sa.Text),
        claimable,
    ]
    if kind == "items":
        wanted = batch(dialect, "wanted", job_id=sa.BigInteger, item_key=sa.Text).alias("wanted_items")
        conditions.append(
            sa.exists().where(wanted.c.job_id == work_item.c.job_id, wanted.c.item_key == work_item.c.item_key)
        )
    return conditions
