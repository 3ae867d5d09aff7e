"""Completions: the guard that decides whether an attempt may still change its item.

Every write here is one conditional UPDATE: the item is running, the token is this attempt's, the lease has not passed
on the ledger's clock, and the job has not ended. A row that does not meet all four is left as it is, and the attempt
is recorded as stale with what it cost.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rulegen_dagster.domain.canonical import sha256_hex
from rulegen_dagster.domain.refusal import refusals_to_json
from rulegen_dagster.domain.retry import RetryDecision
from rulegen_dagster.domain.states import AttemptOutcome, WorkState
from rulegen_dagster.domain.work import FailedAttempt, Offer
from rulegen_dagster.ledger.claims import not_terminal
from rulegen_dagster.ledger.database import Database
from rulegen_dagster.ledger.guarded import Columns, GuardedWrites
from rulegen_dagster.ledger.outbox import into_outbox
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
        key = {"job_id": sa.BigInteger, "stage": sa.Text, "item_key": sa.Text, "stage_version": sa.Integer}

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

        def add_to_outbox(row: Columns, landed: sa.ColumnElement[bool]) -> sa.Insert:
            return into_outbox(row, now, landed)

        def log_accepted(row: Columns, landed: sa.ColumnElement[bool]) -> sa.Insert:
            accepted = {"to_state": sa.literal(WorkState.SUCCEEDED.value), "cause": sa.literal("accepted")}
            return _log(now, {**row, **accepted}, landed)

        self._complete = GuardedWrites(
            database,
            {**key, "token": sa.Text, "output": sa.Text, "output_digest": sa.Text, **_USAGE},
            complete,
            end_offered,
            add_to_outbox,
            log_accepted,
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

        def log_failed(row: Columns, landed: sa.ColumnElement[bool]) -> sa.Insert:
            return _log(now, row, landed)

        self._fail = GuardedWrites(
            database,
            {
                **key,
                "token": sa.Text,
                **_USAGE,
                "to_state": sa.Text,
                "delay_ms": sa.BigInteger,
                "budget": sa.Integer,
                "outcome": sa.Text,
                "cause": sa.Text,
                "error_message": sa.Text,
                "refusal": sa.Text,
                "repair": sa.Text,
            },
            fail,
            end_failed,
            log_failed,
        )

    def complete(
        self, connection: Connection, offers: Sequence[Offer], *, worker: str, run_id: str | None
    ) -> Completed:
        """Apply each offer that the guard lets through; return the tokens that landed, now or before.

        Each output that is accepted gets its row in the outbox; `run_id` is the Dagster run, if there is one.
        An offer that did not land is recorded as stale on its attempt. It is not an error: its claim expired, another
        attempt was accepted, or the job ended.
        """
        if not offers:
            return Completed()
        verdicts = self._complete.run(connection, [_offer_row(offer) for offer in offers], actor=worker, run_id=run_id)
        tokens = [offer.claim.token for offer in offers]
        landed = frozenset(token for token, has_landed in zip(tokens, verdicts, strict=True) if has_landed)
        refused = [token for token in tokens if token not in landed]
        before = frozenset[str]()
        if refused:
            # A commit whose answer was lost is offered again by its worker: it had landed.
            before = frozenset(connection.execute(self._accepted_before, {"tokens": refused}).scalars())
        return Completed(landed=landed, landed_before=before)

    def fail(
        self, connection: Connection, failures: Sequence[tuple[FailedAttempt, RetryDecision]], *, worker: str
    ) -> frozenset[str]:
        """Book failed attempts and send their items to wait or to fail; return the tokens that landed.

        Where the guard refuses (another attempt owns the item), only the attempt's own row is written.
        """
        if not failures:
            return frozenset()
        rows = [_failed_row(failed, decision) for failed, decision in failures]
        verdicts = self._fail.run(connection, rows, actor=worker)
        return frozenset(row["token"] for row, has_landed in zip(rows, verdicts, strict=True) if has_landed)


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


def _log(now: sa.ColumnElement[int], row: Columns, landed: sa.ColumnElement[bool]) -> sa.Insert:
    moved = sa.select(
        row["job_id"],
        sa.literal("work_item"),
        row["stage"],
        row["item_key"],
        sa.literal(WorkState.RUNNING.value),
        row["to_state"],
        row["cause"],
        sa.bindparam("actor", type_=sa.Text),
        now,
    ).where(landed)
    return sa.insert(transition).from_select(
        ["job_id", "subject", "stage", "subject_key", "from_state", "to_state", "cause", "actor", "at"], moved
    )


def _attempt_row(work: Offer | FailedAttempt) -> dict[str, Any]:
    key = work.claim.key
    return {
        "job_id": key.job_id,
        "stage": key.stage.value,
        "item_key": key.item_key,
        "stage_version": key.stage_version,
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
    return {**_attempt_row(offer), "output": offer.output, "output_digest": sha256_hex(offer.output)}


def _failed_row(failed: FailedAttempt, decision: RetryDecision) -> dict[str, Any]:
    refusal = refusals_to_json(failed.refusals)
    return {
        **_attempt_row(failed),
        "to_state": decision.state.value,
        "delay_ms": decision.delay_ms,
        "budget": 0 if decision.consumes_budget else 1,
        "outcome": failed.outcome.value,
        "cause": failed.error_code,
        "error_message": failed.message,
        "refusal": refusal,
        "repair": refusal if decision.state is WorkState.WAITING else None,
    }
