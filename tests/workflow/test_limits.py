"""Limits as a reason: what `why` and `status` say of them, and how the commands wait for room."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from rulegen_dagster.domain.states import JobState, Stage
from rulegen_dagster.domain.work import Claim, Offer
from rulegen_dagster.ledger.claims import Claimant, Scope
from rulegen_dagster.ledger.database import ManualClock
from rulegen_dagster.ledger.reads import JobRecord
from rulegen_dagster.settings import Settings
from rulegen_dagster.workflow.documents import NotReady, accept, prepare
from rulegen_dagster.workflow.drive import drive
from rulegen_dagster.workflow.explain import Reason, status_report
from rulegen_dagster.workflow.plan import plan_publications, plan_work
from rulegen_dagster.workflow.publish import NothingToPublish, Published, publish, publish_with_others
from rulegen_dagster.workflow.runtime import Runtime, open_runtime
from rulegen_dagster.workflow.why import why_report
from tests.workflow.conftest import finish, open_rules, policy, submit

OTHER = Claimant(worker="other", lease_ms=1_000)


@contextmanager
def _limited(runtime: Runtime, clock: ManualClock, **limits: int) -> Iterator[Runtime]:
    """Open another process's runtime on the same ledger, with limits."""
    values = {**runtime.settings.model_dump(), **limits}
    opened = replace(open_runtime(Settings(**values), clock=clock), jitter=lambda: 0.5)
    try:
        yield opened
    finally:
        opened.close()


@pytest.fixture
def limited(local_runtime: Runtime, clock: ManualClock) -> Iterator[Runtime]:
    """At most two items of generation in flight at once."""
    with _limited(local_runtime, clock, generation_limit=2) as opened:
        yield opened


def _hold(runtime: Runtime, job: JobRecord, count: int, stage: Stage = Stage.GENERATE_RULES) -> tuple[Claim, ...]:
    with runtime.ledger.turn(OTHER) as turn:
        return turn.claim(Scope(stages=(stage,), job_ids=(job.job_id,)), [runtime.tokens() for _ in range(count)])


def test_a_job_that_a_limit_holds_back_says_which_and_who_uses_it_up(limited: Runtime, clock: ManualClock) -> None:
    limited.ledger.submissions.add_tenant("acme")
    busy, held_back = open_rules(limited, policy(3), key="a"), open_rules(limited, policy(3), key="b")
    _hold(limited, busy, 9)

    report = why_report(limited, held_back)

    assert (report["reason_code"], report["next_at_ms"]) == ("limit", clock.now_ms + OTHER.lease_ms)
    assert "the limit of generation is reached: 2 of 2 in flight, 0 of this job" in report["reason"]
    assert report["evidence"] == {
        "items": 3,
        "limit": "generation",
        "value": 2,
        "in_flight": 2,
        "of_this_job": 0,
        "of_this_tenant": 2,
        "of_other_tenants": 0,
        "setting": "RULEGEN_GENERATION_LIMIT",
    }
    status = status_report(limited, held_back)
    assert (status["reason_code"], status["reason"]) == ("limit", report["reason"])


def test_an_item_that_a_limit_holds_back_says_so_and_one_in_flight_says_who_holds_it(limited: Runtime) -> None:
    job = open_rules(limited, policy(3))
    held = _hold(limited, job, 9)

    third = why_report(limited, job, "rule-03")
    first = why_report(limited, job, held[0].key.item_key)

    assert (third["reason_code"], third["evidence"]["of_this_job"]) == ("limit", 2)
    assert first["reason_code"] == "leased"


def test_a_tenants_own_limit_is_named_as_such(local_runtime: Runtime) -> None:
    job = open_rules(local_runtime, policy(3))
    local_runtime.ledger.tenants.set("default", limit=1)
    _hold(local_runtime, job, 9)

    report = why_report(local_runtime, job)

    assert (report["reason_code"], report["evidence"]["limit"], report["evidence"]["value"]) == ("limit", "tenant", 1)
    assert "rulegen tenant set" in report["reason"]


def test_a_limit_with_room_is_no_reason(limited: Runtime) -> None:
    job = open_rules(limited, policy(3))
    _hold(limited, job, 1)

    assert why_report(limited, job)["reason_code"] == "ready"


def test_a_run_that_a_limit_holds_back_waits_for_room_and_goes_on(limited: Runtime, clock: ManualClock) -> None:
    busy, job = open_rules(limited, policy(2), key="a"), open_rules(limited, policy(2), key="b")
    held = _hold(limited, busy, 9)
    waits: list[Reason] = []

    def sleep(_seconds: float) -> None:
        if len(waits) == 3:
            with limited.ledger.turn(OTHER) as turn:
                for claim in held:
                    turn.offer(Offer(claim=claim, output='{"rules":[]}'))
                turn.settle()

    job = drive(limited, job, observe=lambda _outcome: None, on_wait=waits.append, sleep=sleep)

    assert {reason.code for reason in waits} == {"limit"}
    assert (len(waits), job.state) == (3, JobState.AWAITING_CONFIRMATION)


def test_a_run_whose_tenant_may_have_nothing_in_flight_ends_and_says_so(local_runtime: Runtime) -> None:
    job = open_rules(local_runtime, policy(2))
    local_runtime.ledger.tenants.set("default", limit=0)

    def no_wait(reason: Reason) -> None:
        raise AssertionError(f"the run waits: {reason}")

    job = drive(local_runtime, job, observe=lambda _outcome: None, on_wait=no_wait)

    report = why_report(local_runtime, job)
    assert (job.state, report["reason_code"], report["next_at_ms"]) == (JobState.GENERATING_RULES, "limit", None)


def test_a_run_with_more_slots_than_the_limit_ends_within_it(limited: Runtime) -> None:
    assert limited.settings.slots > 2

    assert finish(limited, open_rules(limited, policy(9))).state is JobState.AWAITING_CONFIRMATION


def test_extraction_and_validation_wait_for_their_own_limits(local_runtime: Runtime, clock: ManualClock) -> None:
    ahead, behind = submit(local_runtime, policy(1), key="a"), submit(local_runtime, policy(1), key="b")
    _hold(local_runtime, ahead, 1, Stage.PARSE)

    with _limited(local_runtime, clock, extraction_limit=1, validation_limit=0) as opened:
        refused = prepare(opened, behind.job_id, Stage.PARSE)
        assert isinstance(refused, NotReady)
        assert (refused.code, why_report(opened, behind)["reason_code"]) == ("limit", "limit")
        clock.now_ms += OTHER.lease_ms
        parsed = prepare(opened, behind.job_id, Stage.PARSE)
        assert isinstance(parsed, Offer)
        accept(opened, parsed)
        ended = drive(opened, behind, observe=lambda _outcome: None, on_wait=lambda _reason: None)
        assert (ended.state, why_report(opened, ended)["evidence"]["limit"]) == (JobState.VALIDATING, "validation")


def _confirmed(runtime: Runtime, key: str) -> JobRecord:
    job = finish(runtime, open_rules(runtime, policy(1), key=key))
    runtime.ledger.actions.confirm(job.job_id, str(job.action_set_digest), actor="test")
    return runtime.ledger.reads.job_by_id(job.job_id)


def test_a_publication_waits_until_another_one_has_ended(local_runtime: Runtime, clock: ManualClock) -> None:
    ahead, behind = _confirmed(local_runtime, "a"), _confirmed(local_runtime, "b")
    held = local_runtime.ledger.actions.claim(ahead.job_id, token=local_runtime.tokens(), claimant=OTHER)
    assert held is not None

    with _limited(local_runtime, clock, action_limit=1) as opened:
        refused = publish(opened, behind)
        assert isinstance(refused, NothingToPublish)
        assert (refused.code, why_report(opened, behind)["reason_code"]) == ("limit", "limit")
        assert why_report(opened, ahead)["reason_code"] == "publishing"
        assert (plan_publications(opened), len(plan_publications(local_runtime))) == ([], 1)

        def others_end(_seconds: float) -> None:
            clock.now_ms += OTHER.lease_ms

        assert isinstance(publish_with_others(opened, behind, sleep=others_end), Published)


def test_publications_that_are_stopped_are_not_waited_for(local_runtime: Runtime, clock: ManualClock) -> None:
    job = _confirmed(local_runtime, "a")

    with _limited(local_runtime, clock, action_limit=0) as opened:
        refused = publish_with_others(opened, job)

    assert isinstance(refused, NothingToPublish)
    assert refused.code == "actions_stopped"


def test_no_run_is_planned_for_work_that_a_limit_holds_back(limited: Runtime) -> None:
    limited.ledger.submissions.add_tenant("acme")
    busy, held_back = open_rules(limited, policy(2), key="a"), open_rules(limited, policy(2), key="b")
    parsing = submit(limited, policy(2), key="c")
    held = _hold(limited, busy, 9)

    assert [launch.job_key for launch in plan_work(limited)] == [parsing.partition_key]
    with limited.ledger.turn(OTHER) as turn:
        for claim in held:
            turn.offer(Offer(claim=claim, output='{"rules":[]}'))
        turn.settle()
    keys = [launch.job_key for launch in plan_work(limited)]
    assert keys == [busy.partition_key, held_back.partition_key, parsing.partition_key]
