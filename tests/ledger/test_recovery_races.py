"""Recovery against the completion that comes in at the same moment, and recovery that comes a day late."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import event

from rulegen_dagster.domain.errors import LedgerError, LedgerFault
from rulegen_dagster.domain.states import AttemptOutcome, Stage, WorkState
from rulegen_dagster.domain.work import Claim, Landing, Offer
from rulegen_dagster.ledger import database as databases
from rulegen_dagster.ledger.audit import Rows, audit_job
from rulegen_dagster.ledger.database import ManualClock
from rulegen_dagster.ledger.store import Ledger, open_ledger
from tests.conftest import POLICY
from tests.ledger.conftest import ALICE, BOB, MakeJob, claim, complete, stage_scope

RULES = stage_scope(Stage.GENERATE_RULES)
DAY_MS = 24 * 3_600_000
SOON_S = 10


def offer(held: Claim, output: str = '{"by":"alice"}') -> Offer:
    return Offer(claim=held, output=output, provider="test", provider_called=True)


def state_of(ledger: Ledger, job_id: int) -> tuple[WorkState, str | None]:
    (item,) = ledger.reads.items(job_id, Stage.GENERATE_RULES)
    return item.state, item.output


def after_the_pick(ledger: Ledger, act: Callable[[], None]) -> None:
    """Act once, in the middle of the ledger's next transaction that picks items: behind its read, before its writes."""
    acted: list[str] = []

    def picked(_c: Any, _cursor: Any, statement: str, _p: Any, _context: Any, _many: bool) -> None:
        if not acted and "work_item" in statement and statement.lstrip().startswith(("SELECT", "WITH")):
            acted.append(statement)
            act()

    event.listen(ledger.database.engine, "after_cursor_execute", picked)


@pytest.fixture
def other(ledger_url: str, clock: ManualClock) -> Iterator[Ledger]:
    """The same ledger as another process sees it: with connections of its own."""
    opened = open_ledger(ledger_url, POLICY, clock)
    yield opened
    opened.close()


def test_a_completion_that_is_underway_when_recovery_looks_stays_succeeded(
    ledger: Ledger, other: Ledger, make_job: MakeJob, clock: ManualClock
) -> None:
    job_id = make_job(1)
    (held,) = claim(ledger, RULES)
    if ledger.database.dialect == "sqlite":
        pytest.skip("one writer at a time: recovery cannot look while a completion is underway")

    with ledger.turn(ALICE) as turn:
        turn.offer(offer(held))
        landing = turn.settle()[held.token]
        # The lease passes between the completion's write and its commit, and recovery looks right then.
        clock.now_ms += 1_000
        taken = claim(other, RULES, claimant=BOB)
    again = claim(other, RULES, claimant=BOB)

    assert (landing, taken, again) == (Landing.ACCEPTED, (), ())
    assert state_of(ledger, job_id) == (WorkState.SUCCEEDED, '{"by":"alice"}')
    outcomes = [a.outcome for a in ledger.reads.attempts(job_id) if a.key.stage is Stage.GENERATE_RULES]
    assert outcomes == [AttemptOutcome.ACCEPTED]


def test_a_completion_between_recoverys_read_and_its_write_waits_and_is_late(
    ledger: Ledger, other: Ledger, make_job: MakeJob, clock: ManualClock
) -> None:
    job_id = make_job(1)
    (held,) = claim(ledger, RULES)
    clock.now_ms += 1_000
    late: list[Future[dict[str, Landing]]] = []
    entered = threading.Event()

    with ThreadPoolExecutor(1) as pool:

        def offered() -> dict[str, Landing]:
            entered.set()
            return complete(ledger, offer(held))

        def meanwhile() -> None:
            late.append(pool.submit(offered))
            assert entered.wait(SOON_S)

        after_the_pick(other, meanwhile)
        (taken,) = claim(other, RULES, claimant=BOB)
        landed = late[0].result(SOON_S)

    assert landed == {held.token: Landing.STALE}
    assert complete(other, offer(taken, '{"by":"bob"}'), claimant=BOB) == {taken.token: Landing.ACCEPTED}
    assert state_of(ledger, job_id) == (WorkState.SUCCEEDED, '{"by":"bob"}')


def test_an_item_that_succeeded_between_recoverys_plan_and_its_claim_stays_succeeded(
    ledger: Ledger, other: Ledger, make_job: MakeJob, clock: ManualClock
) -> None:
    job_id = make_job(1)
    claim(ledger, RULES)
    clock.now_ms += 1_000
    planned = other.reads.items(job_id, Stage.GENERATE_RULES)[0]
    (taken,) = claim(ledger, RULES)
    complete(ledger, offer(taken))

    late = claim(other, RULES, claimant=BOB)

    assert (planned.state, planned.attempts) == (WorkState.RUNNING, 1)
    assert late == ()
    assert state_of(ledger, job_id) == (WorkState.SUCCEEDED, '{"by":"alice"}')


def test_while_recovery_is_between_its_read_and_its_write_sqlite_admits_no_completion(
    ledger_url: str, ledger: Ledger, make_job: MakeJob, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    if ledger.database.dialect != "sqlite":
        pytest.skip("PostgreSQL lets the completion wait for the item's row alone")
    make_job(1)
    (held,) = claim(ledger, RULES)
    clock.now_ms += 1_000
    monkeypatch.setattr(databases, "BUSY_TIMEOUT_MS", 1)
    impatient = open_ledger(ledger_url, POLICY, clock)
    refused: list[LedgerFault | None] = []

    def meanwhile() -> None:
        with pytest.raises(LedgerError) as caught:
            complete(impatient, offer(held))
        refused.append(caught.value.fault)

    after_the_pick(ledger, meanwhile)
    (taken,) = claim(ledger, RULES, claimant=BOB)
    landed = complete(impatient, offer(held))
    impatient.close()

    assert refused == [LedgerFault.LOCKED]
    assert landed == {held.token: Landing.STALE}
    assert taken.attempt == 2


def _history(ledger: Ledger, clock: ManualClock, make_job: MakeJob, away_ms: int) -> Rows:
    """Leave an accepted item, a lost one and an open one behind; come back after `away_ms`, and finish."""
    tenant = f"away-{away_ms}"
    ledger.submissions.add_tenant(tenant)
    job_id = make_job(3, tenant=tenant)
    scope = stage_scope(Stage.GENERATE_RULES, job_id)
    accepted, _lost = claim(ledger, scope, 2)
    complete(ledger, offer(accepted))
    clock.now_ms += away_ms
    for held in claim(ledger, scope, 3, claimant=BOB):
        complete(ledger, offer(held, '{"by":"bob"}'), claimant=BOB)
    return audit_job(ledger.database, job_id)


def test_recovery_that_was_away_for_a_day_changes_nothing_but_time(
    ledger: Ledger, make_job: MakeJob, clock: ManualClock
) -> None:
    soon = _history(ledger, clock, make_job, 1_000)
    late = _history(ledger, clock, make_job, DAY_MS)

    what = ("item_key", "stage", "state", "attempts", "output", "outcome", "error_code", "worker", "attempt")

    def without_names_and_times(rows: Rows) -> dict[str, list[list[Any]]]:
        told = {
            table: [[row.get(column) for column in what] for row in rows[table]] for table in ("work_item", "attempt")
        }
        moves = [[row[c] for c in ("subject", "stage", "subject_key", "from_state", "to_state", "cause", "actor")]
                 for row in rows["transition"]]  # fmt: skip
        return told | {"transition": moves}

    assert without_names_and_times(late) == without_names_and_times(soon)
    outcomes = sorted(row["outcome"] for row in late["attempt"] if row["stage"] == "generate_rules")
    assert outcomes == ["accepted"] * 3 + ["crashed"]
