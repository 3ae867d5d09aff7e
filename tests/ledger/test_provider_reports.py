"""Reports of providers in the ledger: kept with the attempt whose call they are of, and with no other."""

import pytest
import sqlalchemy as sa

from rulegen_dagster.domain.errors import LedgerError
from rulegen_dagster.domain.retry import RetryDecision
from rulegen_dagster.domain.states import AttemptOutcome, Stage, WorkState
from rulegen_dagster.domain.work import FailedAttempt, Landing, Offer, Usage
from rulegen_dagster.ledger.database import ManualClock
from rulegen_dagster.ledger.reports import Report
from rulegen_dagster.ledger.schema import attempt
from rulegen_dagster.ledger.store import Ledger
from tests.ledger.conftest import ALICE, MakeJob, claim, complete, stage_scope

REPORT: Report = {"finish_reason": "stop", "sent_temperature": 0.5, "usage_reasoning_tokens": 12, "response_id": None}
WAITS = RetryDecision(state=WorkState.WAITING, delay_ms=0, consumes_budget=True)


def test_a_report_is_kept_with_its_attempt_however_that_ended(
    ledger: Ledger, make_job: MakeJob, clock: ManualClock
) -> None:
    job_id = make_job(3)
    accepted, failed, late = claim(ledger, stage_scope(Stage.GENERATE_RULES, job_id), 3)
    told = Usage(report=REPORT)
    offer = Offer(claim=accepted, output="{}", provider="m", provider_called=True, usage=told)
    refused = FailedAttempt(
        claim=failed,
        outcome=AttemptOutcome.INVALID_OUTPUT,
        error_code="invalid_json",
        message="no JSON",
        provider="m",
        provider_called=True,
        usage=told,
    )
    with ledger.turn(ALICE) as turn:
        turn.offer(offer)
        turn.settle([(refused, WAITS)])
    clock.now_ms += 600_000

    stale = Offer(claim=late, output="{}", provider="m", provider_called=True, usage=told)
    landing = complete(ledger, stale)

    made = {record.outcome: record.report for record in ledger.reads.attempts(job_id) if record.provider_called}
    assert landing == {late.token: Landing.STALE}
    assert made == {
        AttemptOutcome.ACCEPTED: REPORT,
        AttemptOutcome.INVALID_OUTPUT: REPORT,
        AttemptOutcome.STALE: REPORT,
    }


def test_an_attempt_without_a_report_has_an_empty_one(ledger: Ledger, make_job: MakeJob) -> None:
    job_id = make_job(1)
    (only,) = claim(ledger, stage_scope(Stage.GENERATE_RULES, job_id))

    complete(ledger, Offer(claim=only, output="{}", provider="m", provider_called=True))

    with ledger.database.read() as connection:
        stored = connection.execute(sa.select(attempt.c.report).where(attempt.c.token == only.token)).scalar_one()
    assert stored is None
    assert all(record.report == {} for record in ledger.reads.attempts(job_id))


def test_the_database_refuses_a_report_of_an_attempt_that_called_nobody(ledger: Ledger, make_job: MakeJob) -> None:
    job_id = make_job(1)
    (only,) = claim(ledger, stage_scope(Stage.GENERATE_RULES, job_id))
    complete(ledger, Offer(claim=only, output="{}"))

    with pytest.raises(LedgerError), ledger.database.write() as connection:
        connection.execute(sa.update(attempt).where(attempt.c.token == only.token).values(report="{}"))
