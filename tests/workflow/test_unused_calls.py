from rulegen_dagster.cli.jobs import unused_calls_line
from rulegen_dagster.domain.retry import RetryDecision
from rulegen_dagster.domain.states import AttemptOutcome, Stage, WorkState
from rulegen_dagster.domain.work import Claim, FailedAttempt, Offer, Usage
from rulegen_dagster.ledger.database import ManualClock
from rulegen_dagster.workflow.documents import accept
from rulegen_dagster.workflow.explain import status_report
from rulegen_dagster.workflow.runtime import Runtime
from rulegen_dagster.workflow.unused import MOST_LISTED, unused_calls_report
from tests.workflow.conftest import OTHER, claim_items, finish, open_rules, policy, submit

LOST = RetryDecision(state=WorkState.WAITING, delay_ms=1, consumes_budget=True)
OUTPUT = '{"no_rule":{"reason":"x"},"rules":[]}'


def _offer(claim: Claim, output: str, cost: int = 42) -> Offer:
    usage = Usage(model_id="m", request_id=f"r-{claim.attempt}", tokens_in=10, tokens_out=5, cost_micros=cost)
    return Offer(claim=claim, output=output, provider="p", provider_called=True, usage=usage)


def _claim(runtime: Runtime, count: int = 1) -> tuple[Claim, ...]:
    return claim_items(runtime, Stage.GENERATE_RULES, count)


def test_a_late_output_is_shown_with_its_cost_and_whether_it_is_the_accepted_one(
    runtime: Runtime, clock: ManualClock
) -> None:
    job = open_rules(runtime, policy(2))
    same, other = _claim(runtime, 2)
    clock.now_ms += 1_000
    for claim in _claim(runtime, 2):
        accept(runtime, _offer(claim, OUTPUT))
    accept(runtime, _offer(same, OUTPUT, cost=7))
    accept(runtime, _offer(other, OUTPUT.replace("x", "y"), cost=8))

    report = unused_calls_report(runtime, job.job_id)

    shown = [
        (c["item"], c["attempt"], c["outcome"], c["cost_micros"], c["equals_accepted"]) for c in report["unused_calls"]
    ]
    assert shown == [("rule-01", 1, "stale", 7, True), ("rule-02", 1, "stale", 8, False)]
    assert {(c["tokens_in"], c["tokens_out"], c["request_id"]) for c in report["unused_calls"]} == {(10, 5, "r-1")}
    assert report["unused_calls_total"] == 2


def test_lost_cancelled_and_ambiguous_calls_count_and_others_do_not(runtime: Runtime, clock: ManualClock) -> None:
    job = open_rules(runtime, policy(5))
    _crashed, ambiguous, limited, accepted = _claim(runtime, 4)
    accept(runtime, _offer(accepted, OUTPUT))
    failed = [
        FailedAttempt(claim=claim, outcome=outcome, error_code="e", message="m", provider_called=True)
        for claim, outcome in ((ambiguous, AttemptOutcome.AMBIGUOUS), (limited, AttemptOutcome.RATE_LIMITED))
    ]
    with runtime.ledger.turn(OTHER) as turn:
        turn.settle([(one, LOST) for one in failed])
    clock.now_ms += 1_000
    _claim(runtime, 1)
    runtime.ledger.cancellations.cancel(job.job_id, actor="ann", reason="wrong edition")

    report = status_report(runtime, job)

    told = {(c["item"], c["attempt"], c["outcome"], c["equals_accepted"]) for c in report["unused_calls"]}
    assert told == {
        ("rule-01", 1, "crashed", None),
        ("rule-01", 2, "cancelled", None),
        ("rule-02", 1, "ambiguous", None),
    }
    assert {(c["cost_micros"], c["tokens_in"]) for c in report["unused_calls"]} == {(None, None)}
    assert report["unused_calls_total"] == 3
    assert unused_calls_line(report) == (
        "paid or maybe paid, and not used: 3 calls: 1 ambiguous, 1 cancelled, 1 crashed; 0 tokens, 0.000000 known cost,"
        " 3 of unknown cost"
    )


def test_a_job_that_went_well_has_no_unused_call(runtime: Runtime) -> None:
    job = finish(runtime, submit(runtime, policy(2)))

    report = status_report(runtime, job)

    assert (report["unused_calls"], report["unused_calls_total"]) == ([], 0)


def test_the_latest_calls_are_listed_and_all_are_counted(runtime: Runtime, clock: ManualClock) -> None:
    job = open_rules(runtime, policy(MOST_LISTED + 3))
    _claim(runtime, MOST_LISTED + 3)
    clock.now_ms += 1_000
    last = _claim(runtime, MOST_LISTED + 3)[0]
    clock.now_ms += 1
    runtime.ledger.cancellations.cancel(job.job_id, actor="ann", reason="wrong edition")

    report = unused_calls_report(runtime, job.job_id)

    assert len(report["unused_calls"]) == MOST_LISTED
    assert report["unused_calls_total"] == 2 * (MOST_LISTED + 3)
    assert {call["attempt"] for call in report["unused_calls"]} == {last.attempt}
    assert f"{report['unused_calls_total']} calls (the latest {MOST_LISTED} of them)" in unused_calls_line(report)
