"""Drafts: what is accepted, and each typed reason for refusing one."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rulegen_dagster.domain.clause import Clause, ClauseKind, ContextEntry, ContextRelation
from rulegen_dagster.domain.errors import DraftRejectedError, Failure
from rulegen_dagster.domain.rule import Decision, NoRuleDraft, RuleOutput, SuiteOutput
from rulegen_dagster.domain.vocabulary import Vocabulary
from rulegen_dagster.rules.drafts import read_rules_draft, read_tests_draft
from rulegen_dagster.rules.replies import MAX_DRAFT_BYTES, MAX_FAILURES

ClauseBuilder = Callable[..., Clause]
Draft = dict[str, Any]
MEALS = "Meals are limited to $75 per day."


@pytest.fixture
def read(vocabulary: Vocabulary, make_clause: ClauseBuilder) -> Callable[..., RuleOutput]:
    def read_draft(*rules: Draft, clause: Clause | None = None) -> RuleOutput:
        raw = json.dumps({"rules": rules})
        clause = clause or make_clause(MEALS)
        return read_rules_draft(raw, clause=clause, item_key="rule-01", vocabulary=vocabulary)

    return read_draft


@pytest.fixture
def read_tests(vocabulary: Vocabulary) -> Callable[..., SuiteOutput]:
    return lambda tests: read_tests_draft(json.dumps({"tests": tests}), vocabulary=vocabulary)


def refusals(call: Callable[[], object]) -> list[tuple[str, str]]:
    with pytest.raises(DraftRejectedError) as refused:
        call()
    assert refused.value.code == refused.value.failures[0].code
    return [(failure.code, failure.path) for failure in refused.value.failures]


def test_an_accepted_rule_carries_our_id_and_the_exact_place_of_its_quote(
    read: Callable[..., RuleOutput], meal_rule: Draft
) -> None:
    output = read(meal_rule)

    (rule,) = output.rules
    assert rule.id == "rule-01"
    assert rule.decision is Decision.REIMBURSE_UP_TO
    assert (rule.source.clause_ordinal, rule.source.start, rule.source.end) == (7, 100, 133)
    assert rule.source.quote == MEALS
    assert rule.params["limit"].quote == "$75 per day"
    assert output.no_rule is None


def test_further_rules_of_a_clause_take_letters(read: Callable[..., RuleOutput], meal_rule: Draft) -> None:
    second = meal_rule | {"decision": "flag", "cap": None}
    third = meal_rule | {"decision": "require_approval", "cap": None}

    output = read(meal_rule, second, third)

    assert [rule.id for rule in output.rules] == ["rule-01", "rule-01-b", "rule-01-c"]


def test_a_typed_reason_for_no_rule_passes_through(vocabulary: Vocabulary, make_clause: ClauseBuilder) -> None:
    raw = json.dumps({"no_rule": {"reason": "undefined_term", "detail": "reasonable"}})

    output = read_rules_draft(raw, clause=make_clause(MEALS), item_key="rule-01", vocabulary=vocabulary)

    assert output == RuleOutput(no_rule=NoRuleDraft(reason="undefined_term", detail="reasonable"))


def test_an_exception_is_grounded_as_a_part_of_the_clause(
    read: Callable[..., RuleOutput], make_clause: ClauseBuilder
) -> None:
    text = "Alcohol is not paid, unless a\ndirector has approved it."
    draft = {
        "quote": "Alcohol is not paid, unless a director has approved it.",
        "modality": "must",
        "subject": "meals",
        "decision": "deny",
        "applies_when": 'expense.category == "other"',
        "unless": [{"condition": "expense.preapproved", "quote": "unless a director has approved it"}],
    }

    (rule,) = read(draft, clause=make_clause(text)).rules

    assert rule.source.quote == text
    assert rule.unless[0].source.quote == "unless a\ndirector has approved it"
    assert rule.unless[0].source.start == 100 + text.index("unless")


def test_a_rule_of_a_table_row_may_quote_its_limit_from_the_header(
    read: Callable[..., RuleOutput], meal_rule: Draft, make_clause: ClauseBuilder
) -> None:
    clause = make_clause("| Meals | yes |", kind=ClauseKind.TABLE_ROW, table_header=("Kind", "Over $75 per day"))
    limit = meal_rule["params"]["limit"] | {"quote": "Over $75 per day"}

    (rule,) = read(meal_rule | {"quote": "| Meals | yes |", "params": {"limit": limit}}, clause=clause).rules

    assert rule.params["limit"].quote == "Over $75 per day"


def money(**changes: Any) -> Draft:
    return {"limit": {"type": "money", "currency": "USD", "minor": 7500, "quote": "$75 per day"} | changes}


LINKED = "the director <a href='https://evil.example'>"
SECOND_CURRENCY = money() | {"fee": {"type": "money", "currency": "EUR", "minor": 7500, "quote": "75"}}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"quote": "Meal limit is $75 per day."}, ("quote_not_verbatim", ".quote")),
        ({"quote": "limited to $75 per day."}, ("quote_not_sentence_aligned", ".quote")),
        ({"subject": "flights"}, ("unknown_subject", ".subject")),
        ({"subject": "[meals](https://evil.example)"}, ("active_text", ".subject")),
        ({"approver": "see https://evil.example"}, ("active_text", ".approver")),
        ({"approver": "www.evil.example"}, ("active_text", ".approver")),
        ({"approver": LINKED}, ("active_text", ".approver")),
        ({"approver": "the [boss] (x)"}, ("active_text", ".approver")),
        ({"approver": "javascript:alert(1)"}, ("active_text", ".approver")),
        ({"approver": "the\u202eboss"}, ("active_text", ".approver")),
        ({"approver": "the\nboss"}, ("active_text", ".approver")),
        ({"effective_from": "2026-02-01", "effective_to": "2026-01-31"}, ("effective_range", ".effective_from")),
        ({"applies_when": "expense.day_totl_minor > p.limit"}, ("unknown_fact", ".applies_when")),
        ({"applies_when": "size(p.limit) > 1"}, ("function_not_allowed", ".applies_when")),
        ({"applies_when": "expense.day_total_minor"}, ("wrong_type", ".applies_when")),
        ({"applies_when": "!" * 1999 + "x"}, ("too_deep", ".applies_when")),
        ({"applies_when": "expense.day_total_minor > 7500"}, ("bare_number_against_money", ".applies_when")),
        ({"applies_when": "trip.km > 60", "cap": "p.limit"}, ("number_not_in_quote", ".applies_when")),
        ({"applies_when": "trip.km > p.km"}, ("undeclared_parameter", ".applies_when")),
        ({"cap": "trip.km"}, ("wrong_type", ".cap")),
        ({"cap": "p.limit * 3"}, ("number_not_in_quote", ".cap")),
        ({"cap": "p.limit / 0"}, ("divisor_not_positive", ".cap")),
        ({"params": money(minor=75_000)}, ("number_not_in_quote", ".params.limit")),
        ({"params": money(minor=75)}, ("number_not_in_quote", ".params.limit")),
        ({"params": money(quote="$75 a day")}, ("quote_not_verbatim", ".params.limit.quote")),
        ({"params": money(quote="5 per day")}, ("quote_not_verbatim", ".params.limit.quote")),
        ({"params": money(currency="EUR")}, ("currency_not_in_quote", ".params.limit.currency")),
        ({"params": SECOND_CURRENCY}, ("mixed_currencies", ".params")),
        (
            {"params": money() | {"days": {"type": "int", "value": 75, "quote": "75"}}},
            ("unused_parameter", ".params.days"),
        ),
        (
            {"params": money() | {"in": {"type": "int", "value": 75, "quote": "75"}}},
            ("reserved_word", ".params.in"),
        ),
        (
            {"unless": [{"condition": "expense.preapproved", "quote": "unless approved"}]},
            ("quote_not_verbatim", ".unless[0].quote"),
        ),
        (
            {"unless": [{"condition": "expense.aproved_by", "quote": "per day"}]},
            ("unknown_fact", ".unless[0].condition"),
        ),
        ({"cap": None}, ("invalid_schema", "")),
        ({"modality": "should", "decision": "deny", "cap": None}, ("should_denies", "")),
        ({"approver": "the director"}, ("approver_not_in_quote", ".approver")),
        ({"approver": "rector"}, ("approver_not_in_quote", ".approver")),
        ({"effective_from": "2026-01-01"}, ("date_not_in_quote", ".effective_from")),
        ({"effective_to": "2026-01-31"}, ("date_not_in_quote", ".effective_to")),
        ({"params": money(currency="ZZZ", quote="75")}, ("unknown_currency", ".params.limit.currency")),
        ({"decision": "allow", "cap": None, "applies_when": "true"}, ("allows_everything", ".applies_when")),
        (
            {"decision": "allow", "cap": None, "applies_when": "trip.km >= 0 || expense.has_receipt"},
            ("allows_everything", ".applies_when"),
        ),
        ({"decision": "pay"}, ("invalid_schema", ".decision")),
        (
            {"params": {"limit": {"type": "int", "value": 75, "quote": "$75", "unit": "a" * 50_000}}},
            ("too_long", ".params.limit.unit"),
        ),
        (
            {"params": {"limit": {"type": "int", "value": 75, "quote": "$75", "unit": "<i>"}}},
            ("active_text", ".params.limit.unit"),
        ),
        ({"extra": 1}, ("invalid_schema", ".extra")),
        ({"params": {"Limit!": money()["limit"]}}, ("invalid_schema", ".params['Limit!']")),
        ({"priority": 101}, ("invalid_schema", ".priority")),
        ({"params": money(minor=75.0)}, ("invalid_schema", ".params.limit.minor")),
        ({"params": money(minor=True)}, ("invalid_schema", ".params.limit.minor")),
        ({"params": money(minor=-1)}, ("invalid_schema", ".params.limit.minor")),
        ({"params": money(type="float")}, ("invalid_schema", ".params.limit")),
    ],
)
def test_a_rule_that_fails_a_check_is_refused_with_code_and_path(
    changes: Draft, expected: tuple[str, str], read: Callable[..., RuleOutput], meal_rule: Draft
) -> None:
    code, path = expected

    found = refusals(lambda: read(meal_rule | changes))

    assert (code, f"$.rules[0]{path}") in found


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("Until 31 March 2026, the Director must approve trips.", {"effective_to": "2026-03-31"}),
        ("From 2026-03-31, the director must approve trips.", {"effective_from": "2026-03-31"}),
        ("Ab dem 31. März 2026 muss the director zustimmen.", {"effective_from": "2026-03-31"}),
        ("Ab 1.4.2026 muss the director zustimmen.", {"effective_from": "2026-04-01"}),
        ("From April 2026 to June 2026, the director must approve.", {"effective_from": "2026-04-01"}),
        ("From April 2026 to June 2026, the director must approve.", {"effective_to": "2026-06-30"}),
        ("From 3/4/2026 the director must approve trips.", {"effective_from": "2026-03-04"}),
        ("From 3/4/2026 the director must approve trips.", {"effective_from": "2026-04-03"}),
        ("À partir du 1er avril 2026, the director approuve.", {"effective_from": "2026-04-01"}),
    ],
)
def test_a_date_and_an_approver_may_stand_in_the_words_of_the_clause(
    text: str, changes: Draft, read: Callable[..., RuleOutput], make_clause: ClauseBuilder
) -> None:
    draft = {
        "quote": text,
        "modality": "must",
        "subject": "claim",
        "decision": "require_approval",
        "applies_when": "trip.nights > 0",
        "approver": "A Director",
    }

    (rule,) = read(draft | changes, clause=make_clause(text)).rules

    assert rule.approver == "A Director"


def test_an_approver_may_be_named_by_the_lead_or_by_an_exception(
    read: Callable[..., RuleOutput], make_clause: ClauseBuilder
) -> None:
    text = "Alcohol is paid for, unless the host has objected."
    draft = {
        "quote": text,
        "modality": "must",
        "subject": "meals",
        "decision": "require_approval",
        "applies_when": 'expense.category == "other"',
        "unless": [{"condition": "expense.preapproved", "quote": "unless the host has objected"}],
    }
    clause = make_clause(text, lead="With the consent of a director:")

    assert read(draft | {"approver": "the director"}, clause=clause).rules
    assert read(draft | {"approver": "the host"}, clause=clause).rules


def test_a_rule_names_the_clauses_that_its_provider_was_given(
    vocabulary: Vocabulary, make_clause: ClauseBuilder, meal_rule: Draft
) -> None:
    given = [replace(make_clause("“Meal” means food."), ordinal=ordinal) for ordinal in (2, 5)]
    output = read_rules_draft(
        json.dumps({"rules": [meal_rule]}),
        clause=make_clause(MEALS),
        item_key="rule-01",
        vocabulary=vocabulary,
        context=[ContextEntry(relation=ContextRelation.DEFINES, clause=clause) for clause in given],
    )

    assert output.rules[0].depends_on == (2, 5)


def test_an_output_of_an_earlier_release_still_loads() -> None:
    old = {
        "rules": [
            {
                "id": "rule-01",
                "source": {"clause_ordinal": 0, "quote": "x", "start": 0, "end": 1},
                "modality": "must",
                "subject": "meals",
                "decision": "deny",
                "applies_when": "true",
            }
        ],
        "no_rule": None,
    }

    output = RuleOutput.model_validate_json(json.dumps(old))

    assert (output.rules[0].depends_on, output.proposed_facts) == ((), ())


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ({"clause_id": "rule-02"}, [("foreign_clause", "$.clause_id")]),
        ({"tenant": "globex"}, [("foreign_tenant", "$.tenant")]),
        ({"tenant": "globex", "clause_id": ""}, [("foreign_clause", "$.clause_id"), ("foreign_tenant", "$.tenant")]),
        ({"tenant": "acme", "clause_id": "rule-01"}, []),
    ],
)
def test_a_reply_that_speaks_for_another_clause_or_tenant_is_refused(
    names: Draft,
    expected: list[tuple[str, str]],
    vocabulary: Vocabulary,
    make_clause: ClauseBuilder,
    meal_rule: Draft,
    meal_tests: list[Draft],
) -> None:
    def rules() -> RuleOutput:
        raw = json.dumps({"rules": [meal_rule], **names})
        clause = make_clause(MEALS)
        return read_rules_draft(raw, clause=clause, item_key="rule-01", vocabulary=vocabulary, tenant="acme")

    def tests() -> SuiteOutput:
        raw = json.dumps({"tests": meal_tests, **names})
        return read_tests_draft(raw, vocabulary=vocabulary, item_key="rule-01", tenant="acme")

    for read_draft in (rules, tests):
        if expected:
            assert refusals(read_draft) == expected
        else:
            assert read_draft()


def test_more_rules_than_one_clause_can_give_are_refused(read: Callable[..., RuleOutput], meal_rule: Draft) -> None:
    assert ("too_many_rules", "$.rules") in refusals(lambda: read(*[meal_rule] * 9))


PROPOSAL = {"name": "trip.by_night", "type": "bool", "description": "travelled by night", "quote": "per day"}


def propose(make_clause: ClauseBuilder, vocabulary: Vocabulary, *proposals: Draft, **reply: Any) -> RuleOutput:
    raw = json.dumps({"no_rule": {"reason": "fact_not_in_vocabulary"}, "proposed_facts": proposals} | reply)
    return read_rules_draft(raw, clause=make_clause(MEALS), item_key="rule-01", vocabulary=vocabulary)


def test_a_proposed_fact_is_kept_beside_the_reason(make_clause: ClauseBuilder, vocabulary: Vocabulary) -> None:
    output = propose(make_clause, vocabulary, PROPOSAL)

    assert output.no_rule == NoRuleDraft(reason="fact_not_in_vocabulary")
    assert [(fact.name, fact.type) for fact in output.proposed_facts] == [("trip.by_night", "bool")]


def test_a_proposed_fact_is_no_fact(make_clause: ClauseBuilder, vocabulary: Vocabulary, meal_rule: Draft) -> None:
    rule = meal_rule | {"applies_when": "trip.by_night"}

    found = refusals(lambda: propose(make_clause, vocabulary, PROPOSAL, no_rule=None, rules=[rule]))

    assert ("unknown_fact", "$.rules[0].applies_when") in found


@pytest.mark.parametrize(
    ("proposals", "expected"),
    [
        ([PROPOSAL | {"name": "trip.km"}], ("fact_already_known", "$.proposed_facts[0].name")),
        ([PROPOSAL, PROPOSAL], ("duplicate_name", "$.proposed_facts[1].name")),
        ([PROPOSAL | {"description": "see www.evil.example"}], ("active_text", "$.proposed_facts[0].description")),
        ([PROPOSAL | {"quote": "by night"}], ("quote_not_verbatim", "$.proposed_facts[0].quote")),
        ([PROPOSAL | {"description": "x" * 201}], ("invalid_schema", "$.proposed_facts[0].description")),
        ([PROPOSAL | {"type": "float"}], ("invalid_schema", "$.proposed_facts[0].type")),
        ([PROPOSAL | {"name": f"trip.n{n}"} for n in range(6)], ("invalid_schema", "$.proposed_facts")),
    ],
)
def test_a_proposal_that_fails_a_check_is_refused(
    proposals: list[Draft], expected: tuple[str, str], make_clause: ClauseBuilder, vocabulary: Vocabulary
) -> None:
    assert refusals(lambda: propose(make_clause, vocabulary, *proposals)) == [expected]


def test_what_no_call_may_mend_is_not_cut_off(read: Callable[..., RuleOutput], meal_rule: Draft) -> None:
    unless = [{"condition": "x", "quote": "nowhere"}] * 8
    rules = [meal_rule | {"unless": unless, "priority": index} for index in range(7)]

    found = refusals(lambda: read(*rules, meal_rule | {"approver": "<b>"}))

    assert len(found) == MAX_FAILURES
    assert found[0] == ("active_text", "$.rules[7].approver")


def test_a_number_of_the_clause_may_stand_in_a_condition(
    read: Callable[..., RuleOutput], make_clause: ClauseBuilder
) -> None:
    text = "Trips of two nights or more need approval."
    draft = {
        "quote": text,
        "modality": "must",
        "subject": "lodging",
        "decision": "require_approval",
        "applies_when": "trip.nights >= 2",
    }

    assert len(read(draft, clause=make_clause(text)).rules) == 1


@pytest.mark.parametrize(
    ("condition", "accepted"),
    [
        ("trip.km > p.hours * 60", True),
        ("trip.km / 60 >= p.hours", True),
        ("trip.km > p.hours + 60", False),
        ("trip.km > 60 || trip.km > p.hours", False),
        ("trip.km > p.hours * 30", False),
        ("expense.amount_minor * 60 > 0 && trip.km > p.hours", False),
    ],
)
def test_a_factor_between_units_may_convert_a_count_and_nothing_else(
    condition: str, accepted: bool, read: Callable[..., RuleOutput], make_clause: ClauseBuilder
) -> None:
    text = "Flights longer than 8 hours need approval."
    draft = {
        "quote": text,
        "modality": "must",
        "subject": "claim",
        "decision": "require_approval",
        "applies_when": condition,
        "params": {"hours": {"type": "int", "value": 8, "unit": "hours", "quote": "8 hours"}},
    }

    if accepted:
        assert len(read(draft, clause=make_clause(text)).rules) == 1
    else:
        found = refusals(lambda: read(draft, clause=make_clause(text)))
        assert found == [("number_not_in_quote", "$.rules[0].applies_when")]


def test_a_rate_is_cut_to_minor_units_by_the_divisor_of_its_currency(
    read: Callable[..., RuleOutput], make_clause: ClauseBuilder
) -> None:
    text = "A personal vehicle is reimbursed at $0.67 per mile."
    draft = {
        "quote": text,
        "modality": "must",
        "subject": "mileage",
        "decision": "reimburse_up_to",
        "applies_when": "trip.km > 0",
        "cap": "trip.km * p.rate / 10000",
        "params": {
            "rate": {"type": "rate", "currency": "USD", "micros": 670_000, "per": "mile", "quote": "$0.67 per mile"}
        },
    }

    assert len(read(draft, clause=make_clause(text)).rules) == 1


def test_two_spellings_of_one_rule_are_duplicates(read: Callable[..., RuleOutput], meal_rule: Draft) -> None:
    respelled = meal_rule["applies_when"].replace(" && ", "&&(").replace("p.limit", "p.limit)")

    found = refusals(lambda: read(meal_rule, meal_rule | {"applies_when": respelled}))

    assert found == [("duplicate_rule", "$.rules[1]")]


def test_every_failure_of_a_draft_is_named_at_once(read: Callable[..., RuleOutput], meal_rule: Draft) -> None:
    bad = meal_rule | {"subject": "flights", "quote": "nowhere", "cap": "p.other"}

    found = refusals(lambda: read(bad, meal_rule | {"approver": "<b>"}))

    assert [code for code, _ in found] == [
        "unknown_subject",
        "undeclared_parameter",
        "quote_not_verbatim",
        "active_text",
        "approver_not_in_quote",
    ]


def test_an_endless_list_of_failures_is_cut(read: Callable[..., RuleOutput], meal_rule: Draft) -> None:
    unless = [{"condition": "x", "quote": "nowhere"}] * 8

    found = refusals(lambda: read(*[meal_rule | {"unless": unless, "priority": index} for index in range(8)]))

    assert len(found) == MAX_FAILURES


@pytest.mark.parametrize(
    ("raw", "code", "path"),
    [
        ("", "invalid_json", "$"),
        ("Here are the rules: []", "invalid_json", "$"),
        ('{"rules": [', "invalid_json", "$"),
        ("[" * 60_000, "invalid_json", "$"),
        ('{"rules":' * 6_000, "invalid_json", "$"),
        ("[]", "invalid_schema", "$"),
        ("{}", "invalid_schema", "$"),
        ('{"rules": [], "no_rule": null}', "invalid_schema", "$"),
        ('{"rules": {}}', "invalid_schema", "$.rules"),
        ('{"rules": [1]}', "invalid_schema", "$.rules[0]"),
        ('{"no_rule": {"reason": "Not typed!"}}', "invalid_schema", "$.no_rule.reason"),
        ('{"no such key": 1, "rules": []}', "invalid_schema", "$['no such key']"),
        ('"' + "x" * MAX_DRAFT_BYTES + '"', "draft_too_large", "$"),
        ('"' + "\u00e4" * (MAX_DRAFT_BYTES // 2) + '"', "draft_too_large", "$"),
        ('{"no_rule": {"reason": "x", "detail": "a\\u0000b"}}', "nul_character", "$"),
        ('{"no_rule": {"reason": "x", "detail": "a\\ud800b"}}', "invalid_json", "$"),
        ('"\ud800"', "invalid_schema", "$"),
    ],
)
def test_a_reply_that_is_no_reply_is_refused_before_anything_else(
    raw: str, code: str, path: str, vocabulary: Vocabulary, make_clause: ClauseBuilder
) -> None:
    clause = make_clause(MEALS)

    found = refusals(lambda: read_rules_draft(raw, clause=clause, item_key="rule-01", vocabulary=vocabulary))

    assert (code, path) in found


def test_no_failure_repeats_the_values_of_a_draft(read: Callable[..., RuleOutput], meal_rule: Draft) -> None:
    secret = "SECRET-VALUE"
    bad = meal_rule | {"subject": secret, "quote": secret, "decision": secret, "modality": secret}

    with pytest.raises(DraftRejectedError) as refused:
        read(bad)

    assert secret not in str(refused.value)
    assert all(secret not in failure.message for failure in refused.value.failures)


def test_accepted_tests_are_kept_as_they_were_drafted(
    read_tests: Callable[..., SuiteOutput], meal_tests: list[Draft]
) -> None:
    suite = read_tests(meal_tests)

    assert [case.name for case in suite.tests] == ["below", "at the limit", "above", "another category"]
    assert suite.tests[2].expect_cap_minor == 7500
    assert suite.no_tests is None


@pytest.mark.parametrize(
    ("index", "changes", "expected"),
    [
        (0, {"facts": {"expense.day_totl_minor": 1}}, ("unknown_fact", "$.tests[0].facts")),
        (0, {"facts": {"expense.day_total_minor": True}}, ("wrong_fact_type", "$.tests[0].facts")),
        (0, {"facts": {"expense.category": "meel"}}, ("unknown_enum_value", "$.tests[0].facts")),
        (0, {"facts": {"trip.km": -1}}, ("fact_out_of_range", "$.tests[0].facts")),
        (0, {"facts": {"trip.km": 1.5}}, ("invalid_schema", "$.tests[0].facts['trip.km']")),
        (0, {"facts": {"km": 1}}, ("invalid_schema", "$.tests[0].facts.km")),
        (0, {"expect": "pay"}, ("invalid_schema", "$.tests[0].expect")),
        (0, {"expect": "deny", "expect_cap_minor": 1}, ("cap_expectation", "$.tests[0].expect_cap_minor")),
        (2, {"expect_cap_minor": None}, ("cap_expectation", "$.tests[2].expect_cap_minor")),
        (1, {"name": "below"}, ("duplicate_name", "$.tests[1].name")),
        (
            1,
            {"facts": {"expense.category": "meals", "expense.day_total_minor": 7499}, "expect": "deny"},
            ("contradicting_tests", "$.tests[1]"),
        ),
        (
            3,
            {
                "facts": {"expense.category": "meals", "expense.day_total_minor": 7501},
                "expect": "reimburse_up_to",
                "expect_cap_minor": 7400,
            },
            ("contradicting_tests", "$.tests[3]"),
        ),
    ],
)
def test_a_test_that_fails_a_check_is_refused_with_code_and_path(
    index: int,
    changes: Draft,
    expected: tuple[str, str],
    read_tests: Callable[..., SuiteOutput],
    meal_tests: list[Draft],
) -> None:
    meal_tests[index] |= changes

    assert refusals(lambda: read_tests(meal_tests)) == [expected]


def test_two_decisions_that_can_be_due_together_do_not_contradict(read_tests: Callable[..., SuiteOutput]) -> None:
    facts = {"expense.amount_minor": 5}
    tests = [
        {"name": "receipt", "kind": "normal", "facts": facts, "expect": "require_receipt"},
        {"name": "approval", "kind": "normal", "facts": facts, "expect": "require_approval"},
    ]

    assert len(read_tests(tests).tests) == 2


def test_a_reply_without_tests_is_refused(read_tests: Callable[..., SuiteOutput]) -> None:
    assert refusals(lambda: read_tests([])) == [("invalid_schema", "$.tests")]


def test_a_rejection_summarizes_its_first_failure() -> None:
    failures = tuple(Failure(code=code, path="$", message="m") for code in ("a", "b", "c"))

    assert str(DraftRejectedError(failures)) == "a at $: m and 2 more"
