"""Metrics: what a scrape tells of a ledger, on both databases."""

from dataclasses import replace

from sqlalchemy import event

from rulegen_dagster.domain.quota_scope import QuotaScope
from rulegen_dagster.domain.states import AttemptOutcome, Stage
from rulegen_dagster.domain.work import FailedAttempt, Offer, Usage
from rulegen_dagster.ledger.database import ManualClock
from rulegen_dagster.ledger.figures import SETTLED_AFTER_MS, Figures
from rulegen_dagster.ledger.quotas import Quotas
from rulegen_dagster.ledger.reservations import Reservations
from rulegen_dagster.workflow.engine import decide
from rulegen_dagster.workflow.metrics import LedgerMetrics
from rulegen_dagster.workflow.runtime import Runtime
from tests.ledger.conftest import submission
from tests.telemetry.prometheus_text import ReadMetric, read_exposition
from tests.workflow.conftest import OTHER, claim_items, finish, make_items, policy, run_stage, submit

USAGE = Usage(model_id="small", request_id="r", tokens_in=100, tokens_out=20, cost_micros=650)


def scrape(runtime: Runtime, *, by_tenant: bool = False) -> dict[str, ReadMetric]:
    return read_exposition(LedgerMetrics(runtime, by_tenant=by_tenant).text())


def values(metric: ReadMetric, *labels: str) -> dict[tuple[str, ...], float]:
    """Return the samples that are not zero, by the values of some labels."""
    return {tuple(dict(key)[label] for label in labels): value for key, value in metric.samples.items() if value}


def settle(runtime: Runtime, *results: Offer | FailedAttempt) -> None:
    failures = [(result, decide(runtime, result)) for result in results if isinstance(result, FailedAttempt)]
    with runtime.ledger.turn(OTHER) as turn:
        for result in results:
            if isinstance(result, Offer):
                turn.offer(result)
        turn.settle(failures)


def test_a_scrape_counts_jobs_items_attempts_tokens_and_cost(runtime: Runtime) -> None:
    make_items(runtime, 4)
    first, second, third = claim_items(runtime, Stage.GENERATE_RULES, 3)
    settle(
        runtime,
        Offer(claim=first, output="{}", provider="openai-compatible", provider_called=True, usage=USAGE),
        FailedAttempt(
            claim=second,
            outcome=AttemptOutcome.AMBIGUOUS,
            error_code="timeout",
            message="no answer",
            provider="openai-compatible",
            provider_called=True,
            usage=replace(USAGE, tokens_in=None, tokens_out=None, cost_micros=None),
        ),
    )

    read = scrape(runtime)

    assert third.attempt == 1
    assert values(read["rulegen_jobs"], "state") == {("generating_rules",): 1}
    assert values(read["rulegen_work_items"], "stage", "state") == {
        ("parse", "succeeded"): 1,
        ("retrieve", "succeeded"): 1,
        ("generate_rules", "succeeded"): 1,
        ("generate_rules", "running"): 1,
        ("generate_rules", "waiting"): 1,
        ("generate_rules", "pending"): 1,
    }
    assert values(read["rulegen_attempts"], "stage", "outcome", "provider", "model") == {
        ("parse", "accepted", "", ""): 1,
        ("retrieve", "accepted", "", ""): 1,
        ("generate_rules", "accepted", "openai-compatible", "small"): 1,
        ("generate_rules", "ambiguous", "openai-compatible", "small"): 1,
    }
    of_model = ("openai-compatible", "small")
    assert values(read["rulegen_provider_calls_total"], "provider", "model") == {of_model: 2}
    assert values(read["rulegen_provider_tokens_total"], "direction") == {("input",): 100, ("output",): 20}
    assert values(read["rulegen_provider_cost_micros_total"], "provider", "model") == {of_model: 650}
    assert values(read["rulegen_provider_unpriced_calls_total"], "provider", "model") == {of_model: 1}
    assert values(read["rulegen_provider_unused_calls"], "provider", "model") == {of_model: 1}


def test_a_scrape_tells_what_waits_and_for_how_long(runtime: Runtime, clock: ManualClock) -> None:
    make_items(runtime, 3)
    claim_items(runtime, Stage.GENERATE_RULES, 2)
    clock.now_ms += 500
    before = scrape(runtime)
    clock.now_ms += 4_500
    after = scrape(runtime)

    # One item is free; two are leased for a second, and then their worker is late.
    assert values(before["rulegen_items_due"], "stage") == {("generate_rules",): 1}
    assert values(before["rulegen_items_oldest_due_seconds"], "stage") == {("generate_rules",): 0.5}
    assert values(before["rulegen_items_leased"], "stage") == {("generate_rules",): 2}
    assert values(before["rulegen_items_lease_passed"], "stage") == {}
    assert values(after["rulegen_items_due"], "stage") == {("generate_rules",): 3}
    assert values(after["rulegen_items_oldest_due_seconds"], "stage") == {("generate_rules",): 5.0}
    assert values(after["rulegen_items_lease_passed"], "stage") == {("generate_rules",): 2}
    assert after["rulegen_outbox_unmirrored"].samples == {(): 2}
    assert after["rulegen_outbox_oldest_seconds"].samples == {(): 5.0}


def test_a_late_result_is_counted(runtime: Runtime, clock: ManualClock) -> None:
    make_items(runtime, 1)
    (late,) = claim_items(runtime, Stage.GENERATE_RULES, 1)
    clock.now_ms += 5_000
    claim_items(runtime, Stage.GENERATE_RULES, 1)
    settle(runtime, Offer(claim=late, output="{}", provider="test", provider_called=True, usage=USAGE))

    assert values(scrape(runtime)["rulegen_late_results"], "provider", "model") == {("test", "small"): 1}


def test_a_job_that_waits_for_a_person_is_told_with_its_age(local_runtime: Runtime, clock: ManualClock) -> None:
    finish(local_runtime, submit(local_runtime, policy(1)))
    clock.now_ms += 90_000

    read = scrape(local_runtime)

    assert read["rulegen_confirmation_oldest_seconds"].samples == {(): 90}
    assert values(read["rulegen_actions"], "kind", "state") == {("publish", "proposed"): 1}


def test_a_quota_is_told_as_it_is_now(runtime: Runtime, clock: ManualClock) -> None:
    runtime.ledger.submissions.add_tenant("acme")
    provider, tenant = QuotaScope.of_provider("openai-compatible", "small"), QuotaScope.of_tenant("acme")
    quotas = Quotas(runtime.ledger.database, Reservations(runtime.ledger.database))
    quotas.set(provider, {"requests_per_minute": 120, "budget_micros": 5_000_000})
    quotas.set(tenant, {"tokens_per_minute": 9_000})

    read, by_tenant = scrape(runtime), scrape(runtime, by_tenant=True)

    assert values(read["rulegen_quota_requests_left"], "scope") == {(str(provider),): 120}
    assert values(read["rulegen_quota_requests_per_minute"], "scope") == {(str(provider),): 120}
    assert values(read["rulegen_quota_budget_left_micros"], "scope") == {(str(provider),): 5_000_000}
    assert read["rulegen_quota_account_refused"].samples == {(("scope", str(provider)),): 0}
    assert read["rulegen_quota_tokens_left"].samples == {}
    assert values(by_tenant["rulegen_quota_tokens_left"], "scope") == {("tenant:acme",): 9_000}


def test_tenants_are_a_label_only_where_they_are_asked_for(runtime: Runtime) -> None:
    runtime.ledger.submissions.add_tenant("zugzwang")
    for tenant in ("default", "zugzwang"):
        runtime.ledger.submissions.submit(submission("k", tenant=tenant), actor="test")

    assert "zugzwang" not in LedgerMetrics(runtime).text()
    assert values(scrape(runtime)["rulegen_jobs"], "state") == {("extracting",): 2}
    asked = scrape(runtime, by_tenant=True)["rulegen_jobs"]
    assert values(asked, "tenant", "state") == {("default", "extracting"): 1, ("zugzwang", "extracting"): 1}


def test_an_empty_ledger_has_every_metric(local_runtime: Runtime) -> None:
    read = scrape(local_runtime)

    assert set(values(read["rulegen_ledger_info"], "database")) == {("sqlite",)}
    assert len(read["rulegen_jobs"].samples) > 10
    assert sum(read["rulegen_jobs"].samples.values()) == 0
    assert all(metric.help and metric.kind for metric in read.values())


def test_a_job_that_ended_long_ago_is_counted_like_any_other_and_once(runtime: Runtime, clock: ManualClock) -> None:
    long_ago = make_items(runtime, 3)
    (claim,) = claim_items(runtime, Stage.GENERATE_RULES, 1)
    settle(runtime, Offer(claim=claim, output="{}", provider="test", provider_called=True, usage=USAGE))
    runtime.ledger.cancellations.cancel(long_ago, actor="test", reason="not wanted")
    clock.now_ms += SETTLED_AFTER_MS + 1
    kept = LedgerMetrics(runtime)
    first = kept.text()
    run_stage(runtime, submit(runtime, policy(1), key="new"), Stage.PARSE)

    second, fresh = kept.text(), LedgerMetrics(runtime).text()

    assert first != second
    assert second == fresh
    assert values(read_exposition(second)["rulegen_provider_calls_total"], "provider") == {("test",): 1}


def test_what_a_look_reads_does_not_grow_with_the_jobs_that_ended(local_runtime: Runtime, clock: ManualClock) -> None:
    figures = Figures(local_runtime.ledger.database)
    steps: list[int] = []

    def counted() -> int:
        """Return how many steps SQLite's machine takes for one look, in thousands."""
        taken = 0

        def step() -> None:
            nonlocal taken
            taken += 1

        def watch(connection: object, _record: object, _proxy: object) -> None:
            connection.set_progress_handler(step, 1_000)  # type: ignore[attr-defined]

        event.listen(local_runtime.ledger.database.engine, "checkout", watch)
        figures.look()
        event.remove(local_runtime.ledger.database.engine, "checkout", watch)
        return taken

    for key in ("one", "two", "three"):
        ended = submit(local_runtime, policy(100), key=key)
        run_stage(local_runtime, ended, Stage.PARSE)
        local_runtime.ledger.cancellations.cancel(ended.job_id, actor="test", reason="not wanted")
        clock.now_ms += SETTLED_AFTER_MS + 1
        figures.look()
        steps.append(counted())

    assert steps[2] <= steps[0] + 1
