"""Unused calls: provider calls that are paid for, or may be, and whose output no item took."""

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rulegen_dagster.domain.states import AttemptOutcome, Stage
from rulegen_dagster.domain.work import WorkKey
from rulegen_dagster.ledger.schema import attempt, work_item

UNUSED_OUTCOMES = (
    AttemptOutcome.STALE,
    AttemptOutcome.AMBIGUOUS,
    AttemptOutcome.CRASHED,
    AttemptOutcome.CANCELLED,
)
"""How an attempt ends whose call was paid for, or may be, and not used."""


@dataclass(frozen=True, kw_only=True)
class UnusedCall:
    """One such call; what its provider did not tell is None.

    `equals_accepted` tells whether a late output is the accepted one; None where there are not two to compare.
    """

    key: WorkKey
    attempt: int
    outcome: AttemptOutcome
    provider: str | None
    request_id: str | None
    tokens_in: int | None
    tokens_out: int | None
    cost_micros: int | None
    started_at: int
    equals_accepted: bool | None


@dataclass(frozen=True, kw_only=True)
class UnusedCalls:
    """The latest unused calls of a job, newest first, and how many there are in all."""

    latest: tuple[UnusedCall, ...]
    total: int


def unused_calls(connection: Connection, job_id: int, *, limit: int) -> UnusedCalls:
    """Return a job's unused calls, the newest `limit` of them in full."""
    same_item = (attempt.c[name] == work_item.c[name] for name in ("job_id", "stage", "item_key", "stage_version"))
    rows = connection.execute(
        sa.select(
            attempt,
            work_item.c.output_digest.label("accepted_digest"),
            sa.func.count().over().label("total"),
        )
        .join(work_item, sa.and_(*same_item))
        .where(
            attempt.c.job_id == job_id,
            attempt.c.provider_called,
            attempt.c.outcome.in_([outcome.value for outcome in UNUSED_OUTCOMES]),
        )
        .order_by(attempt.c.started_at.desc(), attempt.c.stage, attempt.c.item_key, attempt.c.attempt.desc())
        .limit(limit)
    ).all()
    return UnusedCalls(
        latest=tuple(
            UnusedCall(
                key=WorkKey(
                    job_id=row.job_id, stage=Stage(row.stage), item_key=row.item_key, stage_version=row.stage_version
                ),
                attempt=row.attempt,
                outcome=AttemptOutcome(row.outcome),
                provider=row.provider,
                request_id=row.provider_request_id,
                tokens_in=row.tokens_in,
                tokens_out=row.tokens_out,
                cost_micros=row.cost_micros,
                started_at=row.started_at,
                equals_accepted=_equal(row.output_digest, row.accepted_digest),
            )
            for row in rows
        ),
        total=rows[0].total if rows else 0,
    )


def _equal(digest: str | None, accepted: str | None) -> bool | None:
    return None if digest is None or accepted is None else digest == accepted
