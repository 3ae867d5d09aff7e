"""Quotas as people and use cases see them: set, listed, reset, and named as the reason why nothing is claimed."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rulegen_dagster.domain.errors import JobNotFoundError, TenantNotFoundError
from rulegen_dagster.domain.quota import (
    Bucket,
    Estimate,
    QuotaLimits,
    QuotaReason,
    QuotaRefusal,
    hardest,
    lifted,
    refusal_of,
    with_limits,
)
from rulegen_dagster.domain.quota_scope import QuotaScope, ScopeKind
from rulegen_dagster.domain.refusal import refusals_from_json, wants_longer_answer
from rulegen_dagster.domain.states import JOB_STATE_OF_STAGE, JobState, Stage
from rulegen_dagster.ledger.claims import PROVIDER_STAGES, can_be_claimed
from rulegen_dagster.ledger.database import Database, again_after_conflicts
from rulegen_dagster.ledger.endings import Ending, end_job
from rulegen_dagster.ledger.quota_rows import levels_of, limits_of
from rulegen_dagster.ledger.quota_schema import call_estimate, quota, quota_reservation
from rulegen_dagster.ledger.reservations import Reservations, add_scope, need_of
from rulegen_dagster.ledger.schema import attempt, job, tenant, work_item

_SPENT = Ending(state=JobState.FAILED, cause="budget_spent", code="budget_spent")
_STAGE_OF_STATE = {JOB_STATE_OF_STAGE[stage]: stage for stage in PROVIDER_STAGES}


@dataclass(frozen=True, kw_only=True)
class QuotaState:
    """A scope with what is left of its quota at `now` (ms)."""

    scope: str
    bucket: Bucket
    now: int


@dataclass(frozen=True, kw_only=True)
class QuotaHold:
    """The scope that keeps a job's items from being claimed, and why; the other scopes may hold them too.

    `next_at` is when it may let one through (ms), None where time alone does not change it. `need` is what a call of
    the stage may use; None where nobody has estimated it yet.
    """

    scope: str
    refusal: QuotaRefusal
    bucket: Bucket
    need: Estimate | None
    next_at: int | None

    @property
    def is_for_good(self) -> bool:
        """Whether somebody has to change something before the job can go on."""
        return self.next_at is None


@dataclass(frozen=True, kw_only=True)
class Charges:
    """What a job's calls are charged with: calls, tokens and money of one state of reservations."""

    calls: int
    tokens: int
    cost_micros: int


class Quotas:
    """Sets and reads the quotas of scopes, over all processes of the ledger."""

    def __init__(self, database: Database, reservations: Reservations) -> None:
        """Work on the given database."""
        self._database = database
        self._reservations = reservations

    def refresh(self) -> None:
        """Look whether any scope has a quota; a running engine does so twice a second. One small read."""
        with self._database.read() as connection:
            self._reservations.refresh(connection)

    def is_on(self) -> bool:
        """Return whether any scope of the ledger has a quota or a breaker."""
        with self._database.read() as connection:
            self._reservations.refresh(connection)
            return self._reservations.is_on(connection)

    @again_after_conflicts
    def set(self, scope: QuotaScope, changes: Mapping[str, int | None]) -> QuotaState:
        """Change some limits of a scope (by the names of `QuotaLimits`; None takes one away) and leave the rest.

        A budget counts what the scope's calls have cost so far, too. Raises `JobNotFoundError` or
        `TenantNotFoundError`.
        """
        name = str(scope)
        with self._database.write() as connection:
            owner = self._owner(connection, scope)
            is_new = add_scope(connection, self._database.now, name, kind=scope.kind, **owner)
            buckets, now = self._reservations.rows.buckets(connection, [name], lock=True)
            bucket = buckets[name]
            if is_new and scope.kind is not ScopeKind.PROVIDER:
                bucket = replace(bucket, charged_micros=_spent_so_far(connection, owner))
            limits = QuotaLimits(**{**limits_of(bucket.limits), **changes})
            bucket = with_limits(bucket, limits, now)
            connection.execute(
                sa.update(quota).where(quota.c.scope == name).values(**limits_of(limits), **levels_of(bucket))
            )
        self._reservations.turned_on()
        return QuotaState(scope=name, bucket=bucket, now=now)

    def list(self) -> tuple[QuotaState, ...]:
        """Return every scope that has a quota or a breaker, by name."""
        with self._database.read() as connection:
            buckets, now = self._reservations.rows.buckets(connection, None)
            in_flight = self._reservations.rows.in_flight(connection)
        return tuple(
            QuotaState(scope=name, bucket=replace(bucket, in_flight=in_flight.get(name, (0, 0))[0]), now=now)
            for name, bucket in buckets.items()
        )

    @again_after_conflicts
    def reset(self, scope: QuotaScope) -> bool:
        """Close a scope's breaker and lift what the provider asked for; return False where it has no row.

        What was spent stays spent.
        """
        name = str(scope)
        with self._database.write() as connection:
            buckets, _ = self._reservations.rows.buckets(connection, [name], lock=True)
            if name not in buckets:
                return False
            self._reservations.rows.save(connection, {name: lifted(buckets[name])})
        return True

    @again_after_conflicts
    def estimate(self, job_id: int, estimates: Mapping[Stage, Estimate], *, add_provider: bool = True) -> None:
        """Store what a call of each stage of a job may use, and give its provider a row, unless it shall have none.

        With a row it has a breaker, and can be blocked, whether or not it is limited. Every process that loads the job
        tells the same, unless its settings changed: the newest word counts.
        """
        with self._database.read() as connection:
            of_job = self._reservations.rows.scopes_of(connection, {job_id})[job_id]
            has_row = bool(self._reservations.rows.buckets(connection, [of_job.provider])[0])
        if has_row:
            self._reservations.turned_on()
        if has_row >= add_provider and all(of_job.estimates.get(stage) == need for stage, need in estimates.items()):
            return
        with self._database.write() as connection:
            # ON CONFLICT is spelled alike in both dialects but lives in two modules of SQLAlchemy, slow to import.
            insert = import_module(f"sqlalchemy.dialects.{connection.dialect.name}").insert
            if add_provider:
                add_scope(connection, self._database.now, of_job.provider, kind=ScopeKind.PROVIDER)
                self._reservations.turned_on()
            for stage, need in estimates.items():
                values = asdict(need)
                connection.execute(
                    insert(call_estimate)
                    .values(job_id=job_id, stage=stage.value, **values)
                    .on_conflict_do_update(index_elements=["job_id", "stage"], set_=values)
                )

    def hold_of(self, job_id: int, stage: Stage) -> QuotaHold | None:
        """Return what keeps the job's items of a stage from being claimed now, or None where a call would be granted.

        A missing estimate keeps nobody away: whoever loads the job for a claim gives one. Reads alone: by the time that
        somebody claims, it may have changed.
        """
        with self._database.read() as connection:
            self._reservations.refresh(connection)
            return self._hold(connection, job_id, stage) if self._reservations.is_on(connection) else None

    @again_after_conflicts
    def stop(self, job_id: int, *, actor: str) -> bool:
        """End a job as failed whose calls no budget covers any more; return False, with nothing changed, else.

        What is in flight of the budget may give something back, so nothing ends before that is settled.
        """
        with self._database.write() as connection:
            state = JobState(
                connection.execute(
                    sa.select(job.c.state).where(job.c.job_id == job_id).with_for_update(key_share=True)
                ).scalar_one()
            )
            stage = _STAGE_OF_STATE.get(state)
            hold = self._hold(connection, job_id, stage) if stage is not None else None
            if hold is None or hold.refusal.reason is not QuotaReason.BUDGET or not hold.is_for_good:
                return False
            end_job(
                connection,
                self._database,
                job_id,
                state,
                _SPENT,
                actor=actor,
                reason=f"the budget of {hold.scope} is spent: it does not cover another call",
            )
        return True

    def _hold(self, connection: Connection, job_id: int, stage: Stage) -> QuotaHold | None:
        of_job = self._reservations.rows.scopes_of(connection, {job_id})[job_id]
        buckets, now = self._reservations.rows.buckets(connection, of_job.names)
        if not buckets:
            return None
        longer = self._wants_longer_answers(connection, job_id, stage)
        need = need_of(of_job, stage, buckets.values(), longer=longer)
        refusals = {
            name: refusal
            for name, bucket in buckets.items()
            if (refusal := refusal_of(bucket, need or Estimate(), now)) is not None
        }
        name = hardest(refusals)
        if name is None:
            return None
        refusal, next_at = refusals[name], None
        if refusal.wait_ms is not None:
            next_at = now + refusal.wait_ms
        elif refusal.reason in (QuotaReason.CONCURRENCY, QuotaReason.BUDGET):
            # Another call of the scope gives back what it does not use, or ends.
            next_at = self._reservations.rows.in_flight(connection).get(name, (0, None))[1]
        return QuotaHold(scope=name, refusal=refusal, bucket=buckets[name], need=need, next_at=next_at)

    def _wants_longer_answers(self, connection: Connection, job_id: int, stage: Stage) -> bool:
        """Tell whether whatever can be claimed of a stage now is a repair of an answer that was cut off."""
        claimable = can_be_claimed(self._database.now)
        repairs = connection.execute(
            sa.select(work_item.c.repair)
            .distinct()
            .where(work_item.c.job_id == job_id, work_item.c.stage == stage.value, claimable)
        ).scalars()
        found = [wants_longer_answer(refusals_from_json(repair)) for repair in repairs]
        return bool(found) and all(found)

    def budgeted(self, tenant_name: str) -> bool:
        """Return whether a tenant has a budget."""
        with self._database.read() as connection:
            found = connection.execute(
                sa.select(quota.c.budget_micros).where(quota.c.scope == str(QuotaScope.of_tenant(tenant_name)))
            ).first()
        return found is not None and found.budget_micros is not None

    def charges_of(self, job_id: int) -> dict[str, Charges]:
        """Return what a job's calls are charged with, by the state of their reservations; empty where there are none.

        An open one is charged as estimated, and a settled one without a word of its use is, too.
        """
        tokens = sa.func.coalesce(quota_reservation.c.used_tokens, quota_reservation.c.tokens)
        micros = sa.func.coalesce(quota_reservation.c.used_micros, quota_reservation.c.cost_micros, 0)
        with self._database.read() as connection:
            rows = connection.execute(
                sa.select(
                    quota_reservation.c.state,
                    sa.func.count().label("calls"),
                    sa.func.sum(tokens).label("tokens"),
                    sa.func.sum(micros).label("micros"),
                )
                .join(attempt, attempt.c.token == quota_reservation.c.token)
                .where(attempt.c.job_id == job_id)
                .group_by(quota_reservation.c.state)
            ).all()
        return {
            row.state: Charges(calls=row.calls, tokens=int(row.tokens), cost_micros=int(row.micros)) for row in rows
        }

    def _owner(self, connection: Connection, scope: QuotaScope) -> dict[str, Any]:
        if scope.kind is ScopeKind.PROVIDER:
            return {}
        if scope.kind is ScopeKind.TENANT:
            if not connection.execute(sa.select(tenant.c.tenant).where(tenant.c.tenant == scope.name)).first():
                raise TenantNotFoundError(
                    f"there is no tenant '{scope.name}'; an operator adds one with 'rulegen tenant add {scope.name}'"
                )
            return {"tenant": scope.name}
        owner, _, key = scope.name.partition("/")
        found = connection.execute(
            sa.select(job.c.job_id).where(job.c.tenant == owner, job.c.submission_key == key)
        ).scalar_one_or_none()
        if found is None:
            raise JobNotFoundError(f"there is no job '{scope.name}'; 'rulegen list' shows the tenant's jobs")
        return {"job_id": found}


def _spent_so_far(connection: Connection, owner: Mapping[str, Any]) -> int:
    """Return what a new scope's calls have cost before anybody counted, as far as their provider told."""
    query = sa.select(sa.func.coalesce(sa.func.sum(attempt.c.cost_micros), 0)).join(
        job, job.c.job_id == attempt.c.job_id
    )
    of_owner = job.c.job_id == owner["job_id"] if "job_id" in owner else job.c.tenant == owner["tenant"]
    return int(connection.execute(query.where(of_owner, attempt.c.inherited_from.is_(None))).scalar_one())
