"""Deployments in the middle of a job: it goes on with what it froze, or stops for a decision before any claim."""

import asyncio
import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

import rulegen_dagster
from rulegen_dagster.domain import failpoints
from rulegen_dagster.domain.behaviour import Choice, ModelDrift, Part
from rulegen_dagster.domain.canonical import sha256_hex
from rulegen_dagster.domain.errors import InputError, StateError
from rulegen_dagster.domain.failpoints import Failpoint
from rulegen_dagster.domain.prompt import Prompt
from rulegen_dagster.domain.states import JobState, Stage, WorkState
from rulegen_dagster.domain.work import Offer
from rulegen_dagster.ledger.claims import Scope
from rulegen_dagster.ledger.database import ManualClock
from rulegen_dagster.ledger.needed_decisions import decisions_of_job, reported_models
from rulegen_dagster.ledger.reads import JobRecord
from rulegen_dagster.providers.pattern import PatternProvider
from rulegen_dagster.providers.port import Provider, ProviderIdentity, ProviderReply, ProviderRequest
from rulegen_dagster.providers.prompts import RELEASE_VERSIONS, load_prompt
from rulegen_dagster.rules.pack_files import pack_text
from rulegen_dagster.rules.packs import load_vocabulary
from rulegen_dagster.rules.policies import load_policy
from rulegen_dagster.workflow import decide
from rulegen_dagster.workflow.behaviours import check, resume_retained
from rulegen_dagster.workflow.compare_behaviours import behaviours_report, difference_report
from rulegen_dagster.workflow.documents import NotReady, accept, prepare
from rulegen_dagster.workflow.drive import drive, generate
from rulegen_dagster.workflow.engine import Engine, offer_directly
from rulegen_dagster.workflow.explain import reason_of, status_report
from rulegen_dagster.workflow.forks import fork_job
from rulegen_dagster.workflow.frozen import freeze, frozen_policy, frozen_vocabulary
from rulegen_dagster.workflow.generate import Generation
from rulegen_dagster.workflow.partitions import KeyState, drain_keys
from rulegen_dagster.workflow.plan import plan_publications, plan_work
from rulegen_dagster.workflow.publish import NothingToPublish, publish
from rulegen_dagster.workflow.runtime import Runtime
from rulegen_dagster.workflow.why import why_report
from tests.ledger.conftest import parsed_spec, submission
from tests.providers.model_server import Completion, ModelServer
from tests.workflow.conftest import BOTH, OTHER, RULES, finish, policy, run_stage, submit

OLD = {
    task: Prompt(task=task, version="1", text=f"state the {task}, as release 1 says\n") for task in ("rules", "tests")
}
NEW = {**OLD, "rules": Prompt(task="rules", version="2", text="state the rules, as release 2 says\n")}


class Prompted:
    """The pattern extractor, asked in words: it keeps the prompt of each call, and may report other models."""

    def __init__(self, prompts: Mapping[str, Prompt], sent: list[str], reports: Callable[[int], str]) -> None:
        self._prompts = prompts
        self._sent = sent
        self._reports = reports
        self._pattern = PatternProvider()

    @property
    def identity(self) -> ProviderIdentity:
        return replace(
            self._pattern.identity, model_id="alias", is_language_model=True, can_repair=True, prompts=self._prompts
        )

    async def call(self, request: ProviderRequest) -> ProviderReply:
        self._sent.append(self._prompts["rules" if request.stage is Stage.GENERATE_RULES else "tests"].text)
        reply = await self._pattern.call(request)
        return replace(reply, model_id=self._reports(len(self._sent)))


@dataclass(frozen=True, kw_only=True)
class Release(Runtime):
    """A runtime of one release: the prompts that its files hold, and what its provider was sent."""

    own: Mapping[str, Prompt]
    sent: list[str] = field(default_factory=list)
    reports: Callable[[int], str] = lambda _call: "model-1"

    def provider(
        self, name: str, prompts: Mapping[str, Prompt] | None = None, frozen: Mapping[str, Any] | None = None
    ) -> Provider:
        assert name
        return Prompted(self.own if prompts is None else prompts, self.sent, self.reports)


def release(runtime: Runtime, own: Mapping[str, Prompt] = OLD, **changed: Any) -> Release:
    return Release(**{**vars(runtime), "own": own, **changed})


def stopping(runtime: Runtime) -> Runtime:
    settings = runtime.settings.model_copy(update={"model_drift": ModelDrift.STOP, "slots": 1})
    return replace(runtime, settings=settings)


def unparsed(runtime: Runtime, key: str = "policy") -> JobRecord:
    """Submit a job under what this release would freeze, without a parser."""
    frozen = freeze(runtime)
    request = replace(submission(key), behaviour=frozen.behaviour, prompts=frozen.prompts, packs=frozen.packs)
    return runtime.ledger.reads.job_by_id(runtime.ledger.submissions.submit(request, actor="test").job_id)


def opened(runtime: Runtime, count: int, key: str = "policy") -> JobRecord:
    """Submit a job and open its rule items: clauses that the pattern extractor reads, without a parser."""
    job, spec = unparsed(runtime, key), parsed_spec(count, "Meals are limited to $5{} per day.")
    runtime.blobs.put(spec.canonical_text.encode())
    for stage, parsed in ((Stage.PARSE, spec), (Stage.RETRIEVE, None)):
        with runtime.ledger.turn(OTHER) as turn:
            (claim,) = turn.claim(Scope(stages=(stage,), job_ids=(job.job_id,)), [runtime.tokens()])
        accept(runtime, Offer(claim=claim, output='{"context":{}}', parsed=parsed))
    return runtime.ledger.reads.job_by_id(job.job_id)


def generated(runtime: Runtime, job: JobRecord) -> JobRecord:
    """Generate every rule and test of a job."""
    generate(runtime, Scope(stages=BOTH, job_ids=(job.job_id,)), observe=lambda _: None)
    return runtime.ledger.reads.job_by_id(job.job_id)


def some_rules(runtime: Runtime, job: JobRecord, count: int) -> None:
    """Get a few rules accepted, as a release does that is replaced then."""
    keys = runtime.ledger.reads.rule_partition_keys(job.job_id)[:count]
    list(drain_keys(runtime, keys, RULES, accept=offer_directly, redrive_reason=None))


def state_of(runtime: Runtime, job: JobRecord) -> JobState:
    return runtime.ledger.reads.job_by_id(job.job_id).state


def attempts(runtime: Runtime, job: JobRecord) -> int:
    return len([one for one in runtime.ledger.reads.attempts(job.job_id) if one.key.stage in BOTH])


@pytest.fixture
def other_schema(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make this the release with another output schema; `reads` are those whose outputs it can read besides."""

    def deploy(version: str = "rules-and-tests-v9", reads: frozenset[str] = frozenset()) -> None:
        monkeypatch.setattr("rulegen_dagster.workflow.frozen.OUTPUT_SCHEMA_VERSION", version)
        monkeypatch.setattr("rulegen_dagster.workflow.behaviours.OUTPUT_SCHEMA_VERSION", version)
        monkeypatch.setattr("rulegen_dagster.workflow.frozen.READABLE_OUTPUT_SCHEMAS", reads)

    return deploy


def test_a_deployment_with_another_prompt_changes_nothing_for_a_job_that_began_before(runtime: Runtime) -> None:
    before, after = release(runtime), release(runtime, NEW)
    job = opened(before, 3)
    some_rules(before, job, 1)

    finished = finish(after, job)
    later = finish(after, opened(after, 1, key="later"))

    assert finished.state is later.state is JobState.AWAITING_CONFIRMATION
    assert set(before.sent) == {OLD["rules"].text}
    assert after.sent[:5] == [OLD["rules"].text] * 2 + [OLD["tests"].text] * 3
    assert after.sent[5] == NEW["rules"].text
    assert finished.behaviour_digest != later.behaviour_digest


def test_a_job_goes_on_with_its_prompt_although_the_release_has_no_file_of_it(local_runtime: Runtime) -> None:
    before, after = release(local_runtime), release(local_runtime, {})
    job = opened(before, 2)

    finished = finish(after, job)

    assert finished.state is JobState.AWAITING_CONFIRMATION
    assert set(after.sent) == {OLD["rules"].text, OLD["tests"].text}


def test_a_models_endpoint_is_sent_the_prompt_of_the_job_after_its_file_was_replaced(
    local_runtime: Runtime, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nothing = json.dumps({"rules": [], "no_rule": {"reason": "needs_judgement", "detail": "no"}, "proposed_facts": []})
    with ModelServer(lambda _heard: Completion(text=nothing)) as server:
        asked = {"provider": "openai-compatible", "model": "m", "base_url": server.url, "api_key": SecretStr("k")}
        runtime = replace(local_runtime, settings=local_runtime.settings.model_copy(update=asked))
        job = opened(runtime, 2)
        old = load_prompt("rules", "1").text
        shutil.copytree(Path(rulegen_dagster.__file__).parent / "prompts", tmp_path / "prompts")
        file = tmp_path / "prompts" / "rules" / "1.md"
        file.with_name("2.md").write_text(
            old.replace("You read one clause", "You look at one clause"), encoding="utf-8"
        )
        file.unlink()
        monkeypatch.setattr("rulegen_dagster.providers.prompts.files", lambda _package: tmp_path)
        monkeypatch.setattr("rulegen_dagster.providers.prompts.RELEASE_VERSIONS", {**RELEASE_VERSIONS, "rules": "2"})
        load_prompt.cache_clear()
        try:
            generated(runtime, job)
            later = generated(runtime, opened(runtime, 1, key="later"))
        finally:
            load_prompt.cache_clear()

    sent = [heard.system.partition(" of a written policy")[0] for heard in server.heard]
    assert sent == ["You read one clause"] * 2 + ["You look at one clause"]
    assert later.state is JobState.VALIDATING
    assert job.behaviour["prompt_versions"]["rules"] == f"1@{sha256_hex(old)}"
    assert later.behaviour["prompt_versions"]["rules"].startswith("2@")


def test_a_job_keeps_its_vocabulary_and_policy_when_their_files_are_gone(
    local_runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = opened(local_runtime, 2)
    meant = load_vocabulary("expense"), load_policy(local_runtime.settings.policy)

    def gone(*_: object, **__: object) -> str:
        raise AssertionError("a file of the release was read")

    monkeypatch.setattr("rulegen_dagster.rules.packs.pack_text", gone)
    monkeypatch.setattr("rulegen_dagster.rules.policies.pack_text", gone)

    finished = finish(local_runtime, job)

    assert finished.state is JobState.AWAITING_CONFIRMATION
    assert (frozen_vocabulary(local_runtime, finished), frozen_policy(local_runtime, finished)) == meant


@pytest.mark.parametrize("module", ["packs", "policies"])
def test_a_job_of_a_release_that_kept_digests_alone_goes_on_while_the_files_are_what_they_were(
    local_runtime: Runtime, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    # Without the texts.
    request = replace(submission(), behaviour=freeze(local_runtime).behaviour)
    job_id = local_runtime.ledger.submissions.submit(request, actor="release 1").job_id

    before = check(local_runtime, job_id)
    text = pack_text

    def changed(folder: str, name: str, **rest: Any) -> str:
        return re.sub("version: [0-9]+", "version: 99", text(folder, name, **rest))

    monkeypatch.setattr(f"rulegen_dagster.rules.{module}.pack_text", changed)
    after = check(local_runtime, job_id)

    (needed,) = decisions_of_job(local_runtime.ledger.database, job_id)
    assert (before.may_go_on, after.may_go_on) == (True, False)
    assert needed.incompatibility.part is {"packs": Part.VOCABULARY, "policies": Part.VALIDATION_POLICY}[module]
    assert "@99 (" not in needed.incompatibility.was
    assert "@99 (" in str(needed.incompatibility.now)


@pytest.mark.parametrize("name", ["expense", "travel", "leave"])
def test_a_vocabulary_is_read_back_as_it_was_frozen(local_runtime: Runtime, name: str) -> None:
    settings = local_runtime.settings.model_copy(update={"vocabulary": name})
    job = unparsed(replace(local_runtime, settings=settings))

    assert frozen_vocabulary(local_runtime, job) == load_vocabulary(name)


def test_a_job_of_another_schema_stops_for_a_decision_before_anything_is_claimed(
    runtime: Runtime, other_schema: Callable[..., None]
) -> None:
    job = opened(runtime, 2)
    some_rules(runtime, job, 1)
    made = attempts(runtime, job)
    other_schema()

    stopped = finish(runtime, job)
    report = status_report(runtime, stopped)
    why = why_report(runtime, stopped)

    assert stopped.state is JobState.NEEDS_DECISION
    assert attempts(runtime, job) == made
    assert "it froze the output schema rules-and-tests-v" in report["reason"]
    assert f"rulegen decide {job.name} retain|migrate|stop" in report["reason"]
    assert (why["reason_code"], why["evidence"]["part"]) == ("needs_decision", "output_schema")
    assert why["evidence"]["from_state"] == "generating_rules"
    assert plan_work(runtime) == []


def test_a_retained_job_waits_for_a_release_that_honours_it_and_goes_on_there_by_itself(
    runtime: Runtime, other_schema: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = opened(runtime, 2)
    with monkeypatch.context():
        other_schema()
        finish(runtime, job)
        decided = decide.decide(runtime, job, Choice.RETAIN, actor="ann", reason="release 1 does it")
        again = decide.decide(runtime, job, Choice.RETAIN, actor="bob", reason=None)
        waiting = finish(runtime, job)
        resume_retained(runtime)
        reason = reason_of(runtime, waiting)
    monkeypatch.undo()

    (launch,) = plan_work(runtime)
    finished = generated(runtime, job)

    assert (decided["decided_now"], decided["resumed"], again["decided_now"]) == (True, False, False)
    assert (waiting.state, reason.code) == (JobState.NEEDS_DECISION, "retained")
    assert "ann retained the job" in reason.text
    assert launch.job_key == job.partition_key
    assert finished.state is JobState.VALIDATING
    assert finished.behaviour_digest == job.behaviour_digest


def test_a_job_is_retained_at_once_where_the_running_release_honours_it(
    local_runtime: Runtime, other_schema: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = opened(local_runtime, 1)
    with monkeypatch.context():
        other_schema()
        finish(local_runtime, job)
    monkeypatch.undo()

    untouched = finish(local_runtime, job).state
    decided = decide.decide(local_runtime, job, Choice.RETAIN, actor="ann", reason="rolled back")

    assert untouched is JobState.NEEDS_DECISION
    assert (decided["resumed"], decided["state"]) == (True, "generating_rules")
    assert check(local_runtime, job.job_id).may_go_on


def test_a_migrated_job_keeps_what_is_accepted_and_does_the_rest_in_the_new_way(
    runtime: Runtime, other_schema: Callable[..., None]
) -> None:
    before, after = release(runtime), release(runtime, NEW)
    job = opened(before, 3)
    some_rules(before, job, 1)
    kept = runtime.ledger.reads.items(job.job_id, Stage.GENERATE_RULES)[0].output_digest
    other_schema(reads=frozenset({job.behaviour["output_schema"]}))
    finish(after, job)

    decided = decide.decide(after, job, Choice.MIGRATE, actor="ann", reason="the new schema reads the old one")
    finished = finish(after, job)

    assert [change["field"] for change in decided["changed"]] == ["output_schema", "prompt_versions.rules"]
    assert (finished.state, finished.behaviour["output_schema"]) == (
        JobState.AWAITING_CONFIRMATION,
        "rules-and-tests-v9",
    )
    assert after.sent == [NEW["rules"].text] * 2 + [OLD["tests"].text] * 3
    assert runtime.ledger.reads.items(job.job_id, Stage.GENERATE_RULES)[0].output_digest == kept
    content = json.loads(runtime.ledger.reads.action_set(job.job_id, str(finished.action_set_digest)))
    (change,) = status_report(after, finished)["behaviour_changes"]
    assert content["behaviour"] == change["to_digest"] == finished.behaviour_digest
    assert (change["from_digest"], change["reason"]) == (job.behaviour_digest, "the new schema reads the old one")
    assert "behaviour_changes.json" in content["files"]


def test_the_successor_of_a_migrated_job_publishes_how_its_behaviour_came_about(
    runtime: Runtime, other_schema: Callable[..., None]
) -> None:
    before, after = release(runtime), release(runtime, NEW)
    job = opened(before, 2)
    some_rules(before, job, 1)
    other_schema(reads=frozenset({job.behaviour["output_schema"]}))
    finish(after, job)
    decide.decide(after, job, Choice.MIGRATE, actor="ann", reason="the new schema reads the old one")
    runtime.ledger.cancellations.cancel(job.job_id, actor="ann", reason="r")

    successor = finish(after, fork_job(after, job, "next", deadline_ms=None, actor="bob").job)

    content = json.loads(runtime.ledger.reads.action_set(successor.job_id, str(successor.action_set_digest)))
    (change,) = status_report(after, successor)["behaviour_changes"]
    assert (change["from_digest"], change["to_digest"]) == (job.behaviour_digest, successor.behaviour_digest)
    assert (change["actor"], change["reason"]) == ("ann", "the new schema reads the old one")
    assert "behaviour_changes.json" in content["files"]


def test_a_job_is_not_migrated_where_the_release_cannot_read_what_is_accepted(
    local_runtime: Runtime, other_schema: Callable[..., None]
) -> None:
    job = opened(local_runtime, 2)
    some_rules(local_runtime, job, 1)
    other_schema()
    finish(local_runtime, job)

    with pytest.raises(StateError, match="cannot read what is accepted of generate_rules") as refused:
        decide.decide(local_runtime, job, Choice.MIGRATE, actor="ann", reason=None)

    assert refused.value.code == "migration_refused"
    assert state_of(local_runtime, job) is JobState.NEEDS_DECISION


def test_a_stopped_job_ends_and_says_why(local_runtime: Runtime, other_schema: Callable[..., None]) -> None:
    job = opened(local_runtime, 1)
    other_schema()
    finish(local_runtime, job)

    decided = decide.decide(local_runtime, job, Choice.STOP, actor="ann", reason=None)

    assert decided["state"] == "cancelled"
    assert "stopped: it froze the output schema" in decided["reason"]


def test_a_pattern_version_that_is_gone_needs_a_decision_and_its_reason_names_both(local_runtime: Runtime) -> None:
    job = opened(local_runtime, 1)

    class Other(PatternProvider):
        @property
        def identity(self) -> ProviderIdentity:
            return replace(super().identity, model_id="rulegen-pattern/9")

    class Played(Runtime):
        def provider(
            self, name: str, prompts: Mapping[str, Prompt] | None = None, frozen: Mapping[str, Any] | None = None
        ) -> Provider:
            return Other()

    stopped = finish(Played(**vars(local_runtime)), job)

    (needed,) = decisions_of_job(local_runtime.ledger.database, job.job_id)
    assert stopped.state is JobState.NEEDS_DECISION
    assert (needed.incompatibility.part, needed.incompatibility.now) == (Part.MODEL_ID, "rulegen-pattern/9")
    assert attempts(local_runtime, job) == 0


def test_an_unknown_provider_is_found_out_as_soon_as_the_job_is_looked_at(local_runtime: Runtime) -> None:
    job = unparsed(_of_another_name(local_runtime))

    prepared = prepare(local_runtime, job.job_id, Stage.PARSE)

    assert isinstance(prepared, NotReady)
    assert prepared.code == "needs_decision"
    assert "it froze the provider gone" in prepared.reason
    assert local_runtime.ledger.reads.items(job.job_id, Stage.PARSE)[0].attempts == 0


def _of_another_name(runtime: Runtime) -> Runtime:
    """Return a release whose pattern extractor has a name that no other release knows."""

    class Named(PatternProvider):
        @property
        def identity(self) -> ProviderIdentity:
            return replace(super().identity, name="gone")

    class Played(Runtime):
        def provider(
            self, name: str, prompts: Mapping[str, Prompt] | None = None, frozen: Mapping[str, Any] | None = None
        ) -> Provider:
            return Named()

    return Played(**vars(runtime))


@pytest.mark.parametrize(
    ("stage", "part"),
    [("RETRIEVE", "RETRIEVAL_INDEX"), ("RETRIEVE", "OUTPUT_SCHEMA_VERSION"), ("VALIDATE", "PIPELINE_REVISION")],
)
def test_each_stage_is_checked_before_its_claim(
    local_runtime: Runtime, monkeypatch: pytest.MonkeyPatch, stage: str, part: str
) -> None:
    if stage == "VALIDATE":
        job = generated(local_runtime, opened(local_runtime, 1))
    else:
        job = submit(local_runtime, policy(1))
        run_stage(local_runtime, job, Stage.PARSE)
    monkeypatch.setattr(f"rulegen_dagster.workflow.behaviours.{part}", "another/9")

    prepared = prepare(local_runtime, job.job_id, Stage[stage])

    assert isinstance(prepared, NotReady)
    assert prepared.code == "needs_decision"
    assert local_runtime.ledger.reads.items(job.job_id, Stage[stage])[0].attempts == 0


def test_a_job_past_generation_does_not_need_its_provider_any_more(
    local_runtime: Runtime, other_schema: Callable[..., None]
) -> None:
    job = generated(local_runtime, opened(local_runtime, 1))

    # Nor the very schema, as long as what is accepted can be read.
    other_schema(reads=frozenset({job.behaviour["output_schema"]}))

    class Without(Runtime):
        def has_provider(self, name: str) -> bool:
            return False

    assert finish(Without(**vars(local_runtime)), job).state is JobState.AWAITING_CONFIRMATION


def test_a_job_is_neither_confirmed_nor_published_by_a_release_that_cannot_read_it(
    local_runtime: Runtime, other_schema: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = finish(local_runtime, opened(local_runtime, 1))
    digest = str(job.action_set_digest)
    other_schema()
    with pytest.raises(StateError, match="cannot be confirmed here"):
        decide.confirm(local_runtime, job, digest, actor="ann")
    monkeypatch.undo()
    decide.decide(local_runtime, job, Choice.RETAIN, actor="ann", reason=None)
    confirmed = decide.confirm(local_runtime, job, digest, actor="ann")

    other_schema()
    planned = plan_publications(local_runtime)
    published = publish(local_runtime, job)
    monkeypatch.undo()
    (launch,) = plan_publications(local_runtime)

    assert confirmed
    assert planned == []
    assert isinstance(published, NothingToPublish)
    assert published.code == "retained"
    assert launch.job_key == job.partition_key


def test_keys_of_a_job_that_needs_a_decision_fail_with_its_reason_and_others_go_on(
    local_runtime: Runtime, other_schema: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    old = opened(local_runtime, 1, key="old")
    other_schema()
    new = opened(local_runtime, 1, key="new")
    keys = [key for job in (old, new) for key in local_runtime.ledger.reads.rule_partition_keys(job.job_id)]

    outcomes = {
        outcome.job: outcome
        for outcome in drain_keys(local_runtime, keys, RULES, accept=offer_directly, redrive_reason="asked for")
    }

    assert outcomes["default/new"].state is KeyState.ACCEPTED
    assert outcomes["default/old"].state is KeyState.BLOCKED
    assert "needs a decision" in str(outcomes["default/old"].reason)
    assert attempts(local_runtime, old) == 0


def test_a_job_that_another_release_works_on_is_waited_for(
    local_runtime: Runtime, other_schema: Callable[..., None], clock: ManualClock
) -> None:
    job = opened(local_runtime, 2)
    with local_runtime.ledger.turn(replace(local_runtime.claimant, worker="release 1")) as turn:
        turn.claim(Scope(stages=RULES, job_ids=(job.job_id,)), ["token"])
    other_schema()
    waits: list[str] = []

    def sleep(_seconds: float) -> None:
        clock.now_ms += 500

    keys = local_runtime.ledger.reads.rule_partition_keys(job.job_id)
    left = list(drain_keys(local_runtime, keys, RULES, accept=offer_directly, redrive_reason=None))
    stopped = drive(
        local_runtime, job, observe=lambda _: None, on_wait=lambda reason: waits.append(reason.code), sleep=sleep
    )

    assert {outcome.state for outcome in left} == {KeyState.LEASED}
    assert set(waits) == {"other_release"}
    assert stopped.state is JobState.NEEDS_DECISION
    assert attempts(local_runtime, job) == 1


def test_a_reported_model_that_changes_is_recorded_and_the_job_goes_on(local_runtime: Runtime) -> None:
    played = release(local_runtime, reports=lambda call: "model-1" if call <= 2 else "model-2")

    finished = generated(played, opened(played, 2))

    assert finished.state is JobState.VALIDATING
    assert status_report(played, finished)["reported_models"] == ["model-1", "model-2"]


def test_a_reported_model_that_changes_stops_a_job_that_asks_for_that(local_runtime: Runtime) -> None:
    played = release(stopping(local_runtime), reports=lambda call: "model-1" if call <= 2 else "model-2")
    job = opened(played, 4)

    stopped = finish(played, job)
    made = len(played.sent)
    again = finish(played, job)
    reason = reason_of(played, stopped).text
    decided = decide.decide(played, job, Choice.RETAIN, actor="ann", reason="the new one will do")
    finished = generated(played, job)

    assert stopped.state is again.state is JobState.NEEDS_DECISION
    assert "first reported the model model-1, and now reports model-2" in reason
    assert decided["resumed"]
    # The third answer stopped it, and the fourth call was in flight by then.
    assert made == 4
    assert finished.state is JobState.VALIDATING
    assert len(played.sent) == 8


def test_a_change_of_the_model_is_not_lost_where_the_process_dies_before_it_was_told(
    local_runtime: Runtime, clock: ManualClock
) -> None:
    played = release(stopping(local_runtime), reports=lambda call: f"model-{call}")
    job = opened(played, 3)
    some_rules(played, job, 1)
    clock.now_ms += 1
    # The next worker is a process that never heard of the first model, and dies before it looks into the ledger.
    deaf = release(stopping(local_runtime), reports=lambda call: "other")
    _deafly(deaf, job)

    stopped = finish(played, job)

    assert reported_models(local_runtime.ledger.database, job.job_id) == ("model-1", "other")
    assert stopped.state is JobState.NEEDS_DECISION
    assert local_runtime.ledger.reads.stage_counts(job.job_id)[Stage.GENERATE_RULES][WorkState.SUCCEEDED] == 2


def _deafly(runtime: Runtime, job: JobRecord) -> None:
    """Get one rule accepted by an engine that nobody watches."""
    keys = [item.key for item in runtime.ledger.reads.items(job.job_id, Stage.GENERATE_RULES)][1:2]
    engine = Engine(runtime, Generation(runtime).attempt, slots=1, observe=lambda _: None)
    asyncio.run(engine.drain(Scope(stages=RULES, items=tuple(keys))))


def test_nothing_is_to_be_migrated_where_only_the_reported_model_has_changed(local_runtime: Runtime) -> None:
    played = release(stopping(local_runtime), reports=lambda call: f"model-{min(call, 2)}")
    job = opened(played, 3)
    finish(played, job)

    with pytest.raises(StateError) as refused:
        decide.decide(played, job, Choice.MIGRATE, actor="ann", reason=None)

    assert refused.value.code == "nothing_to_migrate"


def test_each_commit_of_a_decision_has_its_two_sides(
    local_runtime: Runtime, other_schema: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = opened(local_runtime, 1)
    counts = failpoints.record()
    try:
        other_schema()
        finish(local_runtime, job)
        decide.decide(local_runtime, job, Choice.RETAIN, actor="ann", reason=None)
        monkeypatch.undo()
        resume_retained(local_runtime)
    finally:
        failpoints.disarm()

    reached = {point for point in counts if point.startswith(("decision", "resumption"))}
    assert reached == {
        Failpoint.DECISION_NEEDED_BEFORE_COMMIT,
        Failpoint.DECISION_NEEDED_AFTER_COMMIT,
        Failpoint.DECISION_BEFORE_COMMIT,
        Failpoint.DECISION_AFTER_COMMIT,
        Failpoint.RESUMPTION_BEFORE_COMMIT,
        Failpoint.RESUMPTION_AFTER_COMMIT,
    }
    assert {counts[point] for point in reached} == {1}


def test_behaviours_are_listed_with_their_jobs_and_whether_this_release_honours_them(
    local_runtime: Runtime, other_schema: Callable[..., None], clock: ManualClock
) -> None:
    old = opened(local_runtime, 1, key="old")
    clock.now_ms += 1
    other_schema()
    new = opened(local_runtime, 1, key="new")

    report = behaviours_report(local_runtime)

    one, other = report["behaviours"]
    assert (one["digest"], one["jobs"], one["unfinished_jobs"]) == (old.behaviour_digest, 1, 1)
    assert (one["honoured"], one["is_current"]) == (False, False)
    assert "it froze the output schema" in one["why_not"]
    assert (other["digest"], other["honoured"], other["is_current"]) == (new.behaviour_digest, True, True)
    assert report["current"] == freeze(local_runtime).behaviour.digest


def test_two_behaviours_are_compared_by_job_digest_and_name(local_runtime: Runtime) -> None:
    before, after = release(local_runtime), release(local_runtime, NEW)
    job = unparsed(before)

    report = difference_report(after, "policy", "current", tenant="default")
    same = difference_report(after, job.behaviour_digest[:8], "default/policy", tenant="acme")

    assert [change["field"] for change in report["changed"]] == ["prompt_versions.rules"]
    (prompt,) = report["prompts"]
    assert prompt["diff"].splitlines() == [
        "--- rules/1",
        "+++ rules/2",
        "@@ -1 +1 @@",
        "-state the rules, as release 1 says",
        "+state the rules, as release 2 says",
    ]
    assert (same["changed"], same["prompts"]) == ([], [])
    for name in ("nothing", "abc", "x/../y"):
        with pytest.raises(InputError, match="there is no behaviour and no job"):
            difference_report(after, name, "current", tenant="default")
