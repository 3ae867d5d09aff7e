"""A lost worker's work is taken over at once by whoever comes next, in every stage; the clock never moves here."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from rulegen_dagster.domain.states import ActionState, AttemptOutcome, JobState, Stage, WorkState
from rulegen_dagster.domain.work import Offer
from rulegen_dagster.ledger.claims import Scope
from rulegen_dagster.ledger.database import ManualClock
from rulegen_dagster.ledger.reads import JobRecord
from rulegen_dagster.ledger.recoveries import Freed
from rulegen_dagster.workflow.collect import Kind, collect
from rulegen_dagster.workflow.documents import prepare
from rulegen_dagster.workflow.drive import GENERATING_STAGES, generate
from rulegen_dagster.workflow.engine import offer_directly
from rulegen_dagster.workflow.explain import reason_of, status_report
from rulegen_dagster.workflow.partitions import KeyState, drain_keys
from rulegen_dagster.workflow.plan import plan_publications, plan_work
from rulegen_dagster.workflow.publish import Published, publish
from rulegen_dagster.workflow.recover import free_lost_work
from rulegen_dagster.workflow.runtime import Runtime, open_runtime
from rulegen_dagster.workflow.why import why_report
from tests.workflow.conftest import RULES, drain, finish, make_items, offer_of, open_rules, policy, run_stage, submit

Lose = Callable[[Stage, int], str]


@pytest.fixture
def other(runtime: Runtime, clock: ManualClock) -> Iterator[Runtime]:
    """Another worker of the same home."""
    opened = open_runtime(runtime.settings.model_copy(update={"lease_ms": 600_000}), clock=clock)
    yield opened
    opened.close()


@pytest.fixture
def lose(other: Runtime) -> Lose:
    """Let the other worker claim some items and end without a word; return its name."""

    def work(stage: Stage, count: int) -> str:
        _claim(other, stage, count)
        _end(other)
        return other.worker

    return work


def _end(worker: Runtime) -> None:
    """Do what the kernel does when a process ends: its lock is free, and its file is still there."""
    assert worker.presence is not None
    worker.presence.release(worker.worker, remove=False)
    worker.close()


def _claim(runtime: Runtime, stage: Stage, count: int) -> None:
    with runtime.ledger.turn(runtime.claimant) as turn:
        assert len(turn.claim(Scope(stages=(stage,)), [runtime.tokens() for _ in range(count)])) == count


def _lock_files(runtime: Runtime) -> set[str]:
    assert runtime.presence is not None
    return {file.worker for file in runtime.presence.files()}


def _confirmed(runtime: Runtime) -> JobRecord:
    job = finish(runtime, submit(runtime, policy(1)))
    runtime.ledger.actions.confirm(job.job_id, str(job.action_set_digest), actor="ann")
    return runtime.ledger.reads.job_by_id(job.job_id)


def test_an_engine_takes_over_what_a_lost_worker_held_as_soon_as_it_begins(runtime: Runtime, lose: Lose) -> None:
    job_id = make_items(runtime, 3)
    lost = lose(Stage.GENERATE_RULES, 2)

    async def attempt(claim: object) -> Offer:
        return offer_of(claim)  # type: ignore[arg-type]

    outcomes = drain(runtime, attempt)

    booked = [(a.outcome, a.error_code) for a in runtime.ledger.reads.attempts(job_id) if a.worker == lost]
    assert sorted((o.claim.key.item_key, o.claim.attempt) for o in outcomes) == [
        ("rule-01", 2),
        ("rule-02", 2),
        ("rule-03", 1),
    ]
    assert booked == [(AttemptOutcome.CRASHED, "worker_lost")] * 2
    assert lost not in _lock_files(runtime)


def test_a_living_workers_items_are_left_alone(runtime: Runtime, other: Runtime) -> None:
    job_id = make_items(runtime, 2)
    _claim(other, Stage.GENERATE_RULES, 2)

    freed = free_lost_work(runtime)

    assert freed == Freed()
    assert {i.worker for i in runtime.ledger.reads.items(job_id, Stage.GENERATE_RULES)} == {other.worker}


def test_a_worker_without_locks_neither_proves_nor_is_proven(runtime: Runtime, lose: Lose) -> None:
    make_items(runtime, 2)
    blind = replace(runtime, presence=None)
    _claim(replace(blind, worker="host:1:0123abcd"), Stage.GENERATE_RULES, 1)
    lose(Stage.GENERATE_RULES, 1)

    assert free_lost_work(blind) == Freed()
    assert free_lost_work(runtime) == Freed(waiting=1)


def test_a_name_in_the_ledger_that_is_no_workers_is_never_proven_dead(runtime: Runtime) -> None:
    make_items(runtime, 1)
    _claim(replace(runtime, worker="../../etc/passwd"), Stage.GENERATE_RULES, 1)

    assert free_lost_work(runtime) == Freed()


@pytest.mark.parametrize("stage", [Stage.PARSE, Stage.RETRIEVE, Stage.VALIDATE])
def test_a_document_stage_is_taken_over_at_once(runtime: Runtime, lose: Lose, stage: Stage) -> None:
    job = submit(runtime, policy(1))
    if stage is not Stage.PARSE:
        run_stage(runtime, job, Stage.PARSE)
    if stage is Stage.VALIDATE:
        run_stage(runtime, job, Stage.RETRIEVE)
        generate(runtime, Scope(stages=GENERATING_STAGES, job_ids=(job.job_id,)), observe=lambda _outcome: None)
    lose(stage, 1)

    prepared = prepare(runtime, job.job_id, stage)

    assert isinstance(prepared, Offer)
    assert prepared.claim.attempt == 2


def test_driving_goes_on_without_a_wait(runtime: Runtime, lose: Lose) -> None:
    job = open_rules(runtime, policy(1))
    lose(Stage.GENERATE_RULES, 1)

    assert finish(runtime, job).state is JobState.AWAITING_CONFIRMATION


def test_a_run_over_keys_takes_over_at_once(runtime: Runtime, lose: Lose) -> None:
    keys = runtime.ledger.reads.rule_partition_keys(open_rules(runtime, policy(2)).job_id)
    lose(Stage.GENERATE_RULES, 2)

    outcomes = list(drain_keys(runtime, keys, RULES, accept=offer_directly, redrive_reason=None))

    assert [(o.state, o.attempt) for o in outcomes] == [(KeyState.ACCEPTED, 2)] * 2


def test_a_lost_publishers_action_is_reconciled_at_once(runtime: Runtime, other: Runtime) -> None:
    job = _confirmed(runtime)
    other.ledger.actions.claim(job.job_id, token=other.tokens(), claimant=other.claimant)
    _end(other)
    reason = reason_of(runtime, job)
    why = why_report(runtime, job)

    launches = plan_publications(runtime)
    (action,) = runtime.ledger.reads.actions(job.job_id)
    published = publish(runtime, job)

    assert (reason.code, why["reason_code"], why["evidence"]["worker"]) == ("worker_lost", "worker_lost", other.worker)
    assert [launch.job_key for launch in launches] == [job.partition_key]
    assert (action.state, action.error_code) == (ActionState.UNKNOWN, "worker_lost")
    assert isinstance(published, Published)
    assert runtime.ledger.reads.job_by_id(job.job_id).state is JobState.COMPLETED


def test_a_bundle_that_a_lost_publisher_wrote_is_found_and_not_written_again(
    runtime: Runtime, other: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = _confirmed(runtime)

    def die(*_: object, **__: object) -> bool:
        raise ZeroDivisionError

    monkeypatch.setattr(other.ledger.actions, "finish", die)
    with pytest.raises(ZeroDivisionError):
        publish(other, job)
    _end(other)

    published = publish(runtime, job)

    assert isinstance(published, Published)
    assert published.reused


def test_the_plan_asks_for_the_work_of_a_lost_worker_at_once(runtime: Runtime, lose: Lose) -> None:
    open_rules(runtime, policy(3))
    lose(Stage.GENERATE_RULES, 3)

    (launch,) = plan_work(runtime)

    assert launch.first_key != launch.last_key


def test_why_and_status_say_that_the_worker_is_lost(runtime: Runtime, lose: Lose) -> None:
    job = open_rules(runtime, policy(2))
    held = lose(Stage.GENERATE_RULES, 2)

    status, why, item = status_report(runtime, job), why_report(runtime, job), why_report(runtime, job, "rule-02")

    assert status["reason_code"] == why["reason_code"] == item["reason_code"] == "worker_lost"
    assert "can be claimed now" in status["reason"]
    assert "'rulegen run FILE --tenant default --key policy'" in status["reason"]
    assert held in item["reason"]
    assert item["next_at_ms"] == runtime.ledger.reads.now()
    assert item["evidence"]["worker"] == held
    assert {i.state for i in runtime.ledger.reads.items(job.job_id, Stage.GENERATE_RULES)} == {WorkState.RUNNING}


def test_why_and_status_show_the_lease_of_a_living_worker(runtime: Runtime, other: Runtime) -> None:
    job = open_rules(runtime, policy(1))
    _claim(other, Stage.GENERATE_RULES, 1)

    assert (status_report(runtime, job)["reason_code"], why_report(runtime, job, "rule-01")["reason_code"]) == (
        "leased",
        "leased",
    )


def test_a_process_that_ends_with_nothing_in_flight_leaves_no_file(runtime: Runtime, other: Runtime) -> None:
    make_items(other, 1)
    held = _lock_files(runtime)
    other.close()

    assert other.worker in held
    assert other.worker not in _lock_files(runtime)


def test_what_a_closed_worker_still_claims_is_its_own_as_long_as_its_process_lives(
    runtime: Runtime, other: Runtime
) -> None:
    make_items(runtime, 1)
    _claim(other, Stage.GENERATE_RULES, 1)
    other.close()

    while_it_lives = free_lost_work(runtime)
    _end(other)
    afterwards = free_lost_work(runtime)

    assert (while_it_lives, afterwards) == (Freed(), Freed(waiting=1))


def test_a_process_that_only_looks_makes_no_file(runtime: Runtime) -> None:
    job = submit(runtime, policy(1))

    status_report(runtime, job)
    plan_work(runtime)
    runtime.close()

    assert _lock_files(runtime) == set()


def test_gc_removes_the_files_of_ended_workers_that_hold_nothing(runtime: Runtime, other: Runtime, lose: Lose) -> None:
    make_items(runtime, 2)
    assert runtime.presence is not None
    runtime.presence.hold("host:1:0123abcd")
    runtime.presence.release("host:1:0123abcd", remove=False)
    lost = lose(Stage.GENERATE_RULES, 1)

    tried = [one.name for one in collect(runtime, grace_ms=0, now_ms=2**60, dry_run=True) if one.kind is Kind.LOCK_FILE]
    removed = [one.name for one in collect(runtime, grace_ms=0, now_ms=2**60) if one.kind is Kind.LOCK_FILE]
    kept = list(collect(runtime, grace_ms=0, now_ms=0))

    assert tried == removed == ["host:1:0123abcd"]
    assert kept == []
    assert _lock_files(runtime) == {runtime.worker, lost}
