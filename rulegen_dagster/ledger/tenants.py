"""Tenants' shares: the weight of each beside the others, and how much it may have in flight at once."""

from dataclasses import dataclass

import sqlalchemy as sa

from rulegen_dagster.domain.errors import TenantNotFoundError
from rulegen_dagster.domain.limits import TENANT_LIMITED
from rulegen_dagster.ledger.database import Database, again_after_conflicts
from rulegen_dagster.ledger.limits import ClaimLimits
from rulegen_dagster.ledger.schema import tenant

MAX_WEIGHT = 1_000
"""The heaviest weight; the lightest is 1."""

MAX_LIMIT = 1_000_000
"""The highest limit that can be set."""


@dataclass(frozen=True, kw_only=True)
class TenantShare:
    """A tenant's weight, its limit (None is no limit), and how many of its items of generation are in flight now."""

    tenant: str
    weight: int
    limit: int | None
    in_flight: int


class Tenants:
    """Reads and sets the shares of tenants; the next claim goes by them."""

    def __init__(self, database: Database, limits: ClaimLimits) -> None:
        """Work on the given database; `limits` counts what is in flight."""
        self._database = database
        self._limits = limits

    def shares(self) -> tuple[TenantShare, ...]:
        """Return every tenant's share, by name."""
        with self._database.read() as connection:
            in_flight: dict[str, int] = {}
            for one in self._limits.in_flight(connection, TENANT_LIMITED):
                in_flight[one.tenant] = in_flight.get(one.tenant, 0) + one.items
            rows = connection.execute(
                sa.select(tenant.c.tenant, tenant.c.weight, tenant.c.claim_limit).order_by(tenant.c.tenant)
            ).all()
        return tuple(
            TenantShare(
                tenant=row.tenant,
                weight=row.weight,
                limit=row.claim_limit,
                in_flight=in_flight.get(row.tenant, 0),
            )
            for row in rows
        )

    @again_after_conflicts
    def set(self, name: str, *, weight: int | None = None, limit: int | None = None, no_limit: bool = False) -> None:
        """Set what is given and leave the rest; `no_limit` takes the limit away. Raises `TenantNotFoundError`.

        Items in flight beyond a new limit are finished; no more are claimed until there is room.
        """
        values: dict[str, int | None] = {}
        if weight is not None:
            values["weight"] = weight
        if limit is not None or no_limit:
            values["claim_limit"] = None if no_limit else limit
        with self._database.write() as connection:
            changed = connection.execute(sa.update(tenant).where(tenant.c.tenant == name).values(**values))
            if changed.rowcount != 1:
                raise TenantNotFoundError(
                    f"there is no tenant '{name}'; an operator adds one with 'rulegen tenant add {name}'"
                )
