"""Limits where claims are made: what is in flight over all processes, counted in the claim's own transaction."""

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rulegen_dagster.domain.limits import GROUP_OF_STAGE, STAGES_OF_GROUP, TENANT_LIMITED, Group, Limits
from rulegen_dagster.domain.states import ActionState, Stage, WorkState
from rulegen_dagster.ledger.database import Database
from rulegen_dagster.ledger.schema import action, job, tenant, work_item

TENANT_LIMIT = "tenant"
"""The name of a tenant's own limit, beside those of the groups."""

_LOCK = 0x72756C6567656E


@dataclass(frozen=True, kw_only=True)
class InFlight:
    """How many items of a group a job has in flight."""

    job_id: int
    tenant: str
    items: int


@dataclass(frozen=True, kw_only=True)
class ReachedLimit:
    """A limit that leaves no room for another claim: a group's, or `tenant`; and who uses it up.

    `next_at` is when the first of the leases ends (ms), None where a limit of 0 lets nothing begin.
    """

    name: str
    value: int
    of_job: int
    of_tenant: int
    of_others: int
    next_at: int | None

    @property
    def in_flight(self) -> int:
        """How many items it counts now."""
        return self.of_tenant + self.of_others


class ClaimLimits:
    """The limits of groups and tenants, and the counts that they are held against.

    Only a live lease counts. SQLite has one writer, so a count in the claim's transaction is exact. On PostgreSQL two
    claims could each count before the other commits, so a claim that a limit concerns holds one lock from its count
    to its commit (`hold`); claims that no limit concerns never ask for it. It cannot close a circle of waits. It is
    the last thing that a turn waits for: jobs, then items, then this lock. Its holder takes items and lost attempts
    with SKIP LOCKED, and its foreign keys ask for key shares, which no holder of a job's row refuses. There is one
    lock and not one for each limit, so that there is no order among them to get wrong.
    """

    def __init__(self, database: Database, limits: Limits, claimable: sa.ColumnElement[bool]) -> None:
        """Count on the given database; `claimable` is the condition of an item that can be claimed now."""
        self._database = database
        self._limits = limits
        in_flight = sa.and_(_running(), sa.not_(claimable))
        stages = work_item.c.stage.in_(sa.bindparam("stages", expanding=True))
        self._in_flight = (
            sa.select(work_item.c.job_id, job.c.tenant, sa.func.count().label("items"))
            .join(job, job.c.job_id == work_item.c.job_id)
            .where(stages, in_flight)
            .group_by(work_item.c.job_id, job.c.tenant)
        )
        self._first_lease = (
            sa.select(sa.func.min(work_item.c.lease_until))
            .join(job, job.c.job_id == work_item.c.job_id)
            .where(stages, in_flight)
        )
        self._executing = (
            sa.select(action.c.job_id, job.c.tenant, sa.func.count().label("items"))
            .join(job, job.c.job_id == action.c.job_id)
            .where(_executing(database.now))
            .group_by(action.c.job_id, job.c.tenant)
        )
        self._first_executing = (
            sa.select(sa.func.min(action.c.lease_until))
            .join(job, job.c.job_id == action.c.job_id)
            .where(_executing(database.now))
        )

    def of(self, group: Group) -> int | None:
        """Return a group's limit; None is no limit."""
        return self._limits.of(group)

    def hold(self, connection: Connection) -> None:
        """Let no other claim count for the rest of the transaction; may wait for one that commits."""
        if connection.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))

    def in_flight(self, connection: Connection, group: Group) -> Sequence[InFlight]:
        """Return what is in flight in a group, by job."""
        if group is Group.ACTIONS:
            rows = connection.execute(self._executing)
        else:
            rows = connection.execute(self._in_flight, {"stages": list(STAGES_OF_GROUP[group])})
        return [InFlight(job_id=row.job_id, tenant=row.tenant, items=row.items) for row in rows]

    def has_room(self, connection: Connection, group: Group) -> bool:
        """Return whether a group's limit lets one more claim through in this transaction; `hold` it where it is set."""
        limit = self.of(group)
        if limit is None:
            return True
        self.hold(connection)
        return sum(one.items for one in self.in_flight(connection, group)) < limit

    def reached(self, job_id: int, stage: Stage) -> ReachedLimit | None:
        """Return the limit that stands in the way of a claim now: the group's first, then the tenant's own; or None."""
        group = GROUP_OF_STAGE[stage]
        with self._database.read() as connection:
            row = connection.execute(
                sa.select(tenant.c.tenant, tenant.c.claim_limit)
                .join(job, job.c.tenant == tenant.c.tenant)
                .where(job.c.job_id == job_id)
            ).one()
            limit, own_limit = self.of(group), row.claim_limit if group is TENANT_LIMITED else None
            if limit is None and own_limit is None:
                return None
            in_flight = self.in_flight(connection, group)
            own = sum(one.items for one in in_flight if one.tenant == row.tenant)
            others = sum(one.items for one in in_flight) - own
            name = group.value
            first = self._first_executing if group is Group.ACTIONS else self._first_lease
            if limit is None or own + others < limit:
                limit, name, others = own_limit, TENANT_LIMIT, 0
                first = first.where(job.c.tenant == row.tenant)
            if limit is None or own + others < limit:
                return None
            stages = {} if group is Group.ACTIONS else {"stages": list(STAGES_OF_GROUP[group])}
            return ReachedLimit(
                name=name,
                value=limit,
                of_job=sum(one.items for one in in_flight if one.job_id == job_id),
                of_tenant=own,
                of_others=others,
                next_at=connection.execute(first, stages).scalar_one(),
            )


def _running() -> sa.ColumnElement[bool]:
    # In a literal, so that the partial index of running items applies.
    return work_item.c.state == sa.literal_column(f"'{WorkState.RUNNING.value}'")


def _executing(now: sa.ColumnElement[int]) -> sa.ColumnElement[bool]:
    executing: sa.ColumnElement[str] = sa.literal_column(f"'{ActionState.EXECUTING.value}'")
    return sa.and_(action.c.state == executing, action.c.lease_until > now)
