"""A running engine ends the calls of a cancelled job by itself, on the real clock."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rulegen_dagster.domain.errors import InputError, LedgerError
from rulegen_dagster.domain.states import AttemptOutcome, Stage, WorkState
from rulegen_dagster.domain.work import Claim, Offer
from rulegen_dagster.ledger.cancellations import Cancellations
from rulegen_dagster.ledger.claims import Scope
from rulegen_dagster.ledger.database import DatabaseClock
from rulegen_dagster.settings import Settings
from rulegen_dagster.workflow.engine import Engine, Outcome, offer_directly
from rulegen_dagster.workflow.partitions import KeyState, drain_keys
from rulegen_dagster.workflow.runtime import Runtime, open_runtime
from tests.workflow.conftest import RULES, drain, make_items, offer_of, open_rules, policy, scripted

# A lease far beyond the test: only the look can end a call.
LEASE_MS = 600_000
SOON_S = 20.0


@pytest.fixture
def timed(ledger_url: str, tmp_path: Path) -> Iterator[Runtime]:
    """A runtime on the database's own clock, with leases that outlive the test."""
    settings = Settings(home=tmp_path / "home", database_url=ledger_url, slots=4, lease_ms=LEASE_MS)
    opened = open_runtime(settings, clock=DatabaseClock())
    yield opened
    opened.close()


def _cancel_elsewhere(url: str, job_id: int) -> None:
    """Cancel as another process would: over connections of its own."""
    other = open_runtime(Settings(database_url=url), clock=DatabaseClock())
    try:
        other.ledger.cancellations.cancel(job_id, actor="ann", reason="wrong edition")
    finally:
        other.close()


def test_calls_in_flight_of_a_cancelled_job_are_ended_long_before_their_leases(timed: Runtime, ledger_url: str) -> None:
    job_id = make_items(timed, 6)
    ended: list[str] = []
    outcomes: list[Outcome] = []

    async def scenario() -> None:
        started = asyncio.Semaphore(0)

        async def attempt(claim: Claim) -> Offer:
            started.release()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(claim.key.item_key)
            return offer_of(claim)

        engine = Engine(timed, attempt, slots=4, observe=outcomes.append)
        work = asyncio.create_task(engine.drain(Scope(stages=RULES)))
        for _ in range(4):
            await started.acquire()
        await asyncio.to_thread(_cancel_elsewhere, ledger_url, job_id)
        await asyncio.wait_for(work, SOON_S)

    asyncio.run(scenario())

    attempts = [a for a in timed.ledger.reads.attempts(job_id) if a.key.stage is Stage.GENERATE_RULES]
    items = timed.ledger.reads.items(job_id, Stage.GENERATE_RULES)
    assert sorted(ended) == ["rule-01", "rule-02", "rule-03", "rule-04"]
    assert outcomes == []
    assert {a.outcome for a in attempts} == {AttemptOutcome.CANCELLED}
    assert {item.state for item in items} == {WorkState.CANCELLED}


def test_the_calls_of_another_job_go_on_and_the_freed_slots_are_used(timed: Runtime, ledger_url: str) -> None:
    cancelled = open_rules(timed, policy(2), key="a").job_id
    kept = open_rules(timed, policy(3), key="b").job_id

    async def attempt(claim: Claim) -> Offer:
        if claim.key.job_id == cancelled:
            if claim.key.item_key.endswith("1"):
                await asyncio.to_thread(_cancel_elsewhere, ledger_url, cancelled)
            await asyncio.Event().wait()
        return offer_of(claim)

    outcomes = drain(timed, attempt, slots=2)

    assert [o.claim.key.job_id for o in outcomes] == [kept] * 3
    assert {item.state for item in timed.ledger.reads.items(kept, Stage.GENERATE_RULES)} == {WorkState.SUCCEEDED}


def test_a_look_that_the_ledger_cannot_answer_ends_nothing(timed: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rulegen_dagster.workflow.engine.LOOK_EVERY_S", 0.0)
    make_items(timed, 1)
    looks: list[int] = []
    look = Cancellations.withdrawn

    def away(self: Cancellations, claims: tuple[Claim, ...]) -> frozenset[str]:
        looks.append(len(claims))
        if len(looks) < 3:
            raise LedgerError("the connection is gone")
        return look(self, claims)

    monkeypatch.setattr(Cancellations, "withdrawn", away)

    async def attempt(claim: Claim) -> Offer:
        while len(looks) < 4:
            await asyncio.sleep(0.001)
        return offer_of(claim)

    outcomes = drain(timed, attempt)

    assert [o.claim.attempt for o in outcomes] == [1]


def test_a_run_over_the_keys_of_a_cancelled_job_ends_and_says_why(timed: Runtime, ledger_url: str) -> None:
    runtime = scripted(timed, {"rule-0[12]": [{"do": "ok", "delay_ms": LEASE_MS}]})
    job = open_rules(runtime, policy(2))
    keys = runtime.ledger.reads.rule_partition_keys(job.job_id)

    def run() -> list[tuple[KeyState, str | None]]:
        outcomes = drain_keys(runtime, keys, RULES, accept=offer_directly, redrive_reason=None)
        return [(o.state, o.reason) for o in outcomes]

    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(run)
        while runtime.ledger.reads.provider_calls(job.job_id) < 2:
            pass
        _cancel_elsewhere(ledger_url, job.job_id)
        outcomes = told.result(SOON_S)

    assert outcomes == [(KeyState.BLOCKED, "the job is cancelled: wrong edition")] * 2
    with pytest.raises(InputError, match="retired"):
        list(drain_keys(runtime, keys, RULES, accept=offer_directly, redrive_reason=None))
