"""Repairs: a refused draft is asked for once more, with codes and places; what is forbidden is never asked again."""

import json
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from rulegen_dagster.domain.refusal import Refusal
from rulegen_dagster.domain.rule import RuleOutput
from rulegen_dagster.domain.states import AttemptOutcome, Stage, WorkState
from rulegen_dagster.domain.work import AttemptKind
from rulegen_dagster.ledger.attempts import AttemptRecord
from rulegen_dagster.ledger.claims import Scope
from rulegen_dagster.ledger.database import ManualClock
from rulegen_dagster.ledger.reads import ItemRecord, JobRecord
from rulegen_dagster.ledger.schema import attempt, transition, work_item
from rulegen_dagster.providers.port import ProviderReply, ProviderRequest
from rulegen_dagster.workflow.drive import generate
from rulegen_dagster.workflow.explain import status_report
from rulegen_dagster.workflow.runtime import Runtime
from rulegen_dagster.workflow.why import why_report
from tests.workflow.conftest import (
    FIRST_DELAY_MS,
    RULES,
    Recorder,
    claim_items,
    open_rules,
    playing,
    policy,
    scripted,
)

MEALS = "Meals are limited to $50 per day."
GOOD = {
    "quote": MEALS,
    "modality": "must",
    "subject": "meals",
    "decision": "flag",
    "applies_when": 'expense.category == "meals"',
}


def draft(**changes: Any) -> dict[str, Any]:
    return {"do": "ok", "draft": {"rules": [GOOD | changes]}}


UNGROUNDED = draft(quote="CANARY is limited.")
REFUSED = (Refusal(code="quote_not_verbatim", path="$.rules[0].quote"),)
FORBIDDEN: dict[str, tuple[dict[str, Any], str]] = {
    "a link": (draft(subject="https://evil.example"), "active_text"),
    "another tenant": ({"do": "ok", "draft": {"rules": [GOOD], "tenant": "globex"}}, "foreign_tenant"),
    "another clause": ({"do": "ok", "draft": {"rules": [GOOD], "clause_id": "rule-09"}}, "foreign_clause"),
    "a should that denies": (draft(modality="should", decision="deny"), "should_denies"),
    "a permission for everything": (draft(decision="allow", applies_when="true"), "allows_everything"),
    "one forbidden among others": (
        {"do": "ok", "draft": {"rules": [GOOD | {"quote": "nowhere"}], "clause_id": "x"}},
        "foreign_clause",
    ),
}


def _generate(runtime: Runtime, job: JobRecord) -> None:
    generate(runtime, Scope(stages=RULES, job_ids=(job.job_id,)), observe=lambda _outcome: None)


def _item(runtime: Runtime, job: JobRecord) -> ItemRecord:
    return runtime.ledger.reads.items(job.job_id, Stage.GENERATE_RULES)[0]


def _attempts(runtime: Runtime, job: JobRecord) -> list[AttemptRecord]:
    return runtime.ledger.reads.attempts(job.job_id, _item(runtime, job).key)


def _told(runtime: Runtime) -> list[str]:
    """Return what the journal says of each call beyond its place and process."""
    lines = (runtime.settings.home_path / "calls.log").read_text(encoding="utf-8").splitlines()
    return [" ".join([line.split()[3], *line.split()[6:]]) for line in lines]


def test_a_refused_draft_is_repaired_once_with_codes_and_places(runtime: Runtime, clock: ManualClock) -> None:
    runtime = scripted(runtime, {"*": [UNGROUNDED | {"repaired": "ok"}]})
    job = open_rules(runtime, policy(1))
    _generate(runtime, job)
    waiting = _item(runtime, job)
    clock.now_ms += FIRST_DELAY_MS

    _generate(runtime, job)

    first, repair = _attempts(runtime, job)
    assert (waiting.state, waiting.repair) == (WorkState.WAITING, REFUSED)
    assert (first.kind, first.outcome, first.refusals) == (AttemptKind.FIRST, AttemptOutcome.INVALID_OUTPUT, REFUSED)
    assert (repair.kind, repair.outcome, repair.refusals) == (AttemptKind.REPAIR, AttemptOutcome.ACCEPTED, ())
    assert first.operation_key == repair.operation_key
    assert _told(runtime) == ["1", "2 repair:quote_not_verbatim@$.rules[0].quote"]
    accepted = _item(runtime, job)
    assert (accepted.state, accepted.repair) == (WorkState.SUCCEEDED, ())


def test_a_second_refused_draft_ends_the_item(runtime: Runtime, clock: ManualClock) -> None:
    runtime = scripted(runtime, {"*": [UNGROUNDED]})
    job = open_rules(runtime, policy(1))
    _generate(runtime, job)
    clock.now_ms += FIRST_DELAY_MS

    _generate(runtime, job)

    item = _item(runtime, job)
    assert (item.state, item.error_code) == (WorkState.FAILED, "quote_not_verbatim")
    assert (item.attempts, item.attempt_limit, item.repair) == (2, 3, ())
    assert [made.kind for made in _attempts(runtime, job)] == [AttemptKind.FIRST, AttemptKind.REPAIR]


@pytest.mark.parametrize(("step", "code"), FORBIDDEN.values(), ids=FORBIDDEN)
def test_what_is_forbidden_is_never_prompted_away(runtime: Runtime, step: dict[str, Any], code: str) -> None:
    runtime = scripted(runtime, {"*": [step | {"repaired": "ok"}]})
    job = open_rules(runtime, policy(1))

    _generate(runtime, job)

    item = _item(runtime, job)
    (made,) = _attempts(runtime, job)
    assert (item.state, item.attempts, item.repair) == (WorkState.FAILED, 1, ())
    assert made.outcome is AttemptOutcome.INVALID_OUTPUT
    assert code in {refusal.code for refusal in made.refusals}


@pytest.mark.parametrize("fault", ["timeout", {"do": "error", "kind": "retryable"}])
def test_a_repair_that_brought_no_draft_is_made_again_within_the_attempts(
    runtime: Runtime, clock: ManualClock, fault: Any
) -> None:
    bad = UNGROUNDED | {"repaired": fault}
    runtime = scripted(runtime, {"*": [bad, bad, UNGROUNDED | {"repaired": "ok"}]})
    job = open_rules(runtime, policy(1))

    for _ in range(3):
        _generate(runtime, job)
        clock.now_ms += 2 * FIRST_DELAY_MS

    kinds = [made.kind for made in _attempts(runtime, job)]
    assert kinds == [AttemptKind.FIRST, AttemptKind.REPAIR, AttemptKind.REPAIR]
    assert _item(runtime, job).state is WorkState.SUCCEEDED


def test_a_repair_lost_with_its_worker_is_told_the_same_again(runtime: Runtime, clock: ManualClock) -> None:
    runtime = scripted(runtime, {"*": [UNGROUNDED | {"repaired": "ok"}]})
    job = open_rules(runtime, policy(1))
    _generate(runtime, job)
    clock.now_ms += FIRST_DELAY_MS
    (lost,) = claim_items(runtime, Stage.GENERATE_RULES, 1)
    clock.now_ms += 1_000

    _generate(runtime, job)

    assert lost.repair == REFUSED
    assert [(made.kind, made.outcome) for made in _attempts(runtime, job)] == [
        (AttemptKind.FIRST, AttemptOutcome.INVALID_OUTPUT),
        (AttemptKind.REPAIR, AttemptOutcome.CRASHED),
        (AttemptKind.REPAIR, AttemptOutcome.ACCEPTED),
    ]
    assert _told(runtime)[-1] == "3 repair:quote_not_verbatim@$.rules[0].quote"


def test_an_item_without_attempts_left_gets_no_repair(local_runtime: Runtime) -> None:
    runtime = scripted(local_runtime, {"*": [UNGROUNDED]})
    job = open_rules(runtime, policy(1))
    with runtime.ledger.database.write() as connection:
        pending = work_item.c.state == WorkState.PENDING.value
        connection.execute(sa.update(work_item).where(pending).values(attempt_limit=1))

    _generate(runtime, job)

    assert _item(runtime, job).state is WorkState.FAILED


def test_a_redrive_begins_afresh_and_may_be_repaired_again(runtime: Runtime, clock: ManualClock) -> None:
    runtime = scripted(runtime, {"*": [UNGROUNDED, UNGROUNDED, UNGROUNDED | {"repaired": "ok"}]})
    job = open_rules(runtime, policy(1))
    for _ in range(2):
        _generate(runtime, job)
        clock.now_ms += FIRST_DELAY_MS
    runtime.ledger.redrives.redrive(job.job_id, Stage.GENERATE_RULES, None, actor="anna", reason="mended")

    _generate(runtime, job)
    clock.now_ms += 8 * FIRST_DELAY_MS
    _generate(runtime, job)

    assert [made.kind for made in _attempts(runtime, job)] == [
        AttemptKind.FIRST,
        AttemptKind.REPAIR,
        AttemptKind.RETRY,
        AttemptKind.REPAIR,
    ]


def test_a_redrive_asks_for_no_repair_of_what_it_left_behind(runtime: Runtime, clock: ManualClock) -> None:
    runtime = scripted(runtime, {"*": [UNGROUNDED | {"repaired": {"do": "error"}}, {"do": "error"}, "ok"]})
    job = open_rules(runtime, policy(1))
    for _ in range(2):
        _generate(runtime, job)
        clock.now_ms += FIRST_DELAY_MS
    runtime.ledger.redrives.redrive(job.job_id, Stage.GENERATE_RULES, None, actor="anna", reason="mended")

    _generate(runtime, job)

    assert [made.kind for made in _attempts(runtime, job)][1:] == [AttemptKind.REPAIR, AttemptKind.RETRY]
    assert _item(runtime, job).state is WorkState.SUCCEEDED


def test_a_retry_after_a_fault_of_the_call_is_no_repair(local_runtime: Runtime, clock: ManualClock) -> None:
    runtime = scripted(local_runtime, {"*": ["timeout", "ok"]})
    job = open_rules(runtime, policy(1))
    _generate(runtime, job)
    clock.now_ms += FIRST_DELAY_MS

    _generate(runtime, job)

    assert [made.kind for made in _attempts(runtime, job)] == [AttemptKind.FIRST, AttemptKind.RETRY]
    assert _told(runtime) == ["1", "2"]


class Stubborn(Recorder):
    """A deterministic provider with a defect: its draft is refused, and would be so again."""

    async def call(self, request: ProviderRequest) -> ProviderReply:
        reply = await super().call(request)
        return replace(reply, draft=json.dumps({"rules": [GOOD | {"quote": "nowhere"}]}))


def test_a_provider_that_always_says_the_same_is_not_asked_again(local_runtime: Runtime) -> None:
    provider = Stubborn()
    runtime = playing(local_runtime, provider)
    job = open_rules(runtime, policy(1))

    _generate(runtime, job)

    assert provider.calls == ["generate_rules/rule-01/1"]
    assert _item(runtime, job).state is WorkState.FAILED


def test_no_word_of_a_refused_draft_is_kept_or_told(local_runtime: Runtime, clock: ManualClock) -> None:
    bad = GOOD | {
        "quote": "CANARY",
        "applies_when": "trip.canary > p.canary_limit",
        "params": {"canary_limit": {"type": "int", "value": 1, "quote": "CANARY", "canary key": 1}},
    }
    runtime = scripted(local_runtime, {"*": [{"do": "ok", "draft": {"rules": [bad], "canary": 1}}]})
    job = open_rules(runtime, policy(1))
    _generate(runtime, job)

    with runtime.ledger.database.read() as connection:
        kept = [
            str(tuple(row))
            for columns in ((attempt.c.refusal, attempt.c.error_code), (work_item.c.repair,), (transition.c.cause,))
            for row in connection.execute(sa.select(*columns))
        ]
    clock.now_ms += FIRST_DELAY_MS
    (claim,) = claim_items(runtime, Stage.GENERATE_RULES, 1)

    assert "canary" not in "\n".join(kept).casefold()
    assert "canary" not in str(claim.repair).casefold()
    assert claim.repair


def test_why_and_status_tell_of_a_repair(local_runtime: Runtime, clock: ManualClock) -> None:
    runtime = scripted(local_runtime, {"*": [UNGROUNDED]})
    job = open_rules(runtime, policy(1))
    _generate(runtime, job)
    due = why_report(runtime, job, "rule-01")
    clock.now_ms += FIRST_DELAY_MS
    _generate(runtime, job)

    failed = why_report(runtime, job, "rule-01")

    told = [{"code": "quote_not_verbatim", "path": "$.rules[0].quote", "kind": "grounding"}]
    assert "is due for a repair" in due["reason"]
    assert due["evidence"]["repair"] == told
    assert [(made["kind"], made["refusals"]) for made in failed["evidence"]["tries"]] == [
        ("first", told),
        ("repair", told),
    ]
    assert status_report(runtime, job)["repairs"] == {"made": 1, "accepted": 0}


def test_proposed_facts_are_kept_with_the_accepted_output(local_runtime: Runtime) -> None:
    proposal = {"name": "trip.by_night", "type": "bool", "description": "by night", "quote": "per day"}
    reply = {"no_rule": {"reason": "fact_not_in_vocabulary"}, "proposed_facts": [proposal]}
    runtime = scripted(local_runtime, {"*": [{"do": "ok", "draft": reply}]})
    job = open_rules(runtime, policy(1))

    _generate(runtime, job)

    output = RuleOutput.model_validate_json(str(_item(runtime, job).output))
    assert [fact.name for fact in output.proposed_facts] == ["trip.by_night"]
