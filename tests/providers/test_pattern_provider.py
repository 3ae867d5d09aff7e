"""The pattern provider as a provider: identity, determinism, tests from the clause alone."""

import ast
import asyncio
import inspect
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rulegen_dagster.domain.clause import Clause
from rulegen_dagster.domain.errors import ProviderPermanentError
from rulegen_dagster.domain.rule import Decision, RulesReply, TestCase, TestKind, TestsReply
from rulegen_dagster.domain.states import Stage
from rulegen_dagster.domain.vocabulary import Vocabulary
from rulegen_dagster.providers import pattern_cases
from rulegen_dagster.providers.pattern import PatternProvider
from rulegen_dagster.providers.port import NOT_A_MODEL, ProviderReply, ProviderRequest
from rulegen_dagster.rules.clause_entries import ClauseEntry
from rulegen_dagster.rules.drafts import read_rules_draft, read_tests_draft
from rulegen_dagster.rules.engine import compile_rule
from rulegen_dagster.rules.mutation import mutate
from rulegen_dagster.rules.packs import load_vocabulary
from rulegen_dagster.rules.validation import validate_ruleset
from rulegen_dagster.specs.context import ContextIndex
from rulegen_dagster.specs.document import read_document

VOCABULARY = load_vocabulary("expense")


def _clause(text: str) -> Clause:
    return read_document(text.encode(), "policy.md", max_bytes=10**6).clauses[0]


def _call(text: str, stage: Stage, vocabulary: Vocabulary = VOCABULARY, **changes: Any) -> ProviderReply:
    fields: dict[str, Any] = {
        "stage": stage,
        "job": "job",
        "item_key": "rule-01",
        "attempt": 1,
        "operation_key": "key",
        "timeout_ms": 1000,
        "clause": _clause(text) if text else None,
        "context": (),
        "vocabulary": vocabulary,
    }
    return asyncio.run(PatternProvider().call(ProviderRequest(**{**fields, **changes})))


def _called_in(text: str) -> ProviderReply:
    """Return the reply for the first clause of a text, with the context that a job would give it."""
    parsed = read_document(text.encode(), "policy.md", max_bytes=10**6)
    context = ContextIndex(parsed).context_of(parsed.clauses[0])
    return _call("", Stage.GENERATE_RULES, clause=parsed.clauses[0], context=context)


def _cases(text: str) -> tuple[TestCase, ...]:
    return TestsReply.model_validate_json(_call(text, Stage.GENERATE_TESTS).draft).tests


def test_it_is_labelled_as_no_language_model_and_named_by_its_source() -> None:
    identity = PatternProvider().identity

    assert identity.label == NOT_A_MODEL
    assert identity.model_id.startswith("rulegen-pattern/2+sha256:")
    assert len(identity.model_id.rpartition(":")[2]) == 12


def test_a_reply_has_no_tokens_and_no_cost() -> None:
    reply = _call("Meals are limited to $50 per day.", Stage.GENERATE_RULES)

    assert (reply.tokens_in, reply.tokens_out, reply.cost_micros, reply.request_id) == (None, None, None, None)


@pytest.mark.parametrize(
    "behind",
    [
        "However, meals with clients are limited to $90 per day.",
        "This does not apply to meals with clients, which must be approved.",
        "Except for meals with clients, receipts are required.",
        "Exceptions for meals must be approved.",
    ],
)
def test_a_clause_of_which_the_next_one_takes_something_back_gives_no_rule(behind: str) -> None:
    reply = RulesReply.model_validate_json(_called_in(f"Meals are limited to $50 per day. {behind}").draft)

    assert not reply.rules
    assert reply.no_rule is not None
    assert reply.no_rule.reason == "exception_in_another_clause"


@pytest.mark.parametrize(
    "behind", ["Meals with clients must be approved.", "However, taxis must be approved.", "Receipts are required."]
)
def test_a_next_clause_that_takes_nothing_back_leaves_the_rule(behind: str) -> None:
    reply = RulesReply.model_validate_json(_called_in(f"Meals are limited to $50 per day. {behind}").draft)

    assert len(reply.rules) == 1


def test_a_later_attempt_gets_the_same_draft() -> None:
    text = "Meals are limited to $50 per day."

    first, second = (_call(text, Stage.GENERATE_RULES, attempt=attempt).draft for attempt in (1, 2))

    assert first == second


def test_a_stage_without_drafts_is_refused_for_good() -> None:
    with pytest.raises(ProviderPermanentError):
        _call("Meals are limited to $50 per day.", Stage.VALIDATE)


def test_tests_for_a_clause_that_gives_no_rule_are_refused_for_good_without_its_text() -> None:
    with pytest.raises(ProviderPermanentError) as caught:
        _call("Please be nice to Zebrafinches.", Stage.GENERATE_TESTS)

    assert "no_pattern" in caught.value.message
    assert "Zebrafinch" not in caught.value.message


def test_a_vocabulary_without_the_fact_gives_an_abstention() -> None:
    text = "Business class flights are not paid unless the flight is longer than 8 hours."
    facts = {name: fact for name, fact in VOCABULARY.facts.items() if name != "flight.duration_hours"}
    smaller = VOCABULARY.model_copy(update={"facts": facts})

    reply = RulesReply.model_validate_json(_call(text, Stage.GENERATE_RULES, smaller).draft)

    assert reply.no_rule is not None
    assert (reply.no_rule.reason, reply.no_rule.detail) == ("fact_not_in_vocabulary", "flight.duration_hours")


def test_a_paper_that_the_vocabulary_does_not_name_is_not_read() -> None:
    facts = {name: fact for name, fact in VOCABULARY.facts.items() if name != "expense.has_receipt"}
    smaller = VOCABULARY.model_copy(update={"facts": facts})

    reply = RulesReply.model_validate_json(
        _call("All expenses over $25 require a receipt.", Stage.GENERATE_RULES, smaller).draft
    )

    assert reply.no_rule is not None
    assert reply.no_rule.reason == "no_pattern"


def test_cases_are_made_without_the_rule_writer() -> None:
    imported = {
        node.module
        for node in ast.walk(ast.parse(inspect.getsource(pattern_cases)))
        if isinstance(node, ast.ImportFrom)
    }

    assert "rulegen_dagster.providers.pattern_rules" not in imported


@pytest.mark.parametrize(
    ("text", "fact", "expected"),
    [
        (
            "Meals are limited to $50 per day.",
            "expense.day_total_minor",
            {4999: "no_match", 5000: "no_match", 5001: "reimburse_up_to"},
        ),
        (
            "Expenses over $25 require a receipt.",
            "expense.amount_minor",
            {2499: "no_match", 2500: "no_match", 2501: "require_receipt"},
        ),
        (
            "Expenses of $25 or more require a receipt.",
            "expense.amount_minor",
            {2499: "no_match", 2500: "require_receipt", 2501: "require_receipt"},
        ),
        (
            "Claims must be submitted within 60 days of the expense.",
            "claim.days_since_expense",
            {59: "no_match", 60: "no_match", 61: "deny"},
        ),
        (
            "Flights must be booked at least 14 days before departure.",
            "trip.booked_days_ahead",
            {13: "deny", 14: "no_match", 15: "no_match"},
        ),
        ("Training courses need manager approval.", "expense.amount_minor", {0: "no_match", 1: "require_approval"}),
        (
            "Flüge sind mindestens zwei Wochen vor Abflug zu buchen.",
            "trip.booked_days_ahead",
            {13: "deny", 14: "no_match", 15: "no_match"},
        ),
        (
            "Keep meals under $50 per day.",
            "expense.day_total_minor",
            {4999: "no_match", 5000: "reimburse_up_to", 5001: "reimburse_up_to"},
        ),
        (
            "Tips are limited to 20 percent of the bill.",
            "expense.amount_minor",
            {1999: "no_match", 2000: "no_match", 2001: "reimburse_up_to"},
        ),
    ],
)
def test_each_threshold_is_tried_below_at_and_above(text: str, fact: str, expected: dict[int, str]) -> None:
    boundaries = [case for case in _cases(text) if case.kind is TestKind.BOUNDARY and fact in case.facts]

    assert {case.facts[fact]: case.expect for case in boundaries} == expected


def test_a_limit_of_zero_has_no_case_below_it() -> None:
    amounts = [case.facts["expense.day_total_minor"] for case in _cases("Meals are limited to $0 per day.")]

    assert min(int(amount) for amount in amounts) == 0


def test_a_rate_is_tried_at_distances_and_cut_to_whole_minor_units() -> None:
    caps = {
        case.facts["travel.distance_miles"]: case.expect_cap_minor
        for case in _cases("Mileage is reimbursed at $0.655 per mile.")
        if case.expect is Decision.REIMBURSE_UP_TO
    }

    assert caps == {0: 0, 1: 65, 100: 6550}


def test_each_fact_of_the_clause_is_tried_with_another_value() -> None:
    cases = _cases("Gifts over $50 per person are not reimbursable.")

    negatives = [case for case in cases if case.kind is TestKind.NEGATIVE]
    assert negatives
    assert all(case.expect == "no_match" and case.facts["expense.category"] != "gifts" for case in negatives)


def test_an_exception_is_tried_with_and_without_it() -> None:
    cases = _cases("Alcohol is not paid unless approved by a director.")

    tried = {(case.facts["approval.director"], case.expect) for case in cases if "approval.director" in case.facts}
    assert tried == {(True, "no_match"), (False, Decision.DENY)}


_SUBJECTS = st.sampled_from(["Meals", "Hotels", "Client gifts", "Taxis and ride-shares", "All expenses", "Rail travel"])
_CENTS = st.integers(min_value=1, max_value=10**9)
_DEMANDS = st.sampled_from(
    [
        "{subject} over {amount} require a receipt.",
        "{subject} of {amount} or more must be approved by your manager.",
        "{subject} exceeding {amount} per person are not reimbursable.",
        "{subject} may not exceed {amount} per day.",
        "{subject} are limited to {amount} per month unless approved by the CFO.",
        "{subject} should not exceed {amount} per trip.",
        "Keep {subject} under {amount} per day.",
    ]
)
_SENTENCES = (
    ("expense", "Tips are limited to {number} percent of the bill."),
    ("expense", "Tips above {number} % of the bill are not reimbursable."),
    ("expense", "Trinkgelder werden bis zu {number} Prozent der Rechnung erstattet."),
    ("expense", "{number} percent of gym fees are reimbursed."),
    ("expense", "Claims must be submitted within {number} weeks of the expense."),
    ("expense", "Flüge sind mindestens {number} Tage vor Abflug zu buchen."),
    ("expense", "Mahlzeiten dürfen {number} Euro pro Tag nicht überschreiten."),
    ("expense", "Fahrten mit dem privaten Pkw werden mit {number} Cent je Kilometer erstattet."),
    ("expense", "Für Ausgaben ab {number} Euro ist ein Beleg erforderlich."),
    ("expense", "All expenses require a receipt unless the expense is below ${number}."),
    ("leave", "You can use up to {number} days of sick leave per year."),
    ("leave", "Unpaid leave of more than {number} days must be approved by the director."),
    ("leave", "Annual leave should be requested at least {number} days before the start of the leave."),
    ("travel", "The per diem is paid at a flat rate of ${number} per day."),
    ("travel", "Hotels may not exceed ${number} per night."),
)


@given(sentence=st.sampled_from(_SENTENCES), number=st.integers(min_value=1, max_value=100))
def test_every_draft_of_each_kind_passes_validation_whatever_its_number(sentence: tuple[str, str], number: int) -> None:
    pack, template = sentence
    text, vocabulary = template.format(number=number), load_vocabulary(pack)
    clause = _clause(text)

    rules_draft = _call(text, Stage.GENERATE_RULES, vocabulary).draft
    rules = read_rules_draft(rules_draft, clause=clause, item_key="rule-01", vocabulary=vocabulary)
    suite = read_tests_draft(_call(text, Stage.GENERATE_TESTS, vocabulary).draft, vocabulary=vocabulary)
    entry = ClauseEntry(item_key="rule-01", clause=clause, rules=rules, suite=suite)
    report = validate_ruleset([entry], vocabulary)

    assert report.rules == 1, rules.no_rule
    assert report.passed, (text, report.clauses)


@given(subject=_SUBJECTS, cents=_CENTS, demand=_DEMANDS, is_grouped=st.booleans())
def test_every_draft_passes_validation_whatever_the_amount(
    subject: str, cents: int, demand: str, is_grouped: bool
) -> None:
    whole = f"{cents // 100:,}" if is_grouped else str(cents // 100)
    text = demand.format(subject=subject, amount=f"${whole}.{cents % 100:02}")
    clause = _clause(text)
    rules_draft = _call(text, Stage.GENERATE_RULES).draft
    rules = read_rules_draft(rules_draft, clause=clause, item_key="rule-01", vocabulary=VOCABULARY)
    if rules.no_rule:
        assert subject in ("All expenses", "Taxis and ride-shares")
        return

    suite = read_tests_draft(_call(text, Stage.GENERATE_TESTS).draft, vocabulary=VOCABULARY)
    entry = ClauseEntry(item_key="rule-01", clause=clause, rules=rules, suite=suite)
    report = validate_ruleset([entry], VOCABULARY)

    assert report.passed, (text, report.clauses)


@pytest.mark.parametrize(("pack", "template"), [*_SENTENCES, ("leave", "All leave must be approved by your manager.")])
def test_the_tests_of_each_kind_notice_every_wrong_rule_and_no_rule_fires_on_nothing(pack: str, template: str) -> None:
    text, vocabulary = template.format(number=20), load_vocabulary(pack)
    rules_draft = _call(text, Stage.GENERATE_RULES, vocabulary).draft
    output = read_rules_draft(rules_draft, clause=_clause(text), item_key="rule-01", vocabulary=vocabulary)
    suite = read_tests_draft(_call(text, Stage.GENERATE_TESTS, vocabulary).draft, vocabulary=vocabulary)
    rules = [compile_rule(rule, vocabulary) for rule in output.rules]

    result = mutate(rules, suite.tests, vocabulary)

    assert (result.survivors, result.score) == ((), 1.0)
    assert result.mutants > result.equivalent
    assert [rule.decide(dict(vocabulary.defaults())).decision for rule in rules] == [None]


@given(st.text(max_size=200))
def test_any_text_gets_a_readable_reply(text: str) -> None:
    clause = Clause(
        **{**_clause("Meals must be cheap.").__dict__, "text": text or "x", "end": len(text or "x"), "start": 0}
    )

    reply = RulesReply.model_validate_json(_call("x y", Stage.GENERATE_RULES, clause=clause).draft)

    assert reply.no_rule or reply.rules
