"""Retrieval as a stage: what a failure of it becomes, by the job's policy, and what of it the rules remember."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from rulegen_dagster.domain.behaviour import RETRIEVAL_INDEX, ContextPolicy
from rulegen_dagster.domain.clause import Clause, ContextEntry, ParsedSpec
from rulegen_dagster.domain.errors import RetrievalError
from rulegen_dagster.domain.rule import RuleOutput
from rulegen_dagster.domain.states import AttemptOutcome, JobState, Stage, WorkState
from rulegen_dagster.ledger.database import ManualClock
from rulegen_dagster.ledger.reads import JobRecord
from rulegen_dagster.specs.context import ContextIndex
from rulegen_dagster.workflow.bundle import build_bundle, clause_entries
from rulegen_dagster.workflow.documents import NotReady, prepare
from rulegen_dagster.workflow.extract import load_context, load_missing_context
from rulegen_dagster.workflow.review import review_report
from rulegen_dagster.workflow.runtime import ContextSource, Runtime
from tests.workflow.conftest import finish, run_stage, scripted, submit

TEXT = b"""# Definitions

"Meal" means breakfast, lunch or dinner.

# Rules

Meals are limited to $50 per day.

Lodging is limited to $150 per night.
"""


class Failing:
    """An index in which some clauses cannot be looked up."""

    def __init__(self, parsed: ParsedSpec, failing: tuple[int, ...]) -> None:
        self._index = ContextIndex(parsed)
        self._failing = failing

    def context_of(self, clause: Clause) -> tuple[ContextEntry, ...]:
        if clause.ordinal in self._failing:
            raise RetrievalError("the look-up failed", code="retrieval_lookup_failed")
        return self._index.context_of(clause)


def _refusing(parsed: ParsedSpec) -> Failing:
    raise RetrievalError(f"no index for {len(parsed.clauses)} clauses", code="retrieval_index_failed")


def _under(runtime: Runtime, policy: ContextPolicy) -> Runtime:
    return replace(runtime, settings=runtime.settings.model_copy(update={"context_policy": policy}))


def _parsed(runtime: Runtime) -> JobRecord:
    job = submit(runtime, TEXT)
    run_stage(runtime, job, Stage.PARSE)
    return runtime.ledger.reads.job_by_id(job.job_id)


def test_a_job_freezes_its_index_and_its_policy(local_runtime: Runtime) -> None:
    job = submit(_under(local_runtime, ContextPolicy.OPTIONAL), TEXT)

    assert (job.behaviour["retrieval_index"], job.behaviour["context_policy"]) == (RETRIEVAL_INDEX, "optional")


@pytest.mark.parametrize("index", [_refusing, lambda parsed: Failing(parsed, (1,))], ids=["index", "clause"])
def test_where_context_is_required_its_failure_is_retried_and_then_blocks(
    runtime: Runtime, clock: ManualClock, index: Callable[[ParsedSpec], ContextSource]
) -> None:
    broken = replace(runtime, index=index)
    job = _parsed(broken)

    for _ in range(3):
        with pytest.raises(RetrievalError):
            prepare(broken, job.job_id, Stage.RETRIEVE)
        clock.now_ms += 60_000

    (item,) = broken.ledger.reads.items(job.job_id, Stage.RETRIEVE)
    attempts = broken.ledger.reads.attempts(job.job_id, item.key)
    assert (item.state, item.attempts) == (WorkState.FAILED, 3)
    assert str(item.error_code).startswith("retrieval_")
    assert {made.outcome for made in attempts} == {AttemptOutcome.RETRYABLE}
    assert not any(made.provider_called for made in attempts)
    assert broken.ledger.reads.job_by_id(job.job_id).state is JobState.RETRIEVING


def test_a_retrieval_that_works_again_goes_on(local_runtime: Runtime, clock: ManualClock) -> None:
    job = _parsed(local_runtime)
    with pytest.raises(RetrievalError):
        prepare(replace(local_runtime, index=_refusing), job.job_id, Stage.RETRIEVE)
    clock.now_ms += 60_000

    run_stage(local_runtime, job, Stage.RETRIEVE)

    assert load_missing_context(local_runtime, job.job_id) == {}
    assert local_runtime.ledger.reads.job_by_id(job.job_id).state is JobState.GENERATING_RULES


def test_where_context_is_optional_each_clause_without_says_why(runtime: Runtime) -> None:
    broken = replace(_under(runtime, ContextPolicy.OPTIONAL), index=lambda parsed: Failing(parsed, (2,)))
    job = _parsed(broken)

    run_stage(broken, job, Stage.RETRIEVE)

    assert load_missing_context(broken, job.job_id) == {2: "retrieval_lookup_failed"}
    assert [entry.ordinal for entry in load_context(broken, job.job_id)[1]] == [0]


def test_without_an_index_every_clause_says_why(local_runtime: Runtime) -> None:
    broken = replace(_under(local_runtime, ContextPolicy.OPTIONAL), index=_refusing)
    job = _parsed(broken)

    run_stage(broken, job, Stage.RETRIEVE)

    assert load_missing_context(broken, job.job_id) == dict.fromkeys((1, 2), "retrieval_index_failed")


def test_the_policy_is_the_jobs_and_not_the_process_s(local_runtime: Runtime) -> None:
    job = _parsed(_under(local_runtime, ContextPolicy.OPTIONAL))
    strict = replace(_under(local_runtime, ContextPolicy.REQUIRED), index=_refusing)

    run_stage(strict, job, Stage.RETRIEVE)

    assert load_missing_context(strict, job.job_id)


def test_a_job_is_not_given_context_by_another_index_than_it_froze(
    local_runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = _parsed(local_runtime)
    monkeypatch.setattr("rulegen_dagster.workflow.behaviours.RETRIEVAL_INDEX", "another/9")

    prepared = prepare(local_runtime, job.job_id, Stage.RETRIEVE)

    assert isinstance(prepared, NotReady)
    assert "it froze the retrieval index" in prepared.reason
    assert local_runtime.ledger.reads.items(job.job_id, Stage.RETRIEVE)[0].attempts == 0


def test_a_rule_remembers_the_clauses_that_its_provider_was_given(local_runtime: Runtime) -> None:
    job = finish(local_runtime, submit(local_runtime, TEXT))

    outputs = [
        RuleOutput.model_validate_json(str(item.output))
        for item in local_runtime.ledger.reads.items(job.job_id, Stage.GENERATE_RULES)
    ]
    assert [[rule.depends_on for rule in output.rules] for output in outputs] == [[(0,)], [()]]


def test_no_text_of_another_job_gets_into_the_context(local_runtime: Runtime) -> None:
    run_stage(local_runtime, submit(local_runtime, TEXT.replace(b"breakfast", b"SECRET"), key="other"), Stage.PARSE)
    job = _parsed(local_runtime)

    run_stage(local_runtime, job, Stage.RETRIEVE)

    texts = [entry.text for entries in load_context(local_runtime, job.job_id).values() for entry in entries]
    assert texts
    assert not any("SECRET" in text for text in texts)


def test_review_and_bundle_tell_what_a_rule_depends_on(local_runtime: Runtime) -> None:
    job = finish(local_runtime, submit(local_runtime, TEXT))
    entries = clause_entries(local_runtime, job.job_id)

    meals, lodging = review_report(local_runtime, job)["clauses"]
    bundle = build_bundle(local_runtime, job, entries, "{}")

    definition = '"Meal" means breakfast, lunch or dinner.'
    shown = [(entry["relation"], entry["ordinal"]) for entry in meals["context"]]
    assert (meals["rules"][0]["depends_on"], shown) == ([0], [("defines", 0)])
    assert (lodging["rules"][0]["depends_on"], lodging["context"], lodging["no_context"]) == ([], [], None)
    rules = json.loads(bundle.files["rules.json"])["rules"]
    sources = json.loads(bundle.files["sources.json"])
    assert [rule.get("depends_on") for rule in rules] == [[0], None]
    assert [(entry["ordinal"], entry["text"].split("- ")[-1]) for entry in sources["context"]] == [(0, definition)]


def test_a_reviewer_sees_which_clause_went_on_without_context(local_runtime: Runtime) -> None:
    broken = replace(_under(local_runtime, ContextPolicy.OPTIONAL), index=lambda parsed: Failing(parsed, (2,)))

    job = finish(broken, submit(broken, TEXT))

    shown = [clause["no_context"] for clause in review_report(broken, job)["clauses"]]
    assert shown == [None, "retrieval_lookup_failed"]


def test_a_reviewer_sees_proposed_facts(local_runtime: Runtime) -> None:
    proposal = {"name": "trip.by_night", "type": "bool", "description": "by night", "quote": "per night"}
    reply = {"no_rule": {"reason": "fact_not_in_vocabulary"}, "proposed_facts": [proposal]}
    scripting = scripted(local_runtime, {"generate_rules/rule-02": [{"do": "ok", "draft": reply}]})

    job = finish(scripting, submit(scripting, TEXT))

    assert [clause["proposed_facts"] for clause in review_report(scripting, job)["clauses"]] == [[], [proposal]]
