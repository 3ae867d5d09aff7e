"""Told to stop, a worker claims nothing more, finishes what it can, and gives the rest back without using attempts."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from rulegen_dagster.domain.states import AttemptOutcome, Stage, WorkState
from rulegen_dagster.domain.work import Claim, FailedAttempt, Landing, Offer
from rulegen_dagster.ledger.claims import Scope
from rulegen_dagster.providers.port import ProviderReply, ProviderRequest
from rulegen_dagster.workflow import documents
from rulegen_dagster.workflow.documents import prepare
from rulegen_dagster.workflow.drive import drive
from rulegen_dagster.workflow.engine import Engine, Outcome, offer_directly
from rulegen_dagster.workflow.explain import status_report
from rulegen_dagster.workflow.partitions import KeyState, drain_keys
from rulegen_dagster.workflow.runtime import Runtime
from rulegen_dagster.workflow.stopping import Stop, stopped_by_signals
from tests.workflow.conftest import RULES, Recorder, drain, make_items, offer_of, open_rules, playing, policy, submit

FAR_MS = 600_000


def _drain_until(runtime: Runtime, attempt: Callable[[Claim], object], *, stop: Stop, slots: int = 2) -> list[Outcome]:
    outcomes: list[Outcome] = []
    engine = Engine(runtime, attempt, slots=slots, observe=outcomes.append, stop=stop)  # type: ignore[arg-type]
    asyncio.run(engine.drain(Scope(stages=RULES)))
    return outcomes


def _give_back_all(runtime: Runtime, *, slots: int = 2) -> list[Outcome]:
    """Drain with calls that never end, and stop once every slot is taken."""
    stop, begun = Stop(grace_ms=0), []

    async def attempt(claim: Claim) -> Offer:
        begun.append(claim.key.item_key)
        if len(begun) == slots:
            stop.request()
        await asyncio.Event().wait()
        return offer_of(claim)

    return _drain_until(runtime, attempt, stop=stop, slots=slots)


async def _succeed(claim: Claim) -> Offer:
    return offer_of(claim)


class Endless(Recorder):
    """A provider of which one item's call never ends."""

    def __init__(self, item: str) -> None:
        super().__init__()
        self._item = item
        self.begun = threading.Event()

    async def call(self, request: ProviderRequest) -> ProviderReply:
        if request.item_key == self._item and request.attempt == 1:
            self.begun.set()
            await asyncio.Event().wait()
        return await super().call(request)


def test_calls_that_do_not_end_are_given_back_and_can_be_claimed_at_once(runtime: Runtime) -> None:
    job_id = make_items(runtime, 3)

    outcomes = _give_back_all(runtime)
    items = runtime.ledger.reads.items(job_id, Stage.GENERATE_RULES)
    again = drain(runtime, _succeed)

    attempts = [a for a in runtime.ledger.reads.attempts(job_id) if a.key.stage is Stage.GENERATE_RULES]
    booked = sorted((a.key.item_key, a.attempt, a.outcome, a.error_code) for a in attempts if a.attempt == 1)
    assert [(o.landing, o.decision and o.decision.state) for o in outcomes] == [
        (Landing.ACCEPTED, WorkState.WAITING)
    ] * 2
    assert [(i.state, i.attempt_limit, i.error_code) for i in items] == [
        (WorkState.WAITING, 4, "worker_stopped"),
        (WorkState.WAITING, 4, "worker_stopped"),
        (WorkState.PENDING, 3, None),
    ]
    assert booked[:2] == [(f"rule-0{n}", 1, AttemptOutcome.CANCELLED, "worker_stopped") for n in (1, 2)]
    assert sorted((o.claim.key.item_key, o.claim.attempt) for o in again) == [
        ("rule-01", 2),
        ("rule-02", 2),
        ("rule-03", 1),
    ]
    assert runtime.ledger.reads.unused_calls(job_id, limit=9).total == 2


def test_an_item_may_be_given_back_more_often_than_it_has_attempts(local_runtime: Runtime) -> None:
    job_id = make_items(local_runtime, 1)

    for _ in range(5):
        _give_back_all(local_runtime, slots=1)
    drain(local_runtime, _succeed)

    (item,) = local_runtime.ledger.reads.items(job_id, Stage.GENERATE_RULES)
    assert (item.state, item.attempts, item.attempt_limit) == (WorkState.SUCCEEDED, 6, 8)


def test_calls_that_end_within_the_grace_period_are_committed_and_nothing_more_is_claimed(runtime: Runtime) -> None:
    job_id = make_items(runtime, 4)
    stop, begun = Stop(grace_ms=FAR_MS), []

    async def attempt(claim: Claim) -> Offer:
        begun.append(claim.key.item_key)
        while len(begun) < 2:
            await asyncio.sleep(0)
        stop.request()
        return offer_of(claim)

    outcomes = _drain_until(runtime, attempt, stop=stop)

    items = runtime.ledger.reads.items(job_id, Stage.GENERATE_RULES)
    assert [o.landing for o in outcomes] == [Landing.ACCEPTED] * 2
    assert [i.state for i in items] == [WorkState.SUCCEEDED] * 2 + [WorkState.PENDING] * 2


def test_an_answer_that_comes_with_the_cancellation_is_kept(local_runtime: Runtime) -> None:
    job_id = make_items(local_runtime, 1)
    stop = Stop(grace_ms=0)

    async def attempt(claim: Claim) -> Offer:
        stop.request()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return offer_of(claim)
        raise AssertionError("the call was not ended")

    outcomes = _drain_until(local_runtime, attempt, stop=stop)

    (item,) = local_runtime.ledger.reads.items(job_id, Stage.GENERATE_RULES)
    assert [isinstance(o.result, FailedAttempt) for o in outcomes] == [False]
    assert item.state is WorkState.SUCCEEDED


def test_an_engine_that_was_told_before_it_began_claims_nothing(local_runtime: Runtime) -> None:
    job_id = make_items(local_runtime, 2)
    stop = Stop(grace_ms=0)
    stop.request()

    assert _drain_until(local_runtime, _succeed, stop=stop) == []
    assert local_runtime.ledger.reads.provider_calls(job_id) == 0


def test_an_item_that_was_taken_over_meanwhile_is_not_given_back(local_runtime: Runtime) -> None:
    job_id = make_items(local_runtime, 1)
    stop = Stop(grace_ms=0)

    async def attempt(claim: Claim) -> Offer:
        local_runtime.ledger.recoveries.free({local_runtime.worker}, actor="test")
        with local_runtime.ledger.turn(replace(local_runtime.claimant, worker="bob")) as turn:
            turn.claim(Scope(stages=RULES), ["taken"])
        stop.request()
        await asyncio.Event().wait()
        return offer_of(claim)

    _drain_until(local_runtime, attempt, stop=stop)

    (item,) = local_runtime.ledger.reads.items(job_id, Stage.GENERATE_RULES)
    assert (item.state, item.worker, item.attempt_limit) == (WorkState.RUNNING, "bob", 3)


def test_a_driver_that_is_told_to_stop_returns_the_job_as_it_stands(local_runtime: Runtime) -> None:
    provider = Endless("rule-02")
    runtime = playing(local_runtime, provider)
    stop = Stop(grace_ms=0)

    left = drive(
        runtime,
        submit(runtime, policy(3)),
        observe=lambda _outcome: stop.request() if provider.begun.is_set() else None,
        on_wait=lambda _reason: None,
        stop=stop,
    )

    report = status_report(runtime, left)
    assert (report["state"], report["reason_code"]) == ("generating_rules", "ready")
    assert report["stages"]["generate_rules"]["waiting"] == 1
    assert {call["outcome"] for call in report["unused_calls"]} == {"cancelled"}


def test_a_run_over_keys_that_is_left_gives_back_what_is_in_flight(runtime: Runtime) -> None:
    provider = Endless("rule-02")
    settings = runtime.settings.model_copy(update={"slots": 2, "grace_ms": 0, "lease_ms": FAR_MS})
    played = replace(playing(runtime, provider), settings=settings)
    job = open_rules(played, policy(2))
    keys = played.ledger.reads.rule_partition_keys(job.job_id)

    outcomes = drain_keys(played, keys, RULES, accept=offer_directly, redrive_reason=None)
    first = next(outcomes)
    assert provider.begun.wait(30)
    outcomes.close()
    items = played.ledger.reads.items(job.job_id, Stage.GENERATE_RULES)
    again = list(drain_keys(played, keys, RULES, accept=offer_directly, redrive_reason=None))

    alive = [thread.name for thread in threading.enumerate() if thread.name in {"engine", "ledger-writer_0"}]
    assert first.item_key == "rule-01"
    assert [(i.state, i.error_code) for i in items] == [
        (WorkState.SUCCEEDED, None),
        (WorkState.WAITING, "worker_stopped"),
    ]
    assert [(o.state, o.attempt) for o in again] == [(KeyState.REUSED, 1), (KeyState.ACCEPTED, 2)]
    assert alive == []


def test_a_run_over_keys_that_is_interrupted_twice_still_gives_back(local_runtime: Runtime) -> None:
    class Interrupted(BaseException):
        """What Dagster makes of a signal."""

    def interrupt(_number: int, _frame: object) -> None:
        raise Interrupted

    provider = Endless("rule-01")
    settings = local_runtime.settings.model_copy(update={"grace_ms": 2_000, "lease_ms": FAR_MS})
    runtime = replace(playing(local_runtime, provider), settings=settings)
    job = open_rules(runtime, policy(1))
    keys = runtime.ledger.reads.rule_partition_keys(job.job_id)
    previous = signal.signal(signal.SIGUSR1, interrupt)

    def signals() -> None:
        provider.begun.wait(30)
        os.kill(os.getpid(), signal.SIGUSR1)
        again.wait(0.3)
        os.kill(os.getpid(), signal.SIGUSR1)

    again = threading.Event()
    sender = threading.Thread(target=signals)
    sender.start()
    try:
        with pytest.raises(Interrupted):
            list(drain_keys(runtime, keys, RULES, accept=offer_directly, redrive_reason=None))
    finally:
        sender.join()
        signal.signal(signal.SIGUSR1, previous)

    (item,) = runtime.ledger.reads.items(job.job_id, Stage.GENERATE_RULES)
    assert (item.state, item.error_code) == (WorkState.WAITING, "worker_stopped")


def test_a_document_stage_that_is_interrupted_is_given_back(
    local_runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submit(local_runtime, policy(1))

    def interrupted(_runtime: Runtime, _claim: Claim) -> Offer:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setitem(documents._HANDLERS, Stage.PARSE, interrupted)
        with pytest.raises(KeyboardInterrupt):
            prepare(local_runtime, job.job_id, Stage.PARSE)
    again = prepare(local_runtime, job.job_id, Stage.PARSE)

    assert isinstance(again, Offer)
    assert (again.claim.attempt, again.claim.attempt_limit) == (2, 4)
    assert local_runtime.ledger.reads.unused_calls(job.job_id, limit=9).total == 0


def test_the_first_signal_asks_and_gives_the_second_one_back_to_the_system() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)

    with stopped_by_signals(grace_ms=1_000) as stop:
        asked = stop.is_requested
        os.kill(os.getpid(), signal.SIGTERM)
        inside = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)

    assert (asked, stop.is_requested) == (False, True)
    assert inside == (signal.SIG_DFL, signal.SIG_DFL)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_an_ignored_signal_stays_ignored_and_another_thread_hears_none() -> None:
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stopped_by_signals(grace_ms=0) as stop:
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, previous)
    heard: list[bool] = []

    def elsewhere() -> None:
        with stopped_by_signals(grace_ms=0) as stop:
            heard.append(stop.is_requested)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert (stop.is_requested, heard) == (False, [False])
