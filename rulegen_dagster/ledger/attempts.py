"""Attempts as values: one row for each try at a work item."""

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from rulegen_dagster.domain.refusal import Refusal, refusals_from_json
from rulegen_dagster.domain.states import AttemptOutcome, Stage
from rulegen_dagster.domain.work import AttemptKind, WorkKey
from rulegen_dagster.ledger.database import Database
from rulegen_dagster.ledger.reports import Report, report_from_json
from rulegen_dagster.ledger.schema import attempt


@dataclass(frozen=True, kw_only=True)
class AttemptRecord:
    """One attempt at an item; `refusals` say why its draft was refused, where it was.

    `report` is what else its provider said of itself; empty where it said nothing.
    """

    key: WorkKey
    attempt: int
    kind: AttemptKind
    worker: str
    run_id: str | None
    operation_key: str
    outcome: AttemptOutcome | None
    provider: str | None
    provider_called: bool
    model_id: str | None
    request_id: str | None
    tokens_in: int | None
    tokens_out: int | None
    cost_micros: int | None
    started_at: int
    ended_at: int | None
    error_code: str | None
    refusals: tuple[Refusal, ...]
    report: Report
    inherited_from: int | None


def attempt_record(row: sa.Row[Any]) -> AttemptRecord:
    """Return a row of the table as a value."""
    return AttemptRecord(
        key=WorkKey(job_id=row.job_id, stage=Stage(row.stage), item_key=row.item_key, stage_version=row.stage_version),
        attempt=row.attempt,
        kind=AttemptKind(row.kind),
        worker=row.worker,
        run_id=row.dagster_run_id,
        operation_key=row.operation_key,
        outcome=AttemptOutcome(row.outcome) if row.outcome else None,
        provider=row.provider,
        provider_called=row.provider_called,
        model_id=row.model_id,
        request_id=row.provider_request_id,
        tokens_in=row.tokens_in,
        tokens_out=row.tokens_out,
        cost_micros=row.cost_micros,
        started_at=row.started_at,
        ended_at=row.ended_at,
        error_code=row.error_code,
        refusals=refusals_from_json(row.refusal),
        report=report_from_json(row.report),
        inherited_from=row.inherited_from,
    )


def repair_counts(database: Database, job_id: int) -> tuple[int, int]:
    """Return how many repairs a job's items were given, and how many of them were accepted."""
    accepted = sa.func.count().filter(attempt.c.outcome == AttemptOutcome.ACCEPTED.value)
    query = sa.select(sa.func.count(), accepted).where(
        attempt.c.job_id == job_id, attempt.c.kind == AttemptKind.REPAIR.value
    )
    with database.read() as connection:
        row = connection.execute(query).one()
    return int(row[0]), int(row[1])
