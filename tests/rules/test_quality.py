"""The quality of a ruleset against a policy: what is measured, what is missing, and what a waiver does."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from rulegen_dagster.domain.clause import Clause
from rulegen_dagster.domain.errors import PolicyError
from rulegen_dagster.domain.policy import ValidationPolicy
from rulegen_dagster.domain.rule import NoRuleDraft, RuleOutput, SuiteOutput
from rulegen_dagster.domain.vocabulary import Vocabulary
from rulegen_dagster.rules.clause_entries import ClauseEntry
from rulegen_dagster.rules.drafts import read_rules_draft, read_tests_draft
from rulegen_dagster.rules.policies import load_policy, parse_policy
from rulegen_dagster.rules.quality import RulesetReport, Waiver, assess_ruleset

ClauseBuilder = Callable[..., Clause]
MEALS = "Meals are limited to $75 per day."
DEFAULT = load_policy("default")


def policy(**changes: Any) -> ValidationPolicy:
    return ValidationPolicy.model_validate(DEFAULT.model_dump() | changes)


def codes(report: RulesetReport) -> list[str]:
    return [failure.code for failure in report.missing]


@pytest.fixture
def meals(
    vocabulary: Vocabulary, make_clause: ClauseBuilder, meal_rule: dict[str, Any], meal_tests: list[dict[str, Any]]
) -> ClauseEntry:
    clause = make_clause(MEALS)
    return ClauseEntry(
        item_key="rule-01",
        clause=clause,
        rules=read_rules_draft(
            json.dumps({"rules": [meal_rule]}), clause=clause, item_key="rule-01", vocabulary=vocabulary
        ),
        suite=read_tests_draft(json.dumps({"tests": meal_tests}), vocabulary=vocabulary),
    )


@pytest.fixture
def lower_cap(
    vocabulary: Vocabulary, make_clause: ClauseBuilder, meal_rule: dict[str, Any], meal_tests: list[dict[str, Any]]
) -> ClauseEntry:
    """Return a second clause on the same subject, with a cap of its own."""
    text = MEALS.replace("75", "60")
    clause = make_clause(text, start=400)
    draft = json.loads(json.dumps(meal_rule).replace("$75", "$60").replace("7500", "6000"))
    cases = json.loads(json.dumps(meal_tests).replace("7500", "6000").replace("7499", "5999").replace("7501", "6001"))
    return ClauseEntry(
        item_key="rule-02",
        clause=clause,
        rules=read_rules_draft(
            json.dumps({"rules": [draft]}), clause=clause, item_key="rule-02", vocabulary=vocabulary
        ),
        suite=read_tests_draft(json.dumps({"tests": cases}), vocabulary=vocabulary),
    )


@pytest.fixture
def abstained(make_clause: ClauseBuilder) -> ClauseEntry:
    reason = NoRuleDraft(reason="undefined_term")
    return ClauseEntry(
        item_key="rule-03",
        clause=make_clause("Be reasonable.", start=200),
        rules=RuleOutput(no_rule=reason),
        suite=SuiteOutput(no_tests=reason),
    )


def test_a_ruleset_that_meets_the_policy_passes_with_its_measures(
    meals: ClauseEntry, abstained: ClauseEntry, vocabulary: Vocabulary
) -> None:
    report = assess_ruleset([meals, abstained], vocabulary, DEFAULT)

    assert report.passed
    assert report.policy == "default@1"
    assert report.mutation.percent == 100
    assert report.mutation.survived == 0
    assert (report.coverage.normative, report.coverage.with_rules, report.coverage.without_rule) == (2, 1, 1)
    assert RulesetReport.model_validate_json(report.model_dump_json()) == report


def test_tests_that_do_not_bite_are_missing_with_the_survivors(meals: ClauseEntry, vocabulary: Vocabulary) -> None:
    # Two normal cases and a boundary far away: the suite has its number of tests, and notices little.
    weak = SuiteOutput(
        tests=tuple(
            case.model_copy(update={"facts": {**case.facts, "expense.day_total_minor": total}})
            for case, total in zip(meals.suite.tests[:3], (100, 200, 900_000), strict=True)
        )
    )
    entry = ClauseEntry(item_key=meals.item_key, clause=meals.clause, rules=meals.rules, suite=weak)

    report = assess_ruleset([entry], vocabulary, DEFAULT)

    assert not report.passed
    assert report.failures == ()
    assert codes(report) == ["mutation_score"]
    survivor = next(item for item in report.mutation.survivors if item.change == "condition: >= for >")
    assert survivor.item_key == "rule-01"
    assert (survivor.expected, survivor.found) == ("no_match", "reimburse_up_to 7500")
    assert assess_ruleset([entry], vocabulary, policy(minimum_mutation_percent=0)).passed


def test_rules_that_contradict_each_other_are_missing_an_agreement(
    meals: ClauseEntry, lower_cap: ClauseEntry, vocabulary: Vocabulary
) -> None:
    report = assess_ruleset([meals, lower_cap], vocabulary, DEFAULT)

    assert codes(report) == ["conflicts"]
    finding = report.findings[0]
    assert finding.is_conflict
    assert finding.rule_ids == ("rule-01", "rule-02")
    assert finding.quotes == (MEALS, MEALS.replace("75", "60"))
    assert finding.decided == ("reimburse_up_to 7500", "reimburse_up_to 6000")
    assert assess_ruleset([meals, lower_cap], vocabulary, policy(allowed_conflicts=1)).passed


def test_a_clause_without_a_rule_needs_an_accepted_reason_or_a_waiver(
    meals: ClauseEntry, abstained: ClauseEntry, vocabulary: Vocabulary
) -> None:
    entries = [meals, abstained]
    none_accepted = policy(accepted_abstentions=[])

    refused = assess_ruleset(entries, vocabulary, none_accepted)
    waived = assess_ruleset(
        entries, vocabulary, none_accepted, [Waiver(clause_ordinal=7, actor="kim", reason="advice only")]
    )

    assert codes(refused) == ["coverage"]
    assert refused.coverage.open_items == ("rule-03",)
    assert "rule-03" in refused.missing[0].message
    assert waived.passed
    assert waived.coverage.waived == 1
    assert waived.waivers[0].actor == "kim"
    assert assess_ruleset(entries, vocabulary, policy(accepted_abstentions=["undefined_term"])).passed


def test_too_many_clauses_without_a_rule_are_missing_waivers(
    meals: ClauseEntry, abstained: ClauseEntry, vocabulary: Vocabulary
) -> None:
    entries = [meals, abstained]

    assert codes(assess_ruleset(entries, vocabulary, policy(maximum_abstention_percent=49))) == ["abstentions"]
    assert assess_ruleset(entries, vocabulary, policy(maximum_abstention_percent=50)).passed


def test_a_clause_whose_tests_fail_has_no_mutants(meals: ClauseEntry, vocabulary: Vocabulary) -> None:
    wrong = meals.suite.tests[0].model_copy(update={"expect": "deny"})
    suite = SuiteOutput(tests=(wrong, *meals.suite.tests[1:]))
    entry = ClauseEntry(item_key=meals.item_key, clause=meals.clause, rules=meals.rules, suite=suite)

    report = assess_ruleset([entry], vocabulary, DEFAULT)

    assert report.tests_failed == 1
    assert report.mutation.mutants == 0


@pytest.mark.parametrize("name", ["default", "strict", "every-test-and-quote", "proved"])
def test_each_policy_of_the_package_loads(name: str) -> None:
    assert load_policy(name).label == f"{name}@1"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "minimum_mutation_percent: 90",
            "minimum_mutation_percent: 101",
            "minimum_mutation_percent: Input should be less",
        ),
        ("allowed_conflicts: 0", "allowed_conflicts: some", "allowed_conflicts: Input should be a valid integer"),
        ("name: default", "name: other", "default.yaml names itself other; file and name must agree"),
        ("allowed_conflicts: 0", "allowed_conflict: 0", "allowed_conflicts: Field required"),
        ("version: 1", "version: 1\nversion: 2", "the key 'version' stands twice"),
    ],
)
def test_a_policy_that_does_not_load_says_why(old: str, new: str, message: str) -> None:
    text = "\n".join(f"{key}: {json.dumps(value)}" for key, value in DEFAULT.model_dump(mode="json").items())
    text = text.replace('"default"', "default")
    assert old in text

    with pytest.raises(PolicyError, match=message):
        parse_policy(text.replace(old, new), name="default")


@pytest.mark.parametrize("name", ["nonsense", "../vocabularies/expense", ""])
def test_an_unknown_policy_is_refused_with_the_policies_there_are(name: str) -> None:
    with pytest.raises(
        PolicyError, match=r"there is no validation policy .*; available: default, every-test-and-quote"
    ):
        load_policy(name)
