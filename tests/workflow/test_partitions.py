import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from rulegen_dagster.domain.errors import InputError, LedgerError
from rulegen_dagster.domain.states import Stage, WorkState
from rulegen_dagster.domain.work import Offer
from rulegen_dagster.ledger.database import ManualClock
from rulegen_dagster.ledger.store import Turn
from rulegen_dagster.workflow.engine import offer_directly
from rulegen_dagster.workflow.partitions import KeyOutcome, KeyState, drain_keys
from rulegen_dagster.workflow.runtime import Runtime
from tests.workflow.conftest import (
    BOTH,
    FIRST_DELAY_MS,
    RULES,
    TESTS,
    Recorder,
    claim_items,
    finish,
    journal,
    open_rules,
    playing,
    policy,
    scripted,
    submit,
)


def _drain(
    runtime: Runtime, keys: Sequence[str], stages: Sequence[Stage] = RULES, *, redrive: str | None = None
) -> list[KeyOutcome]:
    return list(drain_keys(runtime, keys, stages, accept=offer_directly, redrive_reason=redrive))


def _told(outcomes: Sequence[KeyOutcome]) -> list[tuple[str, str, KeyState]]:
    return sorted((o.stage.value, o.item_key, o.state) for o in outcomes)


def _open(runtime: Runtime, clauses: int) -> tuple[str, ...]:
    return runtime.ledger.reads.rule_partition_keys(open_rules(runtime, policy(clauses)).job_id)


def test_every_key_is_accepted_and_told_once_for_each_stage(runtime: Runtime) -> None:
    keys = _open(runtime, 3)

    outcomes = _drain(runtime, keys, BOTH)

    assert _told(outcomes) == [
        (stage.value, f"rule-0{number}", KeyState.ACCEPTED) for stage in BOTH for number in (1, 2, 3)
    ]
    assert {outcome.partition_key for outcome in outcomes} == set(keys)
    assert all(outcome.is_accepted and outcome.provider_called and outcome.output for outcome in outcomes)
    assert {outcome.provider for outcome in outcomes} == {"rulegen-pattern"}


def test_a_key_that_was_accepted_before_is_reused_without_a_call(runtime: Runtime) -> None:
    provider = Recorder()
    played = playing(runtime, provider)
    keys = _open(played, 3)
    first = _drain(played, keys[:2])
    calls = list(provider.calls)

    again = _drain(played, keys[:2])

    assert [outcome.state for outcome in again] == [KeyState.REUSED, KeyState.REUSED]
    assert provider.calls == calls
    assert {o.partition_key: o.output for o in again} == {o.partition_key: o.output for o in first}
    assert not any(outcome.provider_called for outcome in again)


def test_only_the_named_keys_are_worked_on(local_runtime: Runtime) -> None:
    keys = _open(local_runtime, 4)

    outcomes = _drain(local_runtime, [keys[1], keys[3]])

    assert [item_key for _, item_key, _ in _told(outcomes)] == ["rule-02", "rule-04"]


def test_a_key_that_is_named_twice_is_told_once(local_runtime: Runtime) -> None:
    keys = _open(local_runtime, 1)

    first = _drain(local_runtime, [*keys, *keys])
    again = _drain(local_runtime, [*keys, *keys])

    assert _told(first) == [("generate_rules", "rule-01", KeyState.ACCEPTED)]
    assert _told(again) == [("generate_rules", "rule-01", KeyState.REUSED)]


@pytest.mark.parametrize(
    ("extra", "code"),
    [(["no-such-key"], "unknown_key"), (["x" * 5_000], "unknown_key"), (["'; DROP TABLE job; --"], "unknown_key")],
    ids=["unknown", "very long", "hostile"],
)
def test_an_unknown_key_is_refused_before_any_call(local_runtime: Runtime, extra: list[str], code: str) -> None:
    provider = Recorder()
    runtime = playing(local_runtime, provider)
    keys = _open(runtime, 2)

    with pytest.raises(InputError) as caught:
        _drain(runtime, [*keys, *extra])

    assert caught.value.code == code
    assert len(caught.value.message) < 300
    assert provider.calls == []


def test_an_empty_list_of_keys_is_refused(local_runtime: Runtime) -> None:
    with pytest.raises(InputError) as caught:
        _drain(local_runtime, [])

    assert caught.value.code == "no_keys"


def test_the_key_of_a_rejected_job_is_retired_and_refused_before_any_call(local_runtime: Runtime) -> None:
    provider = Recorder()
    runtime = playing(local_runtime, provider)
    job = finish(runtime, submit(runtime, policy(1), key="gone"))
    runtime.ledger.actions.reject(job.job_id, actor="ann", reason="no")
    calls = list(provider.calls)
    keys = _open(runtime, 1)

    with pytest.raises(InputError) as caught:
        _drain(runtime, [*keys, *runtime.ledger.reads.rule_partition_keys(job.job_id)])

    assert caught.value.code == "retired_key"
    assert provider.calls == calls


def test_a_failed_key_is_told_with_its_reason_and_the_others_are_accepted(runtime: Runtime) -> None:
    faulty = scripted(runtime, {"rule-02": [{"do": "error"}]})
    keys = _open(faulty, 3)

    outcomes = _drain(faulty, keys)

    (failed,) = [outcome for outcome in outcomes if not outcome.is_accepted]
    assert (failed.item_key, failed.state, failed.attempt) == ("rule-02", KeyState.FAILED, 1)
    assert str(failed.reason).startswith("provider_rejected: ")
    assert failed.output is None


def test_a_failed_key_is_not_called_again_unless_a_person_asks(local_runtime: Runtime) -> None:
    faulty = scripted(local_runtime, {"rule-02": [{"do": "error"}]})
    keys = _open(faulty, 3)
    _drain(faulty, keys)
    mended = scripted(local_runtime, {})
    before = journal(mended)

    untouched = _drain(mended, keys)
    redriven = _drain(mended, keys, redrive="re-executed by ann")

    assert [state for _, _, state in _told(untouched)] == [KeyState.REUSED, KeyState.FAILED, KeyState.REUSED]
    assert [state for _, _, state in _told(redriven)] == [KeyState.REUSED, KeyState.ACCEPTED, KeyState.REUSED]
    assert journal(mended)[len(before) :] == ["generate_rules/rule-02/2"]


def test_a_redrive_reaches_only_the_named_keys(local_runtime: Runtime) -> None:
    faulty = scripted(local_runtime, {"*": [{"do": "error"}]})
    keys = _open(faulty, 3)
    _drain(faulty, keys)

    _drain(scripted(local_runtime, {}), keys[:1], redrive="re-executed by ann")

    states = [i.state for i in local_runtime.ledger.reads.items_by_partition(Stage.GENERATE_RULES, keys).values()]
    assert states == [WorkState.SUCCEEDED, WorkState.FAILED, WorkState.FAILED]


def test_a_key_whose_retry_is_due_later_is_told_with_the_time(local_runtime: Runtime, clock: ManualClock) -> None:
    faulty = scripted(local_runtime, {"rule-01": [{"do": "error", "kind": "retryable"}, "ok"]})
    keys = _open(faulty, 1)

    (waiting,) = _drain(faulty, keys)
    clock.now_ms += FIRST_DELAY_MS
    (accepted,) = _drain(faulty, keys)

    assert waiting.state is KeyState.WAITING
    assert str(waiting.reason).startswith("retry due in ")
    assert str(waiting.reason).endswith("after provider_unavailable")
    assert (accepted.state, accepted.attempt) == (KeyState.ACCEPTED, 2)


def test_a_key_in_other_hands_is_told_with_its_holder(local_runtime: Runtime) -> None:
    keys = _open(local_runtime, 2)
    claim_items(local_runtime, Stage.GENERATE_RULES, 1)

    outcomes = _drain(local_runtime, keys)

    held = next(outcome for outcome in outcomes if outcome.item_key == "rule-01")
    assert held.state is KeyState.LEASED
    assert "other" in str(held.reason)


def test_tests_are_blocked_while_a_rule_of_their_job_is_missing(local_runtime: Runtime) -> None:
    faulty = scripted(local_runtime, {"generate_rules/rule-02": [{"do": "error"}]})
    keys = _open(faulty, 2)

    outcomes = _drain(faulty, keys, BOTH)

    assert _told(outcomes) == [
        ("generate_rules", "rule-01", KeyState.ACCEPTED),
        ("generate_rules", "rule-02", KeyState.FAILED),
        ("generate_tests", "rule-01", KeyState.BLOCKED),
        ("generate_tests", "rule-02", KeyState.BLOCKED),
    ]


def test_tests_alone_are_blocked_before_their_stage_has_begun(local_runtime: Runtime) -> None:
    keys = _open(local_runtime, 1)

    (blocked,) = _drain(local_runtime, keys, TESTS)

    assert blocked.state is KeyState.BLOCKED
    assert "generating_rules" in str(blocked.reason)


def test_keys_of_two_jobs_may_share_a_run(local_runtime: Runtime) -> None:
    one = local_runtime.ledger.reads.rule_partition_keys(open_rules(local_runtime, policy(2), key="one").job_id)
    other = local_runtime.ledger.reads.rule_partition_keys(open_rules(local_runtime, policy(2), key="other").job_id)

    outcomes = _drain(local_runtime, [*one, *other], BOTH)

    assert len(outcomes) == 8
    assert {outcome.job for outcome in outcomes} == {"default/one", "default/other"}


def test_two_runs_over_the_same_keys_make_one_call_for_each(runtime: Runtime) -> None:
    provider = Recorder()
    played = playing(runtime, provider)
    keys = _open(played, 12)
    start = threading.Barrier(2)

    def work(worker: str) -> list[KeyOutcome]:
        start.wait()
        return _drain(replace(played, worker=worker), keys)

    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(work, ("alice", "bob"))

    mine = [outcome for outcome in (*one, *other) if outcome.state is KeyState.ACCEPTED]
    assert len(provider.calls) == 12
    assert len({outcome.partition_key for outcome in mine}) == len(mine) == 12


def test_an_outcome_is_told_while_the_drain_goes_on(local_runtime: Runtime) -> None:
    told = threading.Event()

    def wait_for_the_first(request: object) -> None:
        if str(getattr(request, "item_key", "")) == "rule-02":
            assert told.wait(30)

    runtime = playing(local_runtime, Recorder(wait_for_the_first))
    runtime = replace(runtime, settings=runtime.settings.model_copy(update={"slots": 1}))
    keys = _open(runtime, 2)

    seen = []
    for outcome in drain_keys(runtime, keys, RULES, accept=offer_directly, redrive_reason=None):
        seen.append(outcome.item_key)
        told.set()

    assert seen == ["rule-01", "rule-02"]


def test_a_consumer_that_leaves_stops_the_drain(local_runtime: Runtime) -> None:
    provider = Recorder()
    runtime = playing(local_runtime, provider)
    runtime = replace(runtime, settings=runtime.settings.model_copy(update={"slots": 1}))
    keys = _open(runtime, 50)

    outcomes = drain_keys(runtime, keys, RULES, accept=offer_directly, redrive_reason=None)
    first = next(outcomes)
    outcomes.close()

    alive = [thread.name for thread in threading.enumerate() if thread.name in {"engine", "ledger-writer_0"}]
    assert first.state is KeyState.ACCEPTED
    assert alive == []


def test_an_acceptance_that_fails_ends_the_run_with_its_error(local_runtime: Runtime) -> None:
    keys = _open(local_runtime, 2)

    def refuse(turn: Turn, offer: Offer) -> None:
        raise RuntimeError("the IO manager is broken")

    with pytest.raises(RuntimeError, match="broken"):
        list(drain_keys(local_runtime, keys, RULES, accept=refuse, redrive_reason=None))

    items = local_runtime.ledger.reads.items_by_partition(Stage.GENERATE_RULES, keys)
    assert {item.state for item in items.values()} == {WorkState.RUNNING}


def test_a_ledger_that_stays_away_ends_the_run_with_its_error(
    local_runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rulegen_dagster.workflow.engine.LEAST_PATIENCE_S", 0.0)
    keys = _open(local_runtime, 2)

    def gone(turn: Turn, offer: Offer) -> None:
        raise LedgerError("gone")

    with pytest.raises(LedgerError, match="gone"):
        list(drain_keys(local_runtime, keys, RULES, accept=gone, redrive_reason=None))
