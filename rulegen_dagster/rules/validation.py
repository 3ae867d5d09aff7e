"""Validation of a ruleset: every test on both evaluators, every quote and number once more, one report.

The accepted outputs of a job passed their own checks as drafts. This is the only place where rules and tests meet:
the tests were written from the clauses without a look at the rules.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from pydantic import BaseModel, ConfigDict

from rulegen_dagster.domain.clause import Clause
from rulegen_dagster.domain.errors import Failure, RuleLanguageError
from rulegen_dagster.domain.rule import (
    Decision,
    IntParam,
    Param,
    Source,
    TestCase,
    TestKind,
)
from rulegen_dagster.domain.vocabulary import Vocabulary
from rulegen_dagster.rules.clause_entries import ClauseEntry
from rulegen_dagster.rules.engine import CompiledRule, Outcome, compile_rule
from rulegen_dagster.rules.expression import Comparison, names_in, walk
from rulegen_dagster.rules.facts import complete_facts
from rulegen_dagster.rules.grounding import (
    QuoteProblem,
    contradicts_currency,
    ground_parameter_quote,
    states_parameter,
)
from rulegen_dagster.rules.symbols import PARAM_PREFIX

MIN_TESTS: Final = 3
"""Fewest test cases of a clause that has rules."""

_NOT_AT_OFFSETS: Final = "the clause does not hold this quote at its offsets"


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class ClauseResult(_Frozen):
    """What validation found for one clause; paths of failures begin at the item (`$.rules`, `$.tests`)."""

    item_key: str
    rule_ids: tuple[str, ...]
    tests: int
    tests_failed: int
    evaluator_differences: int
    failures: tuple[Failure, ...]
    no_rule_reason: str | None


class ValidationReport(_Frozen):
    """The validation of a whole ruleset.

    `failures` are those of the ruleset as a whole; those of a clause stand with it. `abstained` counts the clauses
    without a rule by reason.
    """

    passed: bool
    rules: int
    tests: int
    tests_failed: int
    evaluator_differences: int
    clauses: tuple[ClauseResult, ...]
    abstained: dict[str, int]
    failures: tuple[Failure, ...]


def validate_ruleset(entries: Sequence[ClauseEntry], vocabulary: Vocabulary) -> ValidationReport:
    """Execute every test of every clause and return the report; never raises for what it finds."""
    clauses = tuple(_validate_clause(entry, vocabulary) for entry in entries)
    failures = tuple(_ruleset_failures(entries))
    return ValidationReport(
        passed=not failures and not any(clause.failures for clause in clauses),
        rules=sum(len(clause.rule_ids) for clause in clauses),
        tests=sum(clause.tests for clause in clauses),
        tests_failed=sum(clause.tests_failed for clause in clauses),
        evaluator_differences=sum(clause.evaluator_differences for clause in clauses),
        clauses=clauses,
        abstained=dict(sorted(Counter(clause.no_rule_reason for clause in clauses if clause.no_rule_reason).items())),
        failures=failures,
    )


def _ruleset_failures(entries: Sequence[ClauseEntry]) -> Iterator[Failure]:
    rules = [rule for entry in entries for rule in entry.rules.rules]
    if not rules:
        yield Failure(code="no_rules", path="$", message="no clause gave a rule")
    currencies = sorted(
        {param.currency for rule in rules for param in rule.params.values() if not isinstance(param, IntParam)}
    )
    if len(currencies) > 1:
        message = f"a ruleset has one currency, this one has {', '.join(currencies)}"
        yield Failure(code="mixed_currencies", path="$", message=message)
    counts = Counter(rule.id for rule in rules)
    for rule_id in sorted(rule_id for rule_id, count in counts.items() if count > 1):
        yield Failure(code="duplicate_rule_id", path="$", message=f"two rules have the id {rule_id}")


def _validate_clause(entry: ClauseEntry, vocabulary: Vocabulary) -> ClauseResult:
    failures = list(_grounding_failures(entry))
    compiled: list[CompiledRule] = []
    for index, rule in enumerate(entry.rules.rules):
        try:
            compiled.append(compile_rule(rule, vocabulary))
        except RuleLanguageError as error:
            failures.append(Failure(code=error.code, path=f"$.rules[{index}]", message=str(error)))
    failures += _suite_failures(entry, compiled)
    # With a rule missing the tests would fail for its sake; its own failure says what is wrong.
    runnable = len(compiled) == len(entry.rules.rules)
    test_failures = [
        failure
        for index, case in enumerate(entry.suite.tests if runnable else ())
        if (failure := _run(case, index, compiled, vocabulary)) is not None
    ]
    abstention = entry.rules.no_rule
    return ClauseResult(
        item_key=entry.item_key,
        rule_ids=tuple(rule.id for rule in entry.rules.rules),
        tests=len(entry.suite.tests),
        tests_failed=len(test_failures),
        evaluator_differences=sum(failure.code == "evaluator_difference" for failure in test_failures),
        failures=(*failures, *test_failures),
        no_rule_reason=abstention.reason if abstention else None,
    )


def _grounding_failures(entry: ClauseEntry) -> Iterator[Failure]:
    # A rule may quote what its provider was given, and nothing else.
    texts = {entry.clause.ordinal: entry.clause, **{clause.ordinal: clause for clause in entry.cited}}
    for index, rule in enumerate(entry.rules.rules):
        path = f"$.rules[{index}]"
        allowed = {entry.clause.ordinal, *rule.depends_on}
        known = {ordinal: clause for ordinal, clause in texts.items() if ordinal in allowed}
        if not _is_verbatim(rule.source, {entry.clause.ordinal: entry.clause}):
            yield Failure(code="quote_not_verbatim", path=f"{path}.source", message=_NOT_AT_OFFSETS)
        for position, item in enumerate(rule.unless):
            if not _is_verbatim(item.source, known):
                yield Failure(
                    code="quote_not_verbatim", path=f"{path}.unless[{position}].source", message=_NOT_AT_OFFSETS
                )
        for name, param in rule.params.items():
            yield from _parameter_failures(param, f"{path}.params.{name}", entry.clause, known)


def _parameter_failures(param: Param, path: str, clause: Clause, known: Mapping[int, Clause]) -> Iterator[Failure]:
    quoted = known.get(clause.ordinal if param.clause_ordinal is None else param.clause_ordinal)
    if quoted is None or isinstance(ground_parameter_quote(param.quote, quoted), QuoteProblem):
        message = "the quote does not stand in the clause, its lead or its table header"
        yield Failure(code="quote_not_verbatim", path=f"{path}.quote", message=message)
    elif not states_parameter(param.quote, param):
        message = "its number does not occur in its quote"
        yield Failure(code="number_not_in_quote", path=path, message=message)
    elif contradicts_currency(param.quote, param):
        message = "its quote names another currency"
        yield Failure(code="currency_not_in_quote", path=f"{path}.currency", message=message)


def _is_verbatim(source: Source, clauses: Mapping[int, Clause]) -> bool:
    clause = clauses.get(source.clause_ordinal)
    if clause is None:
        return False
    start, end = source.start - clause.start, source.end - clause.start
    return start >= 0 and clause.text[start:end] == source.quote


def _suite_failures(entry: ClauseEntry, compiled: Sequence[CompiledRule]) -> Iterator[Failure]:
    if not entry.rules.rules:
        return
    tests = entry.suite.tests
    if len(tests) < MIN_TESTS:
        message = f"{len(tests)} tests; a clause with rules needs at least {MIN_TESTS}"
        yield Failure(code="too_few_tests", path="$.tests", message=message)
    if not any(case.kind is TestKind.BOUNDARY for case in tests):
        for rule in compiled:
            if thresholds := threshold_parameters(rule):
                message = f"rule {rule.rule.id} has a threshold ({', '.join(thresholds)}) and no boundary test"
                yield Failure(code="no_boundary_test", path="$.tests", message=message)


def threshold_parameters(rule: CompiledRule) -> tuple[str, ...]:
    """Return the parameters that a rule's conditions compare by order, so that a boundary exists."""
    expressions = (rule.condition, *rule.exceptions)
    comparisons = (
        node
        for expression in expressions
        for node in walk(expression.expr)
        if isinstance(node, Comparison) and node.relation.is_ordering
    )
    names = {name for comparison in comparisons for name in names_in(comparison)}
    return tuple(sorted(name.removeprefix(PARAM_PREFIX) for name in names if name.startswith(PARAM_PREFIX)))


def _run(case: TestCase, index: int, rules: Sequence[CompiledRule], vocabulary: Vocabulary) -> Failure | None:
    path = f"$.tests[{index}]"
    try:
        facts = complete_facts(vocabulary, case.facts)
        outcomes = [rule.decide(facts) for rule in rules]
    except RuleLanguageError as error:
        return Failure(code=error.code, path=path, message=str(error))
    if meets(case, outcomes):
        return None
    found = _found(outcomes)
    message = f"expected {case.expect}, the rules decide {', '.join(found) or 'no_match'}"
    if case.expect in found:
        lowest = min(outcome.cap_minor for outcome in outcomes if outcome.cap_minor is not None)
        message = f"expected a cap of {case.expect_cap_minor}, the rules give {lowest} (minor units)"
    return Failure(code="test_failed", path=path, message=message)


def meets(case: TestCase, outcomes: Sequence[Outcome]) -> bool:
    """Return whether the rules of a clause together decide what a test case demands."""
    decisions = {outcome.decision for outcome in outcomes if outcome.decision is not None}
    if case.expect == "no_match":
        return not decisions
    if case.expect not in decisions:
        return False
    if case.expect != Decision.REIMBURSE_UP_TO:
        return True
    return min(outcome.cap_minor for outcome in outcomes if outcome.cap_minor is not None) == case.expect_cap_minor


def _found(outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    return tuple(sorted({outcome.decision.value for outcome in outcomes if outcome.decision is not None}))
