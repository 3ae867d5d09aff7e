"""Completions: the guard that decides whether an attempt may still change its item.

Every write here is one conditional UPDATE: the item is running, the token is this attempt's, the lease has not passed
on the ledger's clock, and the job has not ended. A row that does not meet all four is left as it is, and the attempt
is recorded as stale with what it cost.
"""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rulegen_dagster.domain.canonical import sha256_hex
from rulegen_dagster.domain.retry import RetryDecision
from rulegen_dagster.domain.states import AttemptOutcome, WorkState
from rulegen_dagster.domain.work import FailedAttempt, Offer
from rulegen_dagster.ledger.batch import batch, in_one_trip, rows_of
from rulegen_dagster.ledger.claims import not_terminal
from rulegen_dagster.ledger.database import Database
from rulegen_dagster.ledger.schema import attempt, transition, work_item

_USAGE = {
    "provider": sa.Text,
    "provider_called": sa.Boolean,
    "model_id": sa.Text,
    "provider_request_id": sa.Text,
    "tokens_in": sa.Integer,
    "tokens_out": sa.Integer,
    "cost_micros": sa.BigInteger,
}


class Completions:
    """The statements that complete or fail attempts; built once for a database."""

    def __init__(self, database: Database) -> None:
        """Build the statements for the database's dialect."""
        dialect, now = database.dialect, database.now
        offered = batch(dialect, "offers", token=sa.Text, output=sa.Text, output_digest=sa.Text, **_USAGE).alias(
            "offered"
        )
        self._complete = (
            sa.update(work_item)
            .where(work_item.c.token == offered.c.token, *_guard(now))
            .values(
                state=WorkState.SUCCEEDED,
                output=offered.c.output,
                output_digest=offered.c.output_digest,
                token=None,
                lease_until=None,
                worker=None,
                updated_at=now,
            )
            .returning(work_item.c.job_id, work_item.c.stage, work_item.c.item_key, work_item.c.attempts)
        )
        ended = batch(
            dialect,
            "ended",
            token=sa.Text,
            outcome=sa.Text,
            output_digest=sa.Text,
            error_code=sa.Text,
            error_message=sa.Text,
            **_USAGE,
        ).alias("ended_attempts")
        end_attempts = (
            sa.update(attempt)
            .where(
                attempt.c.token == ended.c.token,
                # A lost or cancelled attempt may report late: what it cost replaces the guess.
                sa.or_(
                    attempt.c.outcome.is_(None),
                    attempt.c.outcome.in_([AttemptOutcome.CRASHED.value, AttemptOutcome.CANCELLED.value]),
                ),
            )
            .values(
                ended_at=now,
                outcome=ended.c.outcome,
                output_digest=ended.c.output_digest,
                error_code=ended.c.error_code,
                error_message=ended.c.error_message,
                **{name: ended.c[name] for name in _USAGE},
            )
        )
        self._accepted_before = sa.select(attempt.c.token).where(
            attempt.c.token.in_(sa.bindparam("tokens", expanding=True)),
            attempt.c.outcome == AttemptOutcome.ACCEPTED.value,
        )
        failed = batch(
            dialect,
            "failures",
            token=sa.Text,
            state=sa.Text,
            delay_ms=sa.BigInteger,
            budget=sa.Integer,
            error_code=sa.Text,
            error_message=sa.Text,
        ).alias("failed_attempts")
        self._fail = (
            sa.update(work_item)
            .where(work_item.c.token == failed.c.token, *_guard(now))
            .values(
                state=failed.c.state,
                next_attempt_at=sa.case((failed.c.state == WorkState.WAITING, now + failed.c.delay_ms), else_=None),
                attempt_limit=work_item.c.attempt_limit + failed.c.budget,
                token=None,
                lease_until=None,
                worker=None,
                error_code=failed.c.error_code,
                error_message=failed.c.error_message,
                updated_at=now,
            )
            .returning(work_item.c.job_id, work_item.c.stage, work_item.c.item_key, work_item.c.attempts)
        )
        moved = batch(
            dialect,
            "moved",
            job_id=sa.BigInteger,
            stage=sa.Text,
            item_key=sa.Text,
            to_state=sa.Text,
            cause=sa.Text,
            actor=sa.Text,
        ).alias("moved_items")
        log = sa.insert(transition).from_select(
            ["job_id", "subject", "stage", "subject_key", "from_state", "to_state", "cause", "actor", "at"],
            sa.select(
                moved.c.job_id,
                sa.literal("work_item"),
                moved.c.stage,
                moved.c.item_key,
                sa.literal(WorkState.RUNNING.value),
                moved.c.to_state,
                moved.c.cause,
                moved.c.actor,
                now,
            ),
        )
        self._record = in_one_trip(dialect, end_attempts, log)

    def complete(self, connection: Connection, offers: Sequence[Offer], *, worker: str) -> frozenset[str]:
        """Apply each offer that the guard lets through; return the tokens that landed.

        An offer that did not land is recorded as stale on its attempt. It is not an error: its claim expired, another
        attempt was accepted, or the job ended.
        """
        if not offers:
            return frozenset()
        rows = [_offer_row(offer) for offer in offers]
        landed_items = {
            (row.job_id, row.stage, row.item_key, row.attempts)
            for row in connection.execute(self._complete, {"offers": rows_of(rows)})
        }
        landed = frozenset(offer.claim.token for offer in offers if _identity(offer) in landed_items)
        refused = [offer.claim.token for offer in offers if offer.claim.token not in landed]
        if refused:
            # A commit whose answer was lost is offered again by its worker: it had landed.
            landed |= frozenset(connection.execute(self._accepted_before, {"tokens": refused}).scalars())
        ended = [
            {
                **row,
                "outcome": AttemptOutcome.ACCEPTED if row["token"] in landed else AttemptOutcome.STALE,
                "error_code": None if row["token"] in landed else "stale_claim",
                "error_message": None,
            }
            for row in rows
        ]
        for row in ended:
            row.pop("output", None)
        moved = [
            _moved(offer, WorkState.SUCCEEDED, "accepted", worker)
            for offer in offers
            if _identity(offer) in landed_items
        ]
        for statement in self._record:
            connection.execute(statement, {"ended": rows_of(ended), "moved": rows_of(moved)})
        return landed

    def fail(
        self, connection: Connection, failures: Sequence[tuple[FailedAttempt, RetryDecision]], *, worker: str
    ) -> frozenset[str]:
        """Book failed attempts and send their items to wait or to fail; return the tokens that landed.

        Where the guard refuses (another attempt owns the item), only the attempt's own row is written.
        """
        if not failures:
            return frozenset()
        rows = [
            {
                "token": failed.claim.token,
                "state": decision.state,
                "delay_ms": decision.delay_ms,
                "budget": 0 if decision.consumes_budget else 1,
                "error_code": failed.error_code,
                "error_message": failed.message,
            }
            for failed, decision in failures
        ]
        landed_items = {
            (row.job_id, row.stage, row.item_key, row.attempts)
            for row in connection.execute(self._fail, {"failures": rows_of(rows)})
        }
        landed = frozenset(failed.claim.token for failed, _ in failures if _identity(failed) in landed_items)
        ended = [_failed_row(failed) for failed, _ in failures]
        moved = [
            _moved(failed, decision.state, failed.error_code, worker)
            for failed, decision in failures
            if failed.claim.token in landed
        ]
        for statement in self._record:
            connection.execute(statement, {"ended": rows_of(ended), "moved": rows_of(moved)})
        return landed


def _guard(now: sa.ColumnElement[int]) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        work_item.c.state == WorkState.RUNNING,
        work_item.c.lease_until > now,
        not_terminal(work_item.c.job_id),
    )


def _identity(work: Offer | FailedAttempt) -> tuple[int, str, str, int]:
    # The token is gone from the row by now; the attempt's number tells two attempts of one item apart.
    key = work.claim.key
    return key.job_id, key.stage, key.item_key, work.claim.attempt


def _usage_row(work: Offer | FailedAttempt) -> dict[str, Any]:
    return {
        "token": work.claim.token,
        "provider": work.provider,
        "provider_called": work.provider_called,
        "model_id": work.usage.model_id,
        "provider_request_id": work.usage.request_id,
        "tokens_in": work.usage.tokens_in,
        "tokens_out": work.usage.tokens_out,
        "cost_micros": work.usage.cost_micros,
    }


def _offer_row(offer: Offer) -> dict[str, Any]:
    return {**_usage_row(offer), "output": offer.output, "output_digest": sha256_hex(offer.output)}


def _failed_row(failed: FailedAttempt) -> dict[str, Any]:
    return {
        **_usage_row(failed),
        "outcome": failed.outcome,
        "output_digest": None,
        "error_code": failed.error_code,
        "error_message": failed.message,
    }


def _moved(work: Offer | FailedAttempt, state: WorkState, cause: str, worker: str) -> dict[str, Any]:
    key = work.claim.key
    return {
        "job_id": key.job_id,
        "stage": key.stage,
        "item_key": key.item_key,
        "to_state": state,
        "cause": cause,
        "actor": worker,
    }
