"""One attempt at one item: what each behaviour of a provider becomes in the ledger."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from rulegen_dagster.domain.errors import ProviderConfigError, ProviderPermanentError
from rulegen_dagster.domain.rule import RuleOutput, SuiteOutput
from rulegen_dagster.domain.states import AttemptOutcome, JobState, Stage, WorkState
from rulegen_dagster.ledger.attempts import AttemptRecord
from rulegen_dagster.ledger.claims import Scope
from rulegen_dagster.ledger.database import ManualClock
from rulegen_dagster.ledger.reads import ItemRecord, JobRecord
from rulegen_dagster.ledger.schema import attempt, transition, work_item
from rulegen_dagster.providers.port import ProviderIdentity, ProviderReply, ProviderRequest
from rulegen_dagster.workflow.drive import generate
from rulegen_dagster.workflow.engine import offer_directly
from rulegen_dagster.workflow.generate import NO_RULE_NO_TESTS
from rulegen_dagster.workflow.partitions import drain_keys
from rulegen_dagster.workflow.runtime import Runtime
from tests.workflow.conftest import (
    BOTH,
    FIRST_DELAY_MS,
    RULES,
    Recorder,
    finish,
    journal,
    open_rules,
    playing,
    policy,
    scripted,
)

FAULTS: dict[str, tuple[Any, AttemptOutcome, str, WorkState]] = {
    "timeout": ("timeout", AttemptOutcome.AMBIGUOUS, "provider_outcome_unknown", WorkState.WAITING),
    "ambiguous": (
        {"do": "error", "kind": "ambiguous"},
        AttemptOutcome.AMBIGUOUS,
        "provider_outcome_unknown",
        WorkState.WAITING,
    ),
    "retryable": (
        {"do": "error", "kind": "retryable"},
        AttemptOutcome.RETRYABLE,
        "provider_unavailable",
        WorkState.WAITING,
    ),
    "rate limited": (
        {"do": "error", "kind": "rate_limited", "retry_after_ms": 7_000},
        AttemptOutcome.RATE_LIMITED,
        "provider_rate_limited",
        WorkState.WAITING,
    ),
    "permanent": ({"do": "error"}, AttemptOutcome.PERMANENT, "provider_rejected", WorkState.FAILED),
    "malformed": ("malformed", AttemptOutcome.INVALID_OUTPUT, "invalid_json", WorkState.WAITING),
    "no object": ({"do": "ok", "draft": "[]"}, AttemptOutcome.INVALID_OUTPUT, "invalid_schema", WorkState.WAITING),
    "a NUL": (
        {"do": "ok", "draft": '{"no_rule": {"reason": "x", "detail": "\\u0000"}}'},
        AttemptOutcome.INVALID_OUTPUT,
        "nul_character",
        WorkState.WAITING,
    ),
    "half a character": (
        {"do": "ok", "draft": '{"no_rule": {"reason": "x", "detail": "\\ud800"}}'},
        AttemptOutcome.INVALID_OUTPUT,
        "invalid_json",
        WorkState.WAITING,
    ),
}


class Raising:
    """A provider whose client raises what it likes."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    @property
    def identity(self) -> ProviderIdentity:
        return ProviderIdentity(name="raising", model_id="raising/1", is_language_model=True)

    async def call(self, request: ProviderRequest) -> ProviderReply:
        raise self._error


class Sleeping(Raising):
    """A provider that never answers."""

    async def call(self, request: ProviderRequest) -> ProviderReply:
        await asyncio.Event().wait()
        raise self._error


def _generate(runtime: Runtime, job: JobRecord, stages: tuple[Stage, ...] = RULES) -> None:
    generate(runtime, Scope(stages=stages, job_ids=(job.job_id,)), observe=lambda _outcome: None)


def _item(runtime: Runtime, job: JobRecord, number: int = 0, stage: Stage = Stage.GENERATE_RULES) -> ItemRecord:
    return runtime.ledger.reads.items(job.job_id, stage)[number]


def _attempts(runtime: Runtime, job: JobRecord, item_key: str = "rule-01") -> list[AttemptRecord]:
    return [
        made
        for made in runtime.ledger.reads.attempts(job.job_id)
        if made.key.item_key == item_key and made.key.stage is Stage.GENERATE_RULES
    ]


def _everything_booked(runtime: Runtime) -> str:
    with runtime.ledger.database.read() as connection:
        return "\n".join(
            repr(tuple(row))
            for table in (attempt, work_item, transition)
            for row in connection.execute(sa.select(table))
        )


def _scripted_as_it_is(runtime: Runtime) -> Runtime:
    changed = {"provider": "rulegen-scripted", "script": runtime.settings.home_path / "script.yaml"}
    return Runtime(**{**vars(runtime), "settings": runtime.settings.model_copy(update=changed)})


@pytest.mark.parametrize(("step", "outcome", "code", "state"), FAULTS.values(), ids=FAULTS.keys())
def test_each_fault_of_a_provider_has_its_own_outcome(
    runtime: Runtime, step: Any, outcome: AttemptOutcome, code: str, state: WorkState
) -> None:
    faulty = scripted(runtime, {"rule-01": [step]})
    job = open_rules(faulty, policy(2))

    _generate(faulty, job)

    first, second = faulty.ledger.reads.items(job.job_id, Stage.GENERATE_RULES)
    (made,) = _attempts(faulty, job)
    assert (made.outcome, made.error_code, made.provider_called) == (outcome, code, True)
    assert (first.state, first.error_code) == (state, code)
    assert second.state is WorkState.SUCCEEDED


def test_a_providers_own_wait_is_respected(local_runtime: Runtime, clock: ManualClock) -> None:
    limited = scripted(local_runtime, {"*": [{"do": "error", "kind": "rate_limited", "retry_after_ms": 7_000}, "ok"]})
    job = open_rules(limited, policy(1))
    _generate(limited, job)

    clock.now_ms += 6_999
    _generate(limited, job)
    early = journal(limited)
    clock.now_ms += 1
    _generate(limited, job)

    assert early == ["generate_rules/rule-01/1"]
    assert journal(limited) == [*early, "generate_rules/rule-01/2"]
    assert _item(limited, job).state is WorkState.SUCCEEDED


def test_a_fault_that_passes_costs_one_more_attempt(local_runtime: Runtime, clock: ManualClock) -> None:
    faulty = scripted(local_runtime, {"rule-02": ["malformed", "timeout", "ok"]})
    job = open_rules(faulty, policy(3))

    for _ in range(3):
        _generate(faulty, job)
        clock.now_ms += 2 * FIRST_DELAY_MS

    assert [made.outcome for made in _attempts(faulty, job, "rule-02")] == [
        AttemptOutcome.INVALID_OUTPUT,
        AttemptOutcome.AMBIGUOUS,
        AttemptOutcome.ACCEPTED,
    ]
    assert len(journal(faulty)) == 5


def test_a_call_without_an_answer_is_given_up_and_may_be_billed(local_runtime: Runtime) -> None:
    hurried = Runtime(
        **{**vars(local_runtime), "settings": local_runtime.settings.model_copy(update={"call_timeout_ms": 100})}
    )
    runtime = playing(hurried, Sleeping(RuntimeError()))
    job = open_rules(runtime, policy(1))

    _generate(runtime, job)

    (made,) = _attempts(runtime, job)
    assert (made.outcome, made.error_code, made.provider_called) == (
        AttemptOutcome.AMBIGUOUS,
        "provider_timeout",
        True,
    )


@pytest.mark.parametrize("kind", [RuntimeError, ValueError, OSError, KeyError, UnicodeError])
def test_what_a_clients_exception_says_never_reaches_the_ledger(local_runtime: Runtime, kind: type[Exception]) -> None:
    text = "Meals are limited to $50 per day."
    told = f"400 Bad Request: your prompt was: {text} SECRET-KEY"
    runtime = playing(local_runtime, Raising(kind(told)))
    job = open_rules(runtime, text.encode())

    _generate(runtime, job)

    (made,) = _attempts(runtime, job)
    booked = _everything_booked(runtime)
    assert (made.outcome, made.error_code) == (AttemptOutcome.AMBIGUOUS, "provider_unknown_error")
    assert text not in booked
    assert "SECRET-KEY" not in booked
    assert kind.__name__ in str(_item(runtime, job).error_message)


def test_what_a_refused_draft_says_never_reaches_the_ledger(local_runtime: Runtime) -> None:
    draft = {"rules": [{"quote": "CANARY sentence", "modality": "CANARY", "subject": "meals", "decision": "deny"}]}
    runtime = scripted(local_runtime, {"*": [{"do": "ok", "draft": draft}]})
    job = open_rules(runtime, policy(1))

    _generate(runtime, job)

    assert _attempts(runtime, job)[0].outcome is AttemptOutcome.INVALID_OUTPUT
    assert "CANARY" not in _everything_booked(runtime)


def test_a_message_of_a_provider_is_stored_as_one_printable_line(runtime: Runtime) -> None:
    runtime = playing(runtime, Raising(ProviderPermanentError("no\x00\x1b[31m\nred " + "x" * 1_000)))
    job = open_rules(runtime, policy(1))

    _generate(runtime, job)

    message = str(_item(runtime, job).error_message)
    assert message.startswith("no\\x00\\x1b[31m red x")
    assert message.isprintable()
    assert len(message) == 300


class AnotherModel(Recorder):
    """The same provider under another model id, as after a deployment."""

    @property
    def identity(self) -> ProviderIdentity:
        return replace(super().identity, model_id="another/2")


def test_a_job_is_not_continued_with_another_model_than_it_froze(local_runtime: Runtime) -> None:
    job = open_rules(playing(local_runtime, Recorder()), policy(1))
    other = playing(local_runtime, AnotherModel())

    _generate(other, job)

    assert _attempts(other, job) == []
    assert other.ledger.reads.job_by_id(job.job_id).state is JobState.NEEDS_DECISION


def test_an_accepted_rule_says_who_made_it(local_runtime: Runtime) -> None:
    runtime = playing(local_runtime, Recorder())
    job = open_rules(runtime, policy(1))

    _generate(runtime, job)

    (made,) = _attempts(runtime, job)
    assert made.provider == "rulegen-pattern"
    assert str(made.model_id).startswith("rulegen-pattern/2+sha256:")
    assert (made.tokens_in, made.cost_micros) == (None, None)


def test_a_clause_without_a_rule_costs_no_call_for_its_tests(local_runtime: Runtime) -> None:
    provider = Recorder()
    runtime = playing(local_runtime, provider)
    job = open_rules(runtime, b"Meals are limited to $50 per day.\n\nThe committee must act with due care.\n")

    _generate(runtime, job, BOTH)

    abstained = RuleOutput.model_validate_json(str(_item(runtime, job, 1).output))
    suite = SuiteOutput.model_validate_json(str(_item(runtime, job, 1, Stage.GENERATE_TESTS).output))
    assert abstained.no_rule is not None
    assert suite.no_tests is not None
    assert suite.no_tests.reason == NO_RULE_NO_TESTS
    assert sorted(provider.calls) == [
        "generate_rules/rule-01/1",
        "generate_rules/rule-02/1",
        "generate_tests/rule-01/1",
    ]
    assert runtime.ledger.reads.provider_calls(job.job_id) == 3


def test_the_operation_key_is_the_same_in_every_attempt(local_runtime: Runtime, clock: ManualClock) -> None:
    keys: list[str] = []

    def fail_once(request: ProviderRequest) -> None:
        keys.append(request.operation_key)
        if request.attempt == 1:
            raise RuntimeError

    runtime = playing(local_runtime, Recorder(fail_once))
    job = open_rules(runtime, policy(1))
    _generate(runtime, job)
    clock.now_ms += FIRST_DELAY_MS

    _generate(runtime, job)

    assert keys == ["default/policy/generate_rules/rule-01/v1"] * 2


def test_a_provider_that_cannot_be_opened_stops_the_work_before_any_claim(local_runtime: Runtime) -> None:
    job = open_rules(scripted(local_runtime, {}), policy(1))
    (local_runtime.settings.home_path / "script.yaml").write_text("items: [", encoding="utf-8")
    broken = _scripted_as_it_is(local_runtime)

    with pytest.raises(ProviderConfigError):
        _generate(broken, job)
    with pytest.raises(ProviderConfigError):
        next(
            drain_keys(
                broken,
                broken.ledger.reads.rule_partition_keys(job.job_id),
                RULES,
                accept=offer_directly,
                redrive_reason=None,
            )
        )

    assert _attempts(local_runtime, job) == []
    assert _item(local_runtime, job).state is WorkState.PENDING


def test_the_accepted_outputs_are_the_same_whatever_failed_on_the_way(
    local_runtime: Runtime, clock: ManualClock
) -> None:
    smooth = scripted(local_runtime, {})
    straight = finish(smooth, open_rules(smooth, policy(3), key="straight"))
    faulty = scripted(local_runtime, {"rule-02": ["timeout", "malformed", "ok"]})
    crooked = open_rules(faulty, policy(3), key="crooked")

    for _ in range(3):
        _generate(faulty, crooked)
        clock.now_ms += 2 * FIRST_DELAY_MS

    one, other = (
        [json.loads(str(item.output)) for item in faulty.ledger.reads.items(job.job_id, Stage.GENERATE_RULES)]
        for job in (straight, crooked)
    )
    assert one == other
