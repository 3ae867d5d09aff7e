"""Traces of jobs: one tree below a submission, links where another process had tried before, and no content."""

import asyncio
from dataclasses import dataclass, replace

import pytest
import sqlalchemy as sa

from rulegen_dagster.domain.errors import ProviderRetryableError, SpecError
from rulegen_dagster.domain.states import Stage
from rulegen_dagster.domain.work import Claim
from rulegen_dagster.ledger.claims import Scope
from rulegen_dagster.ledger.database import ManualClock
from rulegen_dagster.ledger.schema import attempt_trace, job_trace
from rulegen_dagster.providers.pattern import PatternProvider
from rulegen_dagster.providers.port import ProviderIdentity, ProviderReply, ProviderRequest
from rulegen_dagster.telemetry.context import TraceContext
from rulegen_dagster.telemetry.semconv import Profile
from rulegen_dagster.telemetry.tracing import Tracing
from rulegen_dagster.workflow.engine import Attempt, Engine
from rulegen_dagster.workflow.forks import fork_job
from rulegen_dagster.workflow.generate import Generation
from rulegen_dagster.workflow.plan import plan_work
from rulegen_dagster.workflow.publish import Published, publish
from rulegen_dagster.workflow.runtime import Runtime, new_worker_name
from rulegen_dagster.workflow.traces import JOINED_FOR_MS, engine_traced
from tests.telemetry.spans import Spans, attributes_of, id_of, trace_of
from tests.workflow.conftest import (
    RULES,
    Recorder,
    claim_items,
    finish,
    open_rules,
    playing,
    policy,
    run_stage,
    submit,
)

SENTENCE = "Meals are limited to $51 per day."


@dataclass(frozen=True, kw_only=True)
class Model:
    """The pattern extractor in the dress of a language model."""

    identity: ProviderIdentity

    async def call(self, request: ProviderRequest) -> ProviderReply:
        reply = await PatternProvider().call(request)
        return replace(
            reply,
            model_id="small-2",
            request_id="req-1",
            tokens_in=111,
            tokens_out=22,
            cost_micros=650,
            report={"finish_reason": "stop", "cache_write_tokens": 10},
        )


def model() -> Model:
    settings: dict[str, str | int | bool] = {
        "max_tokens": 512,
        "base_url": "https://user:hidden@models.example:8443/v1",
    }
    identity = ProviderIdentity(name="openai-compatible", model_id="small", is_language_model=True, settings=settings)
    return Model(identity=identity)


def traced(
    runtime: Runtime, spans: Spans, *, tracing: Tracing | None = None, caller: TraceContext | None = None
) -> Runtime:
    """Return the runtime as another process has it, that traces."""
    return replace(runtime, tracing=tracing or spans.tracing(), worker=new_worker_name(), caller=caller)


def drain_traced(runtime: Runtime) -> None:
    with engine_traced(runtime, Generation(runtime).attempt, lambda _outcome: None) as (attempt, told):
        asyncio.run(Engine(runtime, attempt, slots=2, observe=told).drain(Scope(stages=RULES)))


async def answered(attempt: Attempt, claim: Claim) -> None:
    await attempt(claim)


def confirm(runtime: Runtime, job_id: int) -> None:
    job = runtime.ledger.reads.job_by_id(job_id)
    runtime.ledger.actions.confirm(job_id, str(job.action_set_digest), actor="test")


def test_a_job_is_one_tree_from_its_submission_to_its_publication_over_three_processes(runtime: Runtime) -> None:
    spans = Spans()

    job = submit(traced(runtime, spans), policy(2))
    finish(traced(runtime, spans), job)
    confirm(runtime, job.job_id)
    published = publish(traced(runtime, spans), runtime.ledger.reads.job_by_id(job.job_id))

    assert isinstance(published, Published)
    assert len({trace_of(span) for span in spans.ended}) == 1
    (root,) = [span for span in spans.ended if span.parent is None]
    assert root.name == "rulegen.intake"
    assert {tuple(spans.path_of(span)) for span in spans.ended} == {
        ("rulegen.intake",),
        ("rulegen.intake", "rulegen.publish"),
        *(
            ("rulegen.intake", f"rulegen.stage {stage}", *below)
            for stage in ("parse", "retrieve", "generate_rules", "generate_tests", "validate")
            for below in ((), (f"rulegen.attempt {stage}",))
        ),
        *(
            ("rulegen.intake", f"rulegen.stage {stage}", f"rulegen.attempt {stage}", f"rulegen.extract {stage}")
            for stage in ("generate_rules", "generate_tests")
        ),
    }
    attempts = [span for span in spans.ended if span.name.startswith("rulegen.attempt")]
    assert [attributes_of(span)["rulegen.outcome"] for span in attempts] == ["accepted"] * 7
    assert spans.one("rulegen.publish").attributes == {
        "rulegen.job.id": "default/policy",
        "rulegen.stage": "publish",
        "rulegen.worker": attributes_of(spans.one("rulegen.publish"))["rulegen.worker"],
        "rulegen.publication.reused": False,
    }


def test_a_process_that_does_not_trace_leaves_no_place_behind(local_runtime: Runtime) -> None:
    finish(local_runtime, submit(local_runtime, policy(1)))

    with local_runtime.ledger.database.read() as connection:
        assert connection.execute(sa.select(job_trace)).all() == []
        assert connection.execute(sa.select(attempt_trace)).all() == []


@pytest.mark.parametrize("profile", Profile)
def test_a_call_of_a_model_tells_what_the_conventions_ask_for(local_runtime: Runtime, profile: Profile) -> None:
    spans = Spans()
    asking = playing(local_runtime, model())
    job = open_rules(asking, policy(1))

    drain_traced(traced(asking, spans, tracing=spans.tracing(profile)))

    call = spans.one("chat small")
    told = attributes_of(call)
    timeout = told.pop("rulegen.timeout_ms")
    cache_write = {
        Profile.OTEL_1_36: "gen_ai.usage.cache_creation.input_tokens",
        Profile.GENAI_REPO: "gen_ai.usage.cache_write.input_tokens",
    }
    assert call.kind.name == "CLIENT"
    assert isinstance(timeout, int)
    assert told == {
        "rulegen.job.id": str(job.name),
        "rulegen.stage": "generate_rules",
        "rulegen.item": "rule-01",
        "rulegen.attempt": 1,
        "rulegen.operation.key": "default/policy/generate_rules/rule-01/v1",
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai-compatible",
        "gen_ai.output.type": "json",
        "gen_ai.conversation.id": str(job.name),
        "gen_ai.request.model": "small",
        "gen_ai.request.max_tokens": 512,
        "server.address": "models.example",
        "server.port": 8443,
        "gen_ai.response.model": "small-2",
        "gen_ai.response.id": "req-1",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 111,
        "gen_ai.usage.output_tokens": 22,
        cache_write[profile]: 10,
        "rulegen.cost.micros": 650,
    }


def test_the_extractor_is_no_model_in_a_trace(local_runtime: Runtime) -> None:
    spans = Spans()
    open_rules(local_runtime, policy(1))

    drain_traced(traced(local_runtime, spans))

    assert spans.one("rulegen.extract generate_rules").kind.name == "INTERNAL"
    assert [name for span in spans.ended for name in attributes_of(span) if name.startswith("gen_ai")] == []


def test_no_span_holds_a_word_of_the_specification(local_runtime: Runtime) -> None:
    spans = Spans()
    text = f"{SENTENCE}\n\nZugzwang must be avoided.\n".encode()

    asking = traced(playing(local_runtime, model()), spans)

    finish(asking, submit(asking, text, file_name="gambit.md"))

    exported = "".join(str(span.to_json()) for span in spans.ended)
    assert len(spans.ended) > 10
    assert [word for word in ("Meals", "limited", "$51", "Zugzwang", "gambit", "hidden") if word in exported] == []


def test_a_failed_call_tells_its_code_and_the_attempt_its_outcome(local_runtime: Runtime) -> None:
    def busy(request: ProviderRequest) -> None:
        raise ProviderRetryableError(f"the prompt was {request.clause.text}")

    spans = Spans()
    open_rules(local_runtime, policy(1))

    drain_traced(traced(playing(local_runtime, Recorder(busy)), spans))

    call, attempt = spans.one("rulegen.extract generate_rules"), spans.one("rulegen.attempt generate_rules")
    assert attributes_of(call)["error.type"] == attributes_of(attempt)["error.type"] == "provider_unavailable"
    assert attributes_of(attempt)["rulegen.outcome"] == "retryable"
    assert call.status.status_code.name == attempt.status.status_code.name == "ERROR"
    assert "Meals" not in "".join(str(span.to_json()) for span in spans.ended)


def test_an_attempt_after_a_lost_process_points_to_the_attempt_that_was_lost(
    runtime: Runtime, clock: ManualClock
) -> None:
    lost, spans = Spans(), Spans()
    submitted = Spans()
    job = submit(traced(runtime, submitted), policy(2))
    for stage in (Stage.PARSE, Stage.RETRIEVE):
        run_stage(runtime, job, stage)

    # It gets its answer, and is gone before anything of it is booked.
    process = traced(runtime, lost)
    with engine_traced(process, Generation(process).attempt, lambda _outcome: None) as (attempt, _):
        (claim,) = claim_items(process, Stage.GENERATE_RULES, 1, process.claimant)
        asyncio.run(answered(attempt, claim))
    clock.now_ms += 60_000
    drain_traced(traced(runtime, spans))

    root = submitted.one("rulegen.intake")
    first, *_ = [
        s for s in lost.named("rulegen.attempt generate_rules") if attributes_of(s)["rulegen.item"] == "rule-01"
    ]
    (again,) = [s for s in spans.named("rulegen.attempt generate_rules") if attributes_of(s)["rulegen.attempt"] == 2]
    assert [link.context.span_id for link in again.links] == [id_of(first)]
    assert {trace_of(span) for span in (*lost.ended, *spans.ended)} == {trace_of(root)}
    assert {span.parent.span_id for span in spans.named("rulegen.stage generate_rules") if span.parent} == {id_of(root)}


def test_a_retry_of_the_same_process_points_nowhere(local_runtime: Runtime, clock: ManualClock) -> None:
    def busy_at_first(request: ProviderRequest) -> None:
        if request.attempt == 1:
            raise ProviderRetryableError("busy")

    spans = Spans()
    open_rules(local_runtime, policy(1))
    process = traced(playing(local_runtime, Recorder(busy_at_first)), spans)

    drain_traced(process)
    clock.now_ms += 60_000
    drain_traced(process)

    first, second = spans.named("rulegen.attempt generate_rules")
    assert (list(first.links), list(second.links)) == ([], [])


def test_work_long_after_the_submission_begins_a_trace_that_points_to_it(
    local_runtime: Runtime, clock: ManualClock
) -> None:
    spans = Spans()
    job = submit(traced(local_runtime, spans), policy(1))
    root = spans.one("rulegen.intake")

    run_stage(traced(local_runtime, spans), job, Stage.PARSE)
    clock.now_ms += JOINED_FOR_MS + 1
    run_stage(traced(local_runtime, spans), job, Stage.RETRIEVE)

    soon, later = spans.one("rulegen.stage parse"), spans.one("rulegen.stage retrieve")
    assert (trace_of(soon), soon.parent is not None, list(soon.links)) == (trace_of(root), True, [])
    assert (trace_of(later) == trace_of(root), later.parent) == (False, None)
    assert [link.context.span_id for link in later.links] == [id_of(root)]


def test_the_same_submission_again_points_to_the_first(local_runtime: Runtime) -> None:
    spans = Spans()

    for _ in range(2):
        submit(traced(local_runtime, spans), policy(1))

    first, second = spans.named("rulegen.intake")
    assert attributes_of(second)["rulegen.submission.existing"] is True
    assert [link.context.span_id for link in second.links] == [id_of(first)]


def test_a_successor_begins_a_tree_that_points_to_its_predecessors(local_runtime: Runtime) -> None:
    spans = Spans()
    process = traced(local_runtime, spans)
    job = submit(process, policy(1))
    local_runtime.ledger.cancellations.cancel(job.job_id, actor="test", reason="not wanted")

    successor = fork_job(process, job, "next", deadline_ms=None, actor="test").job
    run_stage(process, successor, Stage.PARSE)

    first, second = spans.named("rulegen.intake")
    stage = spans.one("rulegen.stage parse")
    assert [link.context.span_id for link in second.links] == [id_of(first)]
    assert attributes_of(second)["rulegen.job.id"] == "default/next"
    assert spans.parent_of(stage) is second


def test_a_refused_submission_leaves_a_span_with_the_code(local_runtime: Runtime) -> None:
    spans = Spans()

    with pytest.raises(SpecError) as refusal:
        submit(traced(local_runtime, spans), b"\x00\x01\x02", file_name="policy.md")

    assert attributes_of(spans.one("rulegen.intake"))["error.type"] == refusal.value.code


@pytest.mark.parametrize("same_trace", [True, False])
def test_a_run_stands_below_its_tag_where_that_is_of_the_jobs_trace(
    local_runtime: Runtime, *, same_trace: bool
) -> None:
    spans = Spans()
    job = submit(traced(local_runtime, spans), policy(1))
    root = spans.one("rulegen.intake")
    caller = TraceContext(f"{trace_of(root):032x}" if same_trace else "a" * 32, "b" * 16)

    run_stage(traced(local_runtime, spans, caller=caller), job, Stage.PARSE)

    parent = spans.one("rulegen.stage parse").parent
    assert parent is not None
    assert parent.span_id == (0xBBBBBBBBBBBBBBBB if same_trace else id_of(root))


def test_a_planned_run_carries_the_place_of_its_jobs_submission(runtime: Runtime) -> None:
    spans = Spans()
    submit(traced(runtime, spans), policy(1), key="one")
    submit(runtime, policy(1), key="two")
    root = spans.one("rulegen.intake")

    one, two = plan_work(runtime)

    assert two.traceparent is None
    assert str(one.traceparent)[:-2] == f"00-{trace_of(root):032x}-{id_of(root):016x}-"


def test_a_ledger_out_of_reach_costs_the_spans_and_not_the_work(
    local_runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rulegen_dagster.domain.errors import LedgerError
    from rulegen_dagster.ledger.traces import Traces

    def out_of_reach(*_: object) -> None:
        raise LedgerError("the database is gone")

    spans = Spans()
    open_rules(local_runtime, policy(2))
    monkeypatch.setattr(Traces, "of_jobs", out_of_reach)

    drain_traced(traced(local_runtime, spans))

    counts = local_runtime.ledger.reads.stage_counts(1)[Stage.GENERATE_RULES]
    assert sum(number for state, number in counts.items() if state == "succeeded") == 2
    assert spans.named("rulegen.attempt generate_rules") == []
