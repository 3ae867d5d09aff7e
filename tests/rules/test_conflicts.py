"""Conflicts between rules: each kind with a witness that can be checked by asking the rules themselves."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rulegen_dagster.domain.rule import Decision, Rule
from rulegen_dagster.domain.vocabulary import FactValue, Vocabulary
from rulegen_dagster.rules.conflicts import Finding, FindingKind, find_conflicts
from rulegen_dagster.rules.engine import CompiledRule, Outcome, compile_rule
from rulegen_dagster.rules.fact_grid import fact_grid
from rulegen_dagster.rules.facts import complete_facts
from rulegen_dagster.rules.formula import formula_of

SOURCE = {"clause_ordinal": 0, "quote": "x", "start": 0, "end": 1}


def compiled(vocabulary: Vocabulary, rule_id: str, decision: str, applies_when: str, **changes: Any) -> CompiledRule:
    amounts = {
        name: {"type": "money", "currency": "EUR", "minor": minor, "quote": "x"}
        for name, minor in changes.pop("amounts", {}).items()
    }
    fields = {
        "id": rule_id,
        "source": SOURCE,
        "modality": "must",
        "subject": "meals",
        "decision": decision,
        "applies_when": applies_when,
        "params": amounts,
    }
    return compile_rule(Rule.model_validate(fields | changes), vocabulary)


def only(vocabulary: Vocabulary, *rules: CompiledRule) -> Finding:
    report = find_conflicts(rules, vocabulary)
    assert len(report.findings) == 1, [finding.message for finding in report.findings]
    finding = report.findings[0]
    asked = {rule.rule.id: rule for rule in rules}
    if finding.outcomes:
        facts = complete_facts(vocabulary, finding.witness)
        assert finding.outcomes == tuple(asked[rule_id].decide(facts) for rule_id in finding.rule_ids)
    return finding


def test_allow_and_deny_of_one_priority_contradict_each_other(vocabulary: Vocabulary) -> None:
    allow = compiled(vocabulary, "rule-01", "allow", "expense.amount_minor <= p.limit", amounts={"limit": 5000})
    deny = compiled(vocabulary, "rule-02", "deny", "!expense.has_receipt")

    finding = only(vocabulary, allow, deny)

    assert finding.kind is FindingKind.ALLOW_AND_DENY
    assert finding.kind.is_conflict
    assert finding.witness["expense.has_receipt"] is False


def test_a_priority_settles_what_would_be_a_contradiction(vocabulary: Vocabulary) -> None:
    allow = compiled(vocabulary, "rule-01", "allow", "expense.has_receipt", priority=60)
    deny = compiled(vocabulary, "rule-02", "deny", "expense.preapproved")

    assert find_conflicts([allow, deny], vocabulary).findings == ()


def test_two_caps_on_one_subject_contradict_each_other(vocabulary: Vocabulary) -> None:
    first = compiled(
        vocabulary, "rule-01", "reimburse_up_to", "expense.preapproved", cap="p.cap", amounts={"cap": 7500}
    )
    second = compiled(
        vocabulary, "rule-02", "reimburse_up_to", "expense.has_receipt", cap="p.cap", amounts={"cap": 6000}
    )

    finding = only(vocabulary, first, second)

    assert finding.kind is FindingKind.TWO_CAPS
    assert finding.witness == {"expense.preapproved": True, "expense.has_receipt": True}
    assert [outcome.cap_minor for outcome in finding.outcomes] == [7500, 6000]


def test_two_caps_that_never_hold_together_are_no_conflict(vocabulary: Vocabulary) -> None:
    first = compiled(
        vocabulary, "rule-01", "reimburse_up_to", "expense.preapproved", cap="p.cap", amounts={"cap": 7500}
    )
    second = compiled(
        vocabulary, "rule-02", "reimburse_up_to", "!expense.preapproved", cap="p.cap", amounts={"cap": 6000}
    )

    assert find_conflicts([first, second], vocabulary).findings == ()


def test_rules_of_different_subjects_or_different_times_are_not_compared(vocabulary: Vocabulary) -> None:
    allow = compiled(vocabulary, "rule-01", "allow", "expense.has_receipt", effective_to="2026-06-30")
    deny = compiled(vocabulary, "rule-02", "deny", "expense.has_receipt", subject="lodging")
    later = compiled(vocabulary, "rule-03", "deny", "expense.has_receipt", effective_from="2026-07-01")

    report = find_conflicts([allow, deny, later], vocabulary)

    assert (report.findings, report.pairs) == ((), 0)


def test_requirements_accumulate_without_a_conflict(vocabulary: Vocabulary) -> None:
    receipt = compiled(vocabulary, "rule-01", "require_receipt", "trip.km > 10")
    approval = compiled(vocabulary, "rule-02", "require_approval", "trip.km > 20", approver="manager")

    assert find_conflicts([receipt, approval], vocabulary).findings == ()


def test_a_value_at_which_neither_neighbour_holds_is_a_gap(vocabulary: Vocabulary) -> None:
    under = compiled(vocabulary, "rule-01", "allow", "expense.amount_minor < p.limit", amounts={"limit": 25000})
    above = compiled(
        vocabulary, "rule-02", "require_approval", "expense.amount_minor > p.limit", amounts={"limit": 25000}
    )

    finding = only(vocabulary, under, above)

    assert finding.kind is FindingKind.GAP_AT_THRESHOLD
    assert not finding.kind.is_conflict
    assert finding.witness == {"expense.amount_minor": 25000}
    assert finding.outcomes == (Outcome(), Outcome())


def test_neighbours_that_meet_leave_no_gap(vocabulary: Vocabulary) -> None:
    up_to = compiled(vocabulary, "rule-01", "allow", "expense.amount_minor <= p.limit", amounts={"limit": 25000})
    above = compiled(
        vocabulary, "rule-02", "require_approval", "expense.amount_minor > p.limit", amounts={"limit": 25000}
    )

    assert find_conflicts([up_to, above], vocabulary).findings == ()


@pytest.mark.parametrize(
    "condition", ["trip.km > 5 && trip.km < 5", "expense.preapproved && !expense.preapproved", "trip.nights > 400"]
)
def test_a_rule_that_cannot_hold_is_named(condition: str, vocabulary: Vocabulary) -> None:
    finding = only(vocabulary, compiled(vocabulary, "rule-01", "deny", condition))

    assert finding.kind is FindingKind.NEVER_HOLDS
    assert finding.witness == {}


def test_a_rule_that_a_denial_always_covers_never_matters(vocabulary: Vocabulary) -> None:
    deny = compiled(vocabulary, "rule-01", "deny", "trip.km > 5")
    approval = compiled(vocabulary, "rule-02", "require_approval", "trip.km > 10")

    finding = only(vocabulary, deny, approval)

    assert finding.kind is FindingKind.NEVER_DECISIVE
    assert "rule-02 never matters" in finding.message


def test_two_rules_that_say_the_same_in_other_words_are_duplicates(vocabulary: Vocabulary) -> None:
    first = compiled(vocabulary, "rule-01", "deny", "trip.km > 10")
    second = compiled(vocabulary, "rule-02", "deny", "!(trip.km <= 10)")

    finding = only(vocabulary, first, second)

    assert finding.kind is FindingKind.DUPLICATE


def test_a_threshold_that_depends_on_arithmetic_is_found_exactly(vocabulary: Vocabulary) -> None:
    formula = formula_of(
        compiled(vocabulary, "rule-01", "deny", "expense.amount_minor * 3 > p.limit * 2", amounts={"limit": 1000})
    )

    grid = fact_grid([formula], vocabulary)

    assert {666, 667} <= set(grid.values["expense.amount_minor"])


def test_a_grid_that_is_too_large_is_thinned_and_says_so(vocabulary: Vocabulary) -> None:
    rule = compiled(vocabulary, "rule-01", "deny", "trip.km > 5 && trip.nights > 3 && expense.preapproved")

    grid = fact_grid([formula_of(rule)], vocabulary, max_points=10)

    assert not grid.complete
    assert len(list(grid.points())) <= 10
    assert {0, 100_000} <= set(grid.values["trip.km"])


CONDITIONS = st.sampled_from(
    [
        "trip.km > 10",
        "trip.km <= 10",
        "trip.km * 2 >= 41",
        "trip.nights in [2, 3]",
        'expense.category == "meals"',
        'expense.category != "lodging"',
        "expense.preapproved",
        "!expense.has_receipt",
        "trip.km > 10 && trip.nights < 4",
        'expense.category in ["meals", "other"] || trip.km == 7',
    ]
)
FACTS = st.fixed_dictionaries(
    {
        "trip.km": st.sampled_from([0, 6, 7, 8, 10, 11, 20, 21, 99]),
        "trip.nights": st.integers(0, 5),
        "expense.category": st.sampled_from(["meals", "lodging", "other"]),
        "expense.preapproved": st.booleans(),
        "expense.has_receipt": st.booleans(),
    }
)


@settings(max_examples=150)
@given(allowed=CONDITIONS, denied=CONDITIONS, asked=st.lists(FACTS, min_size=20, max_size=20))
def test_no_contradiction_that_any_facts_show_is_missed_by_the_grid(
    allowed: str, denied: str, asked: list[dict[str, FactValue]], vocabulary: Vocabulary
) -> None:
    allow, deny = compiled(vocabulary, "rule-01", "allow", allowed), compiled(vocabulary, "rule-02", "deny", denied)
    shown = any(
        allow.decide(facts).decision is Decision.ALLOW and deny.decide(facts).decision is Decision.DENY
        for facts in (complete_facts(vocabulary, named) for named in asked)
    )

    kinds = {finding.kind for finding in find_conflicts([allow, deny], vocabulary).findings}

    if shown:
        assert FindingKind.ALLOW_AND_DENY in kinds
