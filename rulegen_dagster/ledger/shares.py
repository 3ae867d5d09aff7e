"""Shares: which jobs the next claims belong to, where several jobs and tenants have work."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rulegen_dagster.domain.fairness import JobLoad, Party, TenantLoad, share_out, shares
from rulegen_dagster.domain.limits import GROUP_OF_STAGE, TENANT_LIMITED, Group
from rulegen_dagster.domain.states import JOB_STATE_OF_STAGE, Stage
from rulegen_dagster.domain.work import WorkKey
from rulegen_dagster.ledger.batch import batch, rows_of
from rulegen_dagster.ledger.compiled import Query
from rulegen_dagster.ledger.database import Database
from rulegen_dagster.ledger.limits import ClaimLimits, InFlight
from rulegen_dagster.ledger.schema import job, tenant, work_item

TENANTS_LOOKED_AT = 64
"""How many tenants with claimable work share one turn; where there are more, the turns go round."""


class _Tenant(NamedTuple):
    tenant: str
    weight: int
    claim_limit: int | None


class _Job(NamedTuple):
    """A job with its tenant, whose fields come last, like the columns of the queries."""

    job_id: int
    tenant: str
    weight: int
    claim_limit: int | None


@dataclass(frozen=True, kw_only=True)
class _Free:
    """Free slots within the group's limit, and what is in flight beside them."""

    slots: int
    in_flight: Sequence[InFlight]
    group: Group

    def party(self, row: _Tenant) -> Party:
        """Return a tenant that has claimable work, of which how much is not known."""
        limit, own = self.limit_of(row), self.of_tenant(row.tenant)
        room = self.slots if limit is None else min(self.slots, limit - own)
        return Party(in_flight=own, room=room, weight=row.weight)

    def load(self, row: _Tenant | _Job, job_ids: Collection[int]) -> TenantLoad:
        """Return a tenant with its candidate jobs; of how many items each has, only the slots are asked."""
        of_job = {one.job_id: one.items for one in self.in_flight}
        return TenantLoad(
            tenant=row.tenant,
            weight=row.weight,
            limit=self.limit_of(row),
            in_flight=self.of_tenant(row.tenant),
            jobs=tuple(
                JobLoad(job_id=job_id, in_flight=of_job.get(job_id, 0), claimable=self.slots) for job_id in job_ids
            ),
        )

    def limit_of(self, row: _Tenant | _Job) -> int | None:
        return row.claim_limit if self.group is TENANT_LIMITED else None

    def of_tenant(self, name: str) -> int:
        return sum(one.items for one in self.in_flight if one.tenant == name)


class Shares:
    """Divides free slots between jobs by `domain.fairness`, from few rows whatever the ledger holds.

    A turn looks at `TENANTS_LOOKED_AT` tenants with claimable work at most, the next turn of this process at the ones
    after them. Of each of those it looks at as many of its oldest idle jobs as the tenant is given slots, so at no more
    than there are free slots, however many jobs there are. Where those are too few it looks at the jobs that have
    something in flight too, which are no more than there are slots in all processes.
    """

    def __init__(self, database: Database, claimable: sa.ColumnElement[bool], limits: ClaimLimits) -> None:
        """Work on the database; `claimable` is the condition of an item of a job that can be claimed now."""
        dialect = database.dialect
        self._limits = limits
        self._tenants = Query(database, partial(_tenants, dialect, claimable), _Tenant._make)
        self._idle = Query(database, partial(_idle, dialect, claimable), tuple)
        self._scoped = {
            kind: Query(database, partial(_scoped, dialect, claimable, kind), _Job._make) for kind in ("jobs", "items")
        }
        # Where the next turn's look begins, by stage; losing it, or a race for it, costs nothing but a look.
        self._after: dict[Stage, str] = {}

    def divide(
        self,
        connection: Connection,
        stage: Stage,
        count: int,
        *,
        job_ids: Collection[int] | None,
        items: Sequence[WorkKey] | None,
        passed_over: Collection[int],
    ) -> dict[int, int]:
        """Return how many items of the stage to claim of each job, `count` in all at most.

        Empty where no item can be claimed, or limits let none through. `job_ids` and `items` bound what is looked at;
        `passed_over` are jobs in which nothing more is to be had now.
        """
        parameters: dict[str, Any] = {
            "stage": stage,
            "job_state": JOB_STATE_OF_STAGE[stage],
            "passed_over": _jobs(passed_over),
        }
        if job_ids is None:
            return self._of_any(connection, stage, count, parameters)
        parameters["wanted"] = _jobs(job_ids)
        if items is not None:
            parameters["wanted_items"] = rows_of({"job_id": key.job_id, "item_key": key.item_key} for key in items)
        found = self._scoped["jobs" if items is None else "items"].rows(connection, **parameters)
        if not found:
            return {}
        free = self._free(connection, stage, count, found)
        jobs_of: dict[str, list[int]] = {}
        for row in found:
            jobs_of.setdefault(row.tenant, []).append(row.job_id)
        named = {row.tenant: row for row in found}
        return share_out(free.slots, [free.load(row, jobs_of[name]) for name, row in named.items()])

    def _of_any(self, connection: Connection, stage: Stage, count: int, parameters: dict[str, Any]) -> dict[int, int]:
        after = self._after.get(stage, "")
        rounds_left = 2 if after else 1
        while rounds_left:
            found = self._tenants.rows(connection, **parameters, after=after)
            after = found[-1].tenant if len(found) == TENANTS_LOOKED_AT else ""
            given = self._of_tenants(connection, stage, count, parameters, found) if found else {}
            if given:
                self._after[stage] = after
                return given
            rounds_left -= not after
        self._after.pop(stage, None)
        return {}

    def _of_tenants(
        self, connection: Connection, stage: Stage, count: int, parameters: dict[str, Any], found: Sequence[_Tenant]
    ) -> dict[int, int]:
        free = self._free(connection, stage, count, found)
        most = {
            row.tenant: share
            for row, share in zip(found, shares(free.slots, [free.party(row) for row in found]), strict=True)
            if share
        }
        if not most:
            return {}
        jobs_of: dict[str, list[int]] = {name: [] for name in most}
        looked = rows_of({"tenant": name, "most": share} for name, share in most.items())
        busy = _jobs([one.job_id for one in free.in_flight])
        for name, job_id in self._idle.rows(connection, **parameters, looked=looked, busy=busy):
            jobs_of[name].append(job_id)
        # An idle job goes before a busy one, so the busy ones count only where the idle ones are too few.
        short = {name for name, share in most.items() if len(jobs_of[name]) < share}
        wanted = {one.job_id for one in free.in_flight if one.tenant in short}
        if wanted:
            for row in self._scoped["jobs"].rows(connection, **parameters, wanted=_jobs(wanted)):
                jobs_of[row.tenant].append(row.job_id)
        return share_out(free.slots, [free.load(row, jobs_of[row.tenant]) for row in found if row.tenant in jobs_of])

    def _free(self, connection: Connection, stage: Stage, count: int, found: Sequence[_Tenant | _Job]) -> _Free:
        group = GROUP_OF_STAGE[stage]
        limit = self._limits.of(group)
        if limit is not None or (group is TENANT_LIMITED and any(row.claim_limit is not None for row in found)):
            self._limits.hold(connection)
        in_flight = self._limits.in_flight(connection, group)
        if limit is not None:
            count = max(0, min(count, limit - sum(one.items for one in in_flight)))
        return _Free(slots=count, in_flight=in_flight, group=group)


def _jobs(job_ids: Collection[int]) -> str:
    return rows_of({"job_id": job_id} for job_id in job_ids)


def _in_state() -> sa.ColumnElement[bool]:
    return job.c.state == sa.bindparam("job_state", type_=sa.Text)


def _has_claimable(claimable: sa.ColumnElement[bool], *more: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    """Return the condition that `job` has a claimable item of the stage.

    A scalar subquery and not an EXISTS, which a planner may turn into a join over every open item of the ledger.
    """
    return (
        sa.select(sa.literal_column("1"))
        .where(
            work_item.c.stage == sa.bindparam("stage", type_=sa.Text),
            work_item.c.job_id == job.c.job_id,
            claimable,
            *more,
        )
        .limit(1)
        .correlate_except(work_item)
        .scalar_subquery()
        .is_not(None)
    )


def _listed(dialect: str, parameter: str) -> sa.Select[Any]:
    return sa.select(batch(dialect, parameter, job_id=sa.BigInteger).alias(parameter).c.job_id)


def _tenants(dialect: str, claimable: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """Return the tenants with a claimable item after `after`, in the order of their names.

    Each step of the walk is one look into the index of jobs, however many jobs a tenant has.
    """
    start = _next_tenant(sa.bindparam("after", type_=sa.Text)).label("tenant")
    named = sa.select(start, sa.literal_column("1", sa.Integer).label("step")).cte("named", recursive=True)
    named = named.union_all(
        sa.select(_next_tenant(named.c.tenant), named.c.step + 1).where(named.c.tenant.is_not(None))
    )
    first_job = (
        sa.select(job.c.job_id)
        .where(
            _in_state(),
            job.c.tenant == named.c.tenant,
            job.c.job_id.not_in(_listed(dialect, "passed_over")),
            _has_claimable(claimable),
        )
        .limit(1)
        .correlate(named)
        .scalar_subquery()
    )
    # The walk ends with the last tenant that is taken, for nothing here has to be sorted first.
    looked = sa.select(named.c.tenant, named.c.step).where(first_job.is_not(None)).limit(TENANTS_LOOKED_AT).subquery()
    return (
        sa.select(tenant.c.tenant, tenant.c.weight, tenant.c.claim_limit)
        .join(looked, looked.c.tenant == tenant.c.tenant)
        .order_by(looked.c.step)
    )


def _next_tenant(after: sa.ColumnElement[str]) -> sa.ScalarSelect[Any]:
    query = sa.select(job.c.tenant).where(_in_state(), job.c.tenant > after).order_by(job.c.tenant).limit(1)
    return query.correlate_except(job).scalar_subquery()


def _idle(dialect: str, claimable: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """Return of each looked-at tenant's jobs that have nothing in flight the oldest ones, at most `most`."""
    looked = batch(dialect, "looked", tenant=sa.Text, most=sa.Integer).alias("looked")

    def next_job(name: sa.ColumnElement[str], after: sa.ColumnElement[int]) -> sa.ScalarSelect[Any]:
        return (
            sa.select(job.c.job_id)
            .where(
                _in_state(),
                job.c.tenant == name,
                job.c.job_id > after,
                job.c.job_id.not_in(_listed(dialect, "busy")),
                job.c.job_id.not_in(_listed(dialect, "passed_over")),
                _has_claimable(claimable),
            )
            .order_by(job.c.job_id)
            .limit(1)
            .correlate_except(job)
            .scalar_subquery()
        )

    idle = sa.select(
        looked.c.tenant,
        looked.c.most,
        next_job(looked.c.tenant, sa.literal_column("0", sa.BigInteger)).label("job_id"),
    ).cte("idle", recursive=True)
    idle = idle.union_all(
        sa.select(idle.c.tenant, idle.c.most - 1, next_job(idle.c.tenant, idle.c.job_id)).where(
            idle.c.job_id.is_not(None), idle.c.most > 1
        )
    )
    return sa.select(idle.c.tenant, idle.c.job_id).where(idle.c.job_id.is_not(None))


def _scoped(dialect: str, claimable: sa.ColumnElement[bool], kind: str) -> sa.Select[Any]:
    """Return the wanted jobs that have a claimable item (of the wanted items), with their tenants."""
    more = []
    if kind == "items":
        wanted = batch(dialect, "wanted_items", job_id=sa.BigInteger, item_key=sa.Text).alias("wanted_items")
        more = [sa.exists().where(wanted.c.job_id == work_item.c.job_id, wanted.c.item_key == work_item.c.item_key)]
    return (
        sa.select(job.c.job_id, job.c.tenant, tenant.c.weight, tenant.c.claim_limit)
        .join(tenant, tenant.c.tenant == job.c.tenant)
        .where(
            job.c.job_id.in_(_listed(dialect, "wanted")),
            job.c.job_id.not_in(_listed(dialect, "passed_over")),
            _in_state(),
            _has_claimable(claimable, *more),
        )
    )
