"""Reservations: what the claims of a turn may use of their scopes' quotas, in the claim's own transaction.

A turn settles what its ended attempts had reserved and reserves for its claims under one lock: `QuotaTurn.begin` locks
every row that the turn may need in one statement, in the order of their names, and nothing that the transaction does
afterwards waits for a row. No two turns can therefore wait for each other. Where no scope of the ledger has a quota,
a turn asks nothing.
"""

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rulegen_dagster.domain.quota import (
    NO_QUOTA,
    Bucket,
    Estimate,
    QuotaReason,
    QuotaRefusal,
    answered,
    blocked,
    clamped,
    full_bucket,
    longest_covered,
    refusal_of,
    reserved,
    settled,
    tripped,
)
from rulegen_dagster.domain.quota_scope import ScopeKind
from rulegen_dagster.domain.retry import RetryDecision
from rulegen_dagster.domain.settlement import OPEN_RESERVATIONS, ReservationState, Settlement, settlement_of
from rulegen_dagster.domain.states import Stage
from rulegen_dagster.domain.work import FailedAttempt, Offer
from rulegen_dagster.ledger.batch import batch, rows_of
from rulegen_dagster.ledger.database import Database
from rulegen_dagster.ledger.picks import Found
from rulegen_dagster.ledger.quota_rows import JobScopes, QuotaRows, levels_of
from rulegen_dagster.ledger.quota_schema import quota, quota_reservation

OVERTAKEN_MS = 1_000
"""How much later than another call one that was claimed before it may reach the provider."""


@dataclass(frozen=True, kw_only=True)
class _Grant:
    scopes: tuple[str, ...]
    of_job: JobScopes
    need: Estimate


class Reservations:
    """The statements of reservations, and whether any scope has a quota; built once for a database."""

    def __init__(self, database: Database) -> None:
        """Build the statements for the database's dialect."""
        now, dialect = database.now, database.dialect
        self.now = now
        self.rows = QuotaRows(database)
        self._any = sa.select(quota.c.scope).limit(1)
        of_tokens = quota_reservation.c.token.in_(sa.bindparam("listed", expanding=True))
        self.of_tokens = sa.select(quota_reservation).where(of_tokens)
        ended = batch(
            dialect,
            "ended",
            token=sa.Text,
            state=sa.Text,
            requests=sa.BigInteger,
            tokens=sa.BigInteger,
            micros=sa.BigInteger,
        ).alias("ended_attempts")
        self.close = (
            sa.update(quota_reservation)
            .where(
                quota_reservation.c.token == ended.c.token,
                sa.or_(*(quota_reservation.c.state == state.value for state in OPEN_RESERVATIONS)),
            )
            .values(
                state=ended.c.state,
                used_requests=ended.c.requests,
                used_tokens=ended.c.tokens,
                used_micros=ended.c.micros,
                settled_at=now,
            )
            .returning(quota_reservation.c.token)
        )
        self.keep = (
            sa.update(quota_reservation)
            .where(of_tokens, quota_reservation.c.state == ReservationState.RESERVED.value)
            .values(state=ReservationState.KEPT.value)
        )
        # What a provider had not counted yet when it took a call: whatever was reserved later, and what was reserved a
        # moment before and may have been overtaken. It counts what may be used, and does not give back what was not.
        since = sa.bindparam("since", type_=sa.BigInteger)
        created, state = quota_reservation.c.created_at, quota_reservation.c.state
        is_released = state == ReservationState.RELEASED.value
        used = {"requests": sa.literal(1), "tokens": quota_reservation.c.tokens}
        self.later = sa.select(
            *(
                sa.func.coalesce(sa.func.sum(sa.case((is_released, 0), else_=count)), 0).label(name)
                for name, count in used.items()
            )
        ).where(
            quota_reservation.c.provider_scope == sa.bindparam("scope", type_=sa.Text),
            quota_reservation.c.token != sa.bindparam("token", type_=sa.Text),
            created >= since - OVERTAKEN_MS,
            sa.or_(created >= since, state == ReservationState.RESERVED.value),
        )
        self._is_on: bool | None = None
        # Whose turn it was when, for this process: where little is left, it goes round.
        self._serial = itertools.count(1)
        self._granted: dict[int, int] = {}

    def is_on(self, connection: Connection) -> bool:
        """Return whether any scope has a row; looked up once, and again by `refresh`."""
        if self._is_on is None:
            self._is_on = connection.execute(self._any).first() is not None
        return self._is_on

    def refresh(self, connection: Connection | None = None) -> None:
        """Look again; without a connection, when next somebody asks."""
        self._is_on = None
        if connection is not None:
            self.is_on(connection)

    def turned_on(self) -> None:
        """Know that a scope has a row from now on."""
        self._is_on = True

    def in_turn(self, rows: Sequence[Found]) -> list[Found]:
        """Return picked items so that the jobs which were granted something last come last."""
        return sorted(rows, key=lambda row: self._granted.get(row.job_id, 0))

    def granted(self, job_id: int) -> None:
        """Remember whose turn it was."""
        self._granted[job_id] = next(self._serial)


class QuotaTurn:
    """The quotas of one turn; made anew for each transaction."""

    def __init__(self, connection: Connection, reservations: Reservations) -> None:
        """Made by `Ledger.turn`."""
        self._connection = connection
        self._all = reservations
        self._settlements: list[Settlement] = []
        self._has_begun = False
        self._now = 0
        self._buckets: dict[str, Bucket] = {}
        self._before: dict[str, Bucket] = {}
        self._jobs: dict[int, JobScopes] = {}
        self._grants: dict[str, _Grant] = {}
        self._bounded: set[str] = set()
        self._wait_ms: int | None = None

    @property
    def is_on(self) -> bool:
        """Whether any scope has a quota."""
        return self._all.is_on(self._connection)

    @property
    def has_begun(self) -> bool:
        """Whether the turn has locked the quotas that it may need."""
        return self._has_begun

    @property
    def wait_ms(self) -> int | None:
        """The shortest time after which one of the refused claims may be granted; None where none is known."""
        return self._wait_ms

    def settle(self, offers: Sequence[Offer], failures: Sequence[tuple[FailedAttempt, RetryDecision]]) -> None:
        """Remember what ended in this turn; it is booked together with the claims, or when the turn ends.

        An account that is refused has a breaker where nothing else is limited, too.
        """
        if not self.is_on and not any(failed.account_refused for failed, _ in failures):
            return
        self._settlements += [settlement_of(offer) for offer in offers]
        self._settlements += [settlement_of(failed, decision) for failed, decision in failures]

    def begin(self, job_ids: Collection[int] | None) -> None:
        """Lock the quotas of some jobs (None: of any) and of what ended, and settle that; once in a turn."""
        if self._has_begun:
            return
        self._has_begun = True
        told = {one.token: one for one in self._settlements}
        held = self._connection.execute(self._all.of_tokens, {"listed": sorted(told)}).all() if told else ()
        refused = [one for one in told.values() if one.refused_code is not None]
        self._jobs = self._all.rows.scopes_of(
            self._connection, {*(job_ids or ()), *(one.job_id for one in told.values())}
        )
        of_token = {row.token: row for row in held}
        self._add_rows({self._provider_called(one, of_token) for one in refused})
        names = {name for of_job in self._jobs.values() for name in of_job.names}
        names |= {scope for row in held for scope in _scopes(row)}
        locked, self._now = self._all.rows.buckets(self._connection, None if job_ids is None else names, lock=True)
        self._before, self._buckets = locked, dict(locked)
        if locked and told:
            self._book(told, of_token)

    def order(self, rows: Sequence[Found]) -> Sequence[Found]:
        """Return picked items in the order in which they are to be asked for."""
        return self._all.in_turn(rows) if self._buckets else rows

    @property
    def bounded(self) -> frozenset[str]:
        """The tokens of claims that got room for the usual answer, because some quota does not cover a longer one."""
        return frozenset(self._bounded)

    def admits(self, job_id: int, stage: Stage, token: str, *, longer: bool = False) -> bool:
        """Reserve for one claim in every scope of its job, or in none; return whether it may be made.

        `longer` asks for room for a longer answer.
        """
        if not self._buckets:
            return True
        if job_id not in self._jobs:
            self._jobs |= self._all.rows.scopes_of(self._connection, {job_id})
        of_job = self._jobs[job_id]
        scopes = tuple(name for name in of_job.names if name in self._buckets)
        if not scopes:
            return True
        need = need_of(of_job, stage, [self._buckets[name] for name in scopes], longer=longer)
        found = [_refusal(self._buckets[name], need, self._now) for name in scopes]
        waits = [refusal.wait_ms for refusal in found if refusal is not None]
        if waits or need is None:
            # Every scope has to have room at once; a wait without an end is nothing to wake up for.
            known = [wait for wait in waits if wait is not None]
            if len(known) == len(waits) and known:
                self._wait_ms = min(max(known), self._wait_ms if self._wait_ms is not None else max(known))
            return False
        for name in scopes:
            self._buckets[name] = reserved(self._buckets[name], need, self._now, by=token)
        self._grants[token] = _Grant(scopes=scopes, of_job=of_job, need=need)
        self._all.granted(job_id)
        if longer and need.longer_tokens:
            self._bounded.add(token)
        return True

    def withdraw(self, tokens: Iterable[str]) -> None:
        """Take back what was reserved for claims that were not made after all."""
        for token in tokens:
            grant = self._grants.pop(token, None)
            if grant is None:
                continue
            self._bounded.discard(token)
            for name in grant.scopes:
                bucket = settled(self._buckets[name], grant.need, requests=0, tokens=0, micros=0)
                self._buckets[name] = replace(bucket, in_flight=bucket.in_flight - 1)

    def finish(self) -> None:
        """Write what the turn reserved and settled; its last write. The attempts of its claims are stored."""
        if not self._has_begun:
            if not self._settlements:
                return
            self.begin(())
        changed = {name: bucket for name, bucket in self._buckets.items() if bucket != self._before[name]}
        self._all.rows.save(self._connection, changed)
        if self._grants:
            self._connection.execute(
                sa.insert(quota_reservation), [self._row(token, grant) for token, grant in self._grants.items()]
            )
        self._before, self._grants = dict(self._buckets), {}

    def _row(self, token: str, grant: _Grant) -> dict[str, Any]:
        def charged(name: str) -> str | None:
            return name if name in grant.scopes else None

        return {
            "token": token,
            "provider_scope": charged(grant.of_job.provider),
            "tenant_scope": charged(grant.of_job.tenant),
            "job_scope": charged(grant.of_job.job),
            "tokens": grant.need.tokens,
            "cost_micros": grant.need.cost_micros,
            "state": ReservationState.RESERVED.value,
            "created_at": self._now,
        }

    def _add_rows(self, providers: Collection[str]) -> None:
        """Give an account that was refused a row, where it has none: its breaker stands there."""
        for scope in sorted(providers):
            add_scope(self._connection, self._all.now, scope, kind=ScopeKind.PROVIDER)
            self._all.turned_on()

    def _book(self, told: dict[str, Settlement], of_token: Mapping[str, sa.Row[Any]]) -> None:
        closing = [one for token, one in told.items() if token in of_token and one.state is not ReservationState.KEPT]
        closed = self._closed(closing)
        kept = [token for token, one in told.items() if token in of_token and one.state is ReservationState.KEPT]
        if kept:
            self._connection.execute(self._all.keep, {"listed": kept})
        for token in (token for token in told if token in closed):
            row, one = of_token[token], told[token]
            need = Estimate(tokens=row.tokens, cost_micros=row.cost_micros)
            for name in _scopes(row):
                if name in self._buckets:
                    self._buckets[name] = settled(
                        self._buckets[name], need, requests=one.requests, tokens=one.tokens, micros=one.micros
                    )
        self._clamp([(of_token[token], told[token]) for token in told if token in closed])
        for one in told.values():
            self._hear(one, self._provider_called(one, of_token))

    def _closed(self, closing: Sequence[Settlement]) -> set[str]:
        if not closing:
            return set()
        ended = rows_of(
            {
                "token": one.token,
                "state": one.state.value,
                "requests": one.requests,
                "tokens": one.tokens,
                "micros": one.micros,
            }
            for one in closing
        )
        return set(self._connection.execute(self._all.close, {"ended": ended}).scalars())

    def _clamp(self, ended: Sequence[tuple[sa.Row[Any], Settlement]]) -> None:
        """Lower each provider's levels to what its newest answer says is left."""
        newest: dict[str, tuple[sa.Row[Any], Settlement]] = {}
        for row, one in sorted(ended, key=lambda pair: pair[0].created_at):
            if one.remaining is not None and row.provider_scope is not None:
                newest[row.provider_scope] = row, one
        for scope, (row, one) in newest.items():
            if one.remaining is None or scope not in self._buckets:
                continue
            later = self._connection.execute(
                self._all.later, {"scope": scope, "since": row.created_at, "token": row.token}
            ).one()
            self._buckets[scope] = clamped(
                self._buckets[scope],
                one.remaining,
                requests_after=int(later.requests),
                tokens_after=int(later.tokens),
            )

    def _provider_called(self, one: Settlement, of_token: Mapping[str, sa.Row[Any]]) -> str:
        """Return the scope of the provider that was called; a job may have been migrated to another one since."""
        row = of_token.get(one.token)
        reserved = row.provider_scope if row is not None else None
        return reserved or self._jobs[one.job_id].provider

    def _hear(self, one: Settlement, name: str) -> None:
        """Apply what a call said of the provider itself."""
        bucket = self._buckets.get(name)
        if bucket is None:
            return
        if one.has_answered:
            bucket = answered(bucket, by=one.token)
        if one.blocked_ms:
            bucket = blocked(bucket, self._now + one.blocked_ms)
        if one.refused_code is not None:
            bucket = tripped(bucket, self._now, by=one.token, code=one.refused_code)
        self._buckets[name] = bucket


def need_of(of_job: JobScopes, stage: Stage, buckets: Collection[Bucket], *, longer: bool) -> Estimate | None:
    """Return what a call of the stage may use; None where nobody has estimated it and some limit depends on it.

    With a `longer` answer it is that of `longest_covered`.
    """
    need = of_job.estimates.get(stage)
    if need is not None:
        return longest_covered(need, buckets) if longer else need
    is_counted = any(
        bucket.limits.tokens_per_minute is not None or bucket.limits.budget_micros is not None for bucket in buckets
    )
    return None if is_counted else Estimate()


def _refusal(bucket: Bucket, need: Estimate | None, now: int) -> QuotaRefusal | None:
    if need is None:
        return QuotaRefusal(reason=QuotaReason.NO_ESTIMATE, wait_ms=None)
    return refusal_of(bucket, need, now)


def add_scope(connection: Connection, now: sa.ColumnElement[int], scope: str, *, kind: ScopeKind, **owner: Any) -> bool:
    """Add a scope without a limit; return False where it has a row. Of two at once, the second waits for the first."""
    # ON CONFLICT is spelled alike in both dialects but lives in two modules of SQLAlchemy, each slow to import.
    insert = import_module(f"sqlalchemy.dialects.{connection.dialect.name}").insert
    levels = levels_of(full_bucket(NO_QUOTA, 0))
    values = {**levels, "scope": scope, "kind": kind.value, "refilled_at": now, "created_at": now, **owner}
    added = connection.execute(insert(quota).values(**values).on_conflict_do_nothing().returning(quota.c.scope)).first()
    return added is not None


def _scopes(row: sa.Row[Any]) -> tuple[str, ...]:
    return tuple(scope for scope in (row.provider_scope, row.tenant_scope, row.job_scope) if scope is not None)
