"""Quota rows: what the tables hold as the domain's values, and the scopes that a job's calls are charged to."""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rulegen_dagster.domain.identity import JobName
from rulegen_dagster.domain.quota import Breaker, Bucket, Estimate, QuotaLimits, refilled
from rulegen_dagster.domain.quota_scope import QuotaScope
from rulegen_dagster.domain.states import Stage, WorkState
from rulegen_dagster.ledger.batch import batch, rows_of
from rulegen_dagster.ledger.database import Database
from rulegen_dagster.ledger.quota_schema import call_estimate, quota, quota_reservation
from rulegen_dagster.ledger.schema import behaviour, job, work_item


@dataclass(frozen=True, kw_only=True)
class JobScopes:
    """The scopes of a job's calls, whether or not a quota is set for them, and what a call of each stage may use."""

    provider: str
    tenant: str
    job: str
    estimates: Mapping[Stage, Estimate]

    @property
    def names(self) -> tuple[str, ...]:
        """Every scope."""
        return (self.provider, self.tenant, self.job)


class QuotaRows:
    """Reads quotas, and writes buckets back; built once for a database."""

    def __init__(self, database: Database) -> None:
        """Build the statements for the database's dialect."""
        now, dialect = database.now, database.dialect
        wanted = batch(dialect, "jobs", job_id=sa.BigInteger).alias("wanted_jobs")
        self._of_jobs = (
            sa.select(
                job.c.job_id,
                job.c.tenant,
                job.c.submission_key,
                job.c.behaviour_digest,
                call_estimate.c.stage,
                call_estimate.c.tokens,
                call_estimate.c.cost_micros,
                call_estimate.c.longer_tokens,
                call_estimate.c.longer_micros,
            )
            .join(wanted, wanted.c.job_id == job.c.job_id)
            .join(call_estimate, call_estimate.c.job_id == job.c.job_id, isouter=True)
        )
        self._behaviour = sa.select(behaviour.c.content).where(
            behaviour.c.digest == sa.bindparam("digest", type_=sa.Text)
        )
        named = batch(dialect, "scopes", scope=sa.Text).alias("named_scopes")
        self._all = sa.select(quota, now.label("now")).order_by(quota.c.scope)
        self._named = self._all.where(quota.c.scope.in_(sa.select(named.c.scope)))
        self._in_flight = (
            sa.select(
                quota_reservation.c.provider_scope,
                quota_reservation.c.tenant_scope,
                quota_reservation.c.job_scope,
                sa.func.count().label("calls"),
                sa.func.min(work_item.c.lease_until).label("first_lease"),
            )
            .join(work_item, work_item.c.token == quota_reservation.c.token)
            .where(
                quota_reservation.c.state == sa.literal_column("'reserved'"),
                work_item.c.state == sa.literal_column(f"'{WorkState.RUNNING.value}'"),
                work_item.c.lease_until > now,
            )
            .group_by(
                quota_reservation.c.provider_scope, quota_reservation.c.tenant_scope, quota_reservation.c.job_scope
            )
        )
        self._save = (
            sa.update(quota)
            .where(quota.c.scope == sa.bindparam("of_scope", type_=sa.Text))
            .values({name: sa.bindparam(f"new_{name}", type_=quota.c[name].type) for name in _LEVELS})
        )
        # A job's provider, by the digest of its behaviour, which never changes.
        self._provider_of: dict[str, str] = {}

    def scopes_of(self, connection: Connection, job_ids: Collection[int]) -> dict[int, JobScopes]:
        """Return the scopes of some jobs."""
        if not job_ids:
            return {}
        rows = connection.execute(self._of_jobs, {"jobs": rows_of({"job_id": one} for one in sorted(job_ids))}).all()
        estimates: dict[int, dict[Stage, Estimate]] = {}
        for row in rows:
            of_job = estimates.setdefault(row.job_id, {})
            if row.stage is not None:
                of_job[Stage(row.stage)] = Estimate(
                    tokens=row.tokens,
                    cost_micros=row.cost_micros,
                    longer_tokens=row.longer_tokens,
                    longer_micros=row.longer_micros,
                )
        return {
            row.job_id: JobScopes(
                provider=self._provider(connection, row.behaviour_digest),
                tenant=str(QuotaScope.of_tenant(row.tenant)),
                job=str(QuotaScope.of_job(JobName(tenant=row.tenant, submission_key=row.submission_key))),
                estimates=estimates[row.job_id],
            )
            for row in rows
        }

    def _provider(self, connection: Connection, digest: str) -> str:
        if digest not in self._provider_of:
            content = json.loads(connection.execute(self._behaviour, {"digest": digest}).scalar_one())
            self._provider_of[digest] = str(QuotaScope.of_provider(content["provider"], content["model_id"]))
        return self._provider_of[digest]

    def buckets(
        self, connection: Connection, scopes: Iterable[str] | None, *, lock: bool = False
    ) -> tuple[dict[str, Bucket], int]:
        """Return the buckets of the scopes that have a quota (None: of all), as they are now, and what now is.

        With `lock` the rows stay locked for the rest of the transaction. They are locked by this one statement in the
        order of their names; a transaction that asks for them once, and waits for no row afterwards, is never part of
        a circle of waits.
        """
        query = self._all if scopes is None else self._named
        if lock:
            query = query.with_for_update(key_share=True)
        parameters = {} if scopes is None else {"scopes": rows_of({"scope": name} for name in sorted(set(scopes)))}
        rows = connection.execute(query, parameters).all()
        if not rows:
            return {}, 0
        # Rows that were waited for may tell an older time.
        now = max(row.now for row in rows)
        in_flight: dict[str, int] = {}
        if any(row.concurrency is not None or row.budget_micros is not None for row in rows):
            in_flight = {scope: calls for scope, (calls, _) in self.in_flight(connection).items()}
        return {row.scope: refilled(_bucket(row, in_flight.get(row.scope, 0)), now) for row in rows}, now

    def in_flight(self, connection: Connection) -> dict[str, tuple[int, int]]:
        """Return for each scope its calls under a live lease, and when the first of the leases ends (ms)."""
        found: dict[str, tuple[int, int]] = {}
        for row in connection.execute(self._in_flight):
            for scope in (row.provider_scope, row.tenant_scope, row.job_scope):
                if scope is not None:
                    calls, first = found.get(scope, (0, row.first_lease))
                    found[scope] = calls + row.calls, min(first, row.first_lease)
        return found

    def save(self, connection: Connection, buckets: Mapping[str, Bucket]) -> None:
        """Write buckets back, whose rows are locked."""
        rows = [
            {"of_scope": scope, **{f"new_{name}": value for name, value in levels_of(bucket).items()}}
            for scope, bucket in sorted(buckets.items())
        ]
        if rows:
            connection.execute(self._save, rows)


_LEVELS = (
    "request_level",
    "token_level",
    "charged_micros",
    "refilled_at",
    "blocked_until",
    "refused_code",
    "refused_at",
    "probe_at",
    "probe_token",
    "refusals",
)


def levels_of(bucket: Bucket) -> dict[str, Any]:
    """Return what of a bucket is stored beside its limits."""
    breaker = bucket.breaker
    return {
        "request_level": bucket.request_level,
        "token_level": bucket.token_level,
        "charged_micros": bucket.charged_micros,
        "refilled_at": bucket.refilled_at,
        "blocked_until": bucket.blocked_until,
        "refused_code": breaker.code if breaker else None,
        "refused_at": breaker.opened_at if breaker else None,
        "probe_at": breaker.probe_at if breaker else None,
        "probe_token": breaker.probe if breaker else None,
        "refusals": breaker.failures if breaker else 0,
    }


def limits_of(limits: QuotaLimits) -> dict[str, int | None]:
    """Return a scope's limits as its row holds them."""
    return {
        "requests_per_minute": limits.requests_per_minute,
        "tokens_per_minute": limits.tokens_per_minute,
        "concurrency": limits.concurrency,
        "budget_micros": limits.budget_micros,
    }


def _bucket(row: sa.Row[Any], in_flight: int) -> Bucket:
    breaker = None
    if row.refused_code is not None:
        breaker = Breaker(
            code=row.refused_code,
            opened_at=row.refused_at,
            probe_at=row.probe_at,
            failures=row.refusals,
            probe=row.probe_token,
        )
    return Bucket(
        limits=QuotaLimits(
            requests_per_minute=row.requests_per_minute,
            tokens_per_minute=row.tokens_per_minute,
            concurrency=row.concurrency,
            budget_micros=row.budget_micros,
        ),
        request_level=row.request_level,
        token_level=row.token_level,
        charged_micros=row.charged_micros,
        refilled_at=row.refilled_at,
        blocked_until=row.blocked_until,
        breaker=breaker,
        in_flight=in_flight,
    )
