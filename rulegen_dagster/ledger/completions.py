"""Completions: the guard that decides whether an attempt may still change its item.

Every write here is one conditional UPDATE: the item is running, the token is this attempt's, the lease has not passed
on the ledger's clock, and the job has not ended. A row that does not meet all four is left as it is, and the attempt
is recorded as stale with what it cost.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rulegen_dagster.domain.canonical import sha256_hex
from rulegen_dagster.domain.refusal import refusals_to_json
from rulegen_dagster.domain.retry import RetryDecision
from rulegen_dagster.domain.states import AttemptOutcome, WorkState
from rulegen_dagster.domain.work import FailedAttempt, Offer
from rulegen_dagster.ledger.claims import not_terminal
from rulegen_dagster.ledger.database import Database
from rulegen_dagster.ledger.guarded import Addition, Columns, GuardedWrites
from rulegen_dagster.ledger.outbox import outbox_row
from rulegen_dagster.ledger.schema import attempt, outbox, transition, work_item

_USAGE = (
    "provider",
    "provider_called",
    "model_id",
    "provider_request_id",
    "tokens_in",
    "tokens_out",
    "cost_micros",
)
"""What an attempt's row tells of its call."""


class _Offered(NamedTuple):
    """What a completion writes of one item, its attempt, its outbox row and its transition."""

    job_id: int
    stage: str
    item_key: str
    stage_version: int
    token: str
    provider: str | None
    provider_called: bool
    model_id: str | None
    provider_request_id: str | None
    tokens_in: int | None
    tokens_out: int | None
    cost_micros: int | None
    output: str
    output_digest: str


class _Failed(NamedTuple):
    """What a failure writes of one item, its attempt and its transition."""

    job_id: int
    stage: str
    item_key: str
    stage_version: int
    token: str
    provider: str | None
    provider_called: bool
    model_id: str | None
    provider_request_id: str | None
    tokens_in: int | None
    tokens_out: int | None
    cost_micros: int | None
    to_state: str
    delay_ms: int | None
    budget: int
    outcome: str
    cause: str
    error_message: str
    refusal: str | None
    repair: str | None


@dataclass(frozen=True, kw_only=True)
class Completed:
    """The tokens of the offers that landed in this transaction, and of those that had landed in an earlier one.

    What the latter opened is there, and what they offer now is not what was accepted: nothing may be made of it.
    """

    landed: frozenset[str] = frozenset()
    landed_before: frozenset[str] = frozenset()


class Completions:
    """The statements that complete or fail attempts; built once for a database."""

    def __init__(self, database: Database) -> None:
        """Build the statements for the database's dialect."""
        now = database.now
        self._accepted_before = sa.select(attempt.c.token).where(
            attempt.c.token.in_(sa.bindparam("tokens", expanding=True)),
            attempt.c.outcome == AttemptOutcome.ACCEPTED.value,
        )

        def complete(row: Columns) -> sa.Update:
            return (
                sa.update(work_item)
                .where(work_item.c.token == row["token"], *_guard(now))
                .values(
                    state=WorkState.SUCCEEDED.value,
                    output=row["output"],
                    output_digest=row["output_digest"],
                    repair=sa.null(),
                    token=sa.null(),
                    lease_until=sa.null(),
                    worker=sa.null(),
                    updated_at=now,
                )
            )

        def end_offered(row: Columns, landed: sa.ColumnElement[bool]) -> sa.Update:
            outcome = sa.case((landed, AttemptOutcome.ACCEPTED.value), else_=AttemptOutcome.STALE.value)
            return _end(now, row, outcome).values(
                output_digest=row["output_digest"],
                error_code=sa.case((landed, sa.null()), else_="stale_claim"),
                error_message=sa.null(),
            )

        def accepted(row: Columns) -> Columns:
            return {**row, "to_state": sa.literal(WorkState.SUCCEEDED.value), "cause": sa.literal("accepted")}

        self._complete = GuardedWrites(
            database,
            _Offered,
            complete,
            end_offered,
            Addition(table=outbox, values=lambda row: outbox_row(row, now)),
            Addition(table=transition, values=lambda row: _log(now, accepted(row))),
        )

        def fail(row: Columns) -> sa.Update:
            return (
                sa.update(work_item)
                .where(work_item.c.token == row["token"], *_guard(now))
                .values(
                    state=row["to_state"],
                    next_attempt_at=sa.case(
                        (row["to_state"] == WorkState.WAITING.value, now + row["delay_ms"]), else_=None
                    ),
                    attempt_limit=work_item.c.attempt_limit + row["budget"],
                    # A repair that brought no draft is made again.
                    repair=sa.case(
                        (row["outcome"] == AttemptOutcome.INVALID_OUTPUT.value, row["repair"]),
                        else_=work_item.c.repair,
                    ),
                    token=sa.null(),
                    lease_until=sa.null(),
                    worker=sa.null(),
                    error_code=row["cause"],
                    error_message=row["error_message"],
                    updated_at=now,
                )
            )

        def end_failed(row: Columns, _landed: sa.ColumnElement[bool]) -> sa.Update:
            return _end(now, row, row["outcome"]).values(
                output_digest=sa.null(),
                error_code=row["cause"],
                error_message=row["error_message"],
                refusal=row["refusal"],
            )

        self._fail = GuardedWrites(
            database, _Failed, fail, end_failed, Addition(table=transition, values=lambda row: _log(now, row))
        )

    def complete(
        self, connection: Connection, offers: Sequence[Offer], *, worker: str, run_id: str | None
    ) -> Callable[[], Completed]:
        """Apply each offer that the guard lets through; return how to get the tokens that landed, now or before.

        Each output that is accepted gets its row in the outbox; `run_id` is the Dagster run, if there is one.
        An offer that did not land is recorded as stale on its attempt. It is not an error: its claim expired, another
        attempt was accepted, or the job ended.
        """
        if not offers:
            return Completed
        verdicts = self._complete.send(connection, [_offered(offer) for offer in offers], actor=worker, run_id=run_id)

        def completed() -> Completed:
            decided = [(offer.claim.token, landed) for offer, landed in zip(offers, verdicts(), strict=True)]
            refused = [token for token, landed in decided if not landed]
            before = frozenset[str]()
            if refused:
                # A commit whose answer was lost is offered again by its worker: it had landed.
                before = frozenset(connection.execute(self._accepted_before, {"tokens": refused}).scalars())
            return Completed(landed=frozenset(token for token, landed in decided if landed), landed_before=before)

        return completed

    def fail(
        self, connection: Connection, failures: Sequence[tuple[FailedAttempt, RetryDecision]], *, worker: str
    ) -> Callable[[], frozenset[str]]:
        """Book failed attempts and send their items to wait or to fail; return how to get the tokens that landed.

        Where the guard refuses (another attempt owns the item), only the attempt's own row is written.
        """
        if not failures:
            return frozenset
        verdicts = self._fail.send(
            connection, [_failed(failed, decision) for failed, decision in failures], actor=worker
        )
        return lambda: frozenset(
            failed.claim.token for (failed, _), landed in zip(failures, verdicts(), strict=True) if landed
        )


def _guard(now: sa.ColumnElement[int]) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        work_item.c.state == WorkState.RUNNING.value,
        work_item.c.lease_until > now,
        not_terminal(work_item.c.job_id),
    )


def _end(now: sa.ColumnElement[int], row: Columns, outcome: sa.ColumnElement[str]) -> sa.Update:
    return (
        sa.update(attempt)
        .where(
            attempt.c.token == row["token"],
            # A lost or cancelled attempt may report late: what it cost replaces the guess. A lost one that is only
            # given back tells nothing, and stays a crash. An accepted one is offered again and stays as it is.
            sa.or_(
                attempt.c.outcome.is_(None),
                attempt.c.outcome == AttemptOutcome.CANCELLED.value,
                sa.and_(attempt.c.outcome == AttemptOutcome.CRASHED.value, outcome != AttemptOutcome.CANCELLED.value),
            ),
        )
        .values(ended_at=now, outcome=outcome, **{name: row[name] for name in _USAGE})
    )


def _log(now: sa.ColumnElement[int], row: Columns) -> Columns:
    return {
        "job_id": row["job_id"],
        "subject": sa.literal("work_item"),
        "stage": row["stage"],
        "subject_key": row["item_key"],
        "from_state": sa.literal(WorkState.RUNNING.value),
        "to_state": row["to_state"],
        "cause": row["cause"],
        "actor": sa.bindparam("actor", type_=sa.Text),
        "at": now,
    }


def _offered(offer: Offer) -> _Offered:
    key, usage = offer.claim.key, offer.usage
    return _Offered(
        key.job_id,
        key.stage.value,
        key.item_key,
        key.stage_version,
        offer.claim.token,
        offer.provider,
        offer.provider_called,
        usage.model_id,
        usage.request_id,
        usage.tokens_in,
        usage.tokens_out,
        usage.cost_micros,
        output=offer.output,
        output_digest=sha256_hex(offer.output),
    )


def _failed(failed: FailedAttempt, decision: RetryDecision) -> _Failed:
    key, usage, refusal = failed.claim.key, failed.usage, refusals_to_json(failed.refusals)
    return _Failed(
        key.job_id,
        key.stage.value,
        key.item_key,
        key.stage_version,
        failed.claim.token,
        failed.provider,
        failed.provider_called,
        usage.model_id,
        usage.request_id,
        usage.tokens_in,
        usage.tokens_out,
        usage.cost_micros,
        to_state=decision.state.value,
        delay_ms=decision.delay_ms,
        budget=0 if decision.consumes_budget else 1,
        outcome=failed.outcome.value,
        cause=failed.error_code,
        error_message=failed.message,
        refusal=refusal,
        repair=refusal if decision.state is WorkState.WAITING else None,
    )
