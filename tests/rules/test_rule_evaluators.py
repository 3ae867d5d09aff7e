"""Both evaluators: what an expression means, that they agree, and the traps of the CEL engine."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from cel_expr_python import cel
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from rulegen_dagster.domain.errors import RuleLanguageError
from rulegen_dagster.domain.rule import Decision, IntParam, Modality, MoneyParam, Param, RateParam, Rule, Source
from rulegen_dagster.domain.vocabulary import BoolFact, EnumFact, FactValue, Vocabulary
from rulegen_dagster.rules.cel_engine import CelProgram, compile_cel, declarations_of
from rulegen_dagster.rules.engine import CompiledExpression, Outcome, compile_rule
from rulegen_dagster.rules.evaluate import evaluate
from rulegen_dagster.rules.expression import (
    And,
    Arithmetic,
    ArithmeticOperator,
    Comparison,
    Conditional,
    Expr,
    IntLiteral,
    Membership,
    Name,
    Negate,
    Not,
    Or,
    Relation,
    StringLiteral,
)
from rulegen_dagster.rules.facts import complete_facts
from rulegen_dagster.rules.language import parse, to_cel
from rulegen_dagster.rules.symbols import Kind, Symbols
from rulegen_dagster.rules.typecheck import check

PARAMS: dict[str, Param] = {
    "limit": MoneyParam(type="money", currency="EUR", minor=7500, quote="75"),
    "days": IntParam(type="int", value=3, quote="3"),
    "mile": RateParam(type="rate", currency="EUR", micros=670_000, per="km", quote="0.67"),
}


def a_rule(**changes: Any) -> Rule:
    fields = {
        "id": "rule-01",
        "source": Source(clause_ordinal=0, quote="x", start=0, end=1),
        "modality": Modality.MUST,
        "subject": "meals",
        "decision": Decision.DENY,
        "applies_when": "expense.preapproved",
    }
    return Rule.model_validate(fields | changes)


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("7 / 2", 3),
        ("-7 / 2", -3),
        ("-7 % 2", -1),
        ("7 - 2 - 1", 4),
        ("2 + 3 * 4", 14),
        ("trip.km * p.mile / 10000", 6633),
        ("trip.km > 98 && trip.km < 100", True),
        ("trip.km <= 98 || trip.km >= 100", False),
        ("trip.km == 99 ? 1 : 2", 1),
        ("trip.km != 99 ? 1 : 2", 2),
        ('expense.category in ["meals", "other"]', True),
        ("trip.nights in [1, 2]", False),
        ("!expense.has_receipt == expense.preapproved", True),
        ("-trip.km", -99),
    ],
)
def test_an_expression_means_the_same_to_both_evaluators(source: str, value: FactValue, vocabulary: Vocabulary) -> None:
    facts = complete_facts(vocabulary, {"trip.km": 99}) | {"p.mile": 670_000}
    symbols = Symbols(vocabulary, PARAMS)
    expr = parse(source)

    program = compile_cel(expr, declarations_of(symbols), check(expr, symbols).kind)

    assert evaluate(expr, facts) == value
    assert program.evaluate(facts) == value
    assert type(evaluate(expr, facts)) is type(value)


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("a.b / 0", "division_by_zero"),
        ("a.b % 0", "division_by_zero"),
        (f"a.b * {10**15} * {10**15}", "overflow"),
        ("a.c > 1", "missing_fact"),
        ("a.b", None),
        ("!a.b", "wrong_fact_type"),
        ("a.b && true", "wrong_fact_type"),
        ("a.t + 1", "wrong_fact_type"),
        ("a.t == 1", "wrong_fact_type"),
        ("a.t > 0", "wrong_fact_type"),
        ("true || a.c", None),
        ("false && a.c", None),
        ("true ? 1 : a.c", None),
    ],
)
def test_the_ast_evaluator_needs_no_type_check_to_be_safe(source: str, code: str | None) -> None:
    facts: dict[str, FactValue] = {"a.b": 5, "a.t": True}

    if code is None:
        evaluate(parse(source), facts)
        return
    with pytest.raises(RuleLanguageError) as refused:
        evaluate(parse(source), facts)

    assert refused.value.code == code


RELATIONS = st.sampled_from(list(Relation))
INTS = st.one_of(
    st.builds(IntLiteral, st.integers(0, 2000)),
    st.sampled_from([Name("trip.km"), Name("trip.nights"), Name("claim.days_past_deadline"), Name("p.days")]),
)
AMOUNTS = st.sampled_from([Name("expense.amount_minor"), Name("expense.day_total_minor"), Name("p.limit")])
FLAGS = st.sampled_from([Name("expense.has_receipt"), Name("expense.preapproved")])
CATEGORIES = st.sampled_from(["meals", "lodging", "other"]).map(StringLiteral)
CATEGORY = Name("expense.category")


def int_expressions(bools: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    return st.recursive(
        INTS,
        lambda inner: st.one_of(
            st.builds(Negate, inner),
            st.builds(Arithmetic, st.sampled_from(["+", "-", "*"]).map(ArithmeticOperator), inner, inner),
            st.builds(
                Arithmetic,
                st.sampled_from(["/", "%"]).map(ArithmeticOperator),
                inner,
                st.builds(IntLiteral, st.integers(1, 50)),
            ),
            st.builds(Conditional, bools, inner, inner),
        ),
        max_leaves=6,
    )


def money_expressions(bools: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    micros = st.builds(Arithmetic, st.just(ArithmeticOperator.MULTIPLY), st.just(Name("p.mile")), INTS)
    converted = st.builds(Arithmetic, st.just(ArithmeticOperator.DIVIDE), micros, st.just(IntLiteral(10_000)))
    return st.recursive(
        st.one_of(AMOUNTS, converted),
        lambda inner: st.one_of(
            st.builds(Arithmetic, st.sampled_from(["+", "-"]).map(ArithmeticOperator), inner, inner),
            st.builds(Arithmetic, st.just(ArithmeticOperator.MULTIPLY), inner, INTS),
            st.builds(Arithmetic, st.just(ArithmeticOperator.DIVIDE), inner, st.builds(IntLiteral, st.integers(1, 99))),
            st.builds(Conditional, bools, inner, inner),
        ),
        max_leaves=5,
    )


def bool_expressions() -> st.SearchStrategy[Expr]:
    enums = st.one_of(
        st.builds(Comparison, st.sampled_from([Relation.EQUAL, Relation.NOT_EQUAL]), st.just(CATEGORY), CATEGORIES),
        st.builds(Membership, st.just(CATEGORY), st.lists(CATEGORIES, min_size=1, max_size=3).map(tuple)),
        st.builds(
            Membership, INTS, st.lists(st.builds(IntLiteral, st.integers(0, 9)), min_size=1, max_size=3).map(tuple)
        ),
    )
    atoms = st.one_of(FLAGS, enums, st.builds(Comparison, RELATIONS, AMOUNTS, AMOUNTS))
    return st.recursive(
        atoms,
        lambda inner: st.one_of(
            st.builds(Not, inner),
            st.builds(And, st.lists(inner, min_size=2, max_size=3).map(tuple)),
            st.builds(Or, st.lists(inner, min_size=2, max_size=3).map(tuple)),
            st.builds(Comparison, RELATIONS, int_expressions(inner), int_expressions(inner)),
            st.builds(Comparison, RELATIONS, money_expressions(inner), money_expressions(inner)),
            st.builds(Conditional, inner, inner, inner),
        ),
        max_leaves=6,
    )


BOOLS = bool_expressions()
EXPRESSIONS = st.one_of(BOOLS, int_expressions(BOOLS), money_expressions(BOOLS))


EXAMPLES = 100
EVALUATIONS_EACH = 200


def some_facts(vocabulary: Vocabulary, chance: Random) -> dict[str, FactValue]:
    values: dict[str, FactValue] = {}
    for name, fact in vocabulary.facts.items():
        match fact:
            case BoolFact():
                values[name] = chance.random() < 0.5
            case EnumFact(values=known):
                values[name] = chance.choice(list(known))
            case _:
                values[name] = chance.choice([fact.min, fact.max, chance.randint(fact.min, fact.max)])
    return values


@given(seed=st.integers(0, 2**32), expr=EXPRESSIONS)
@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
def test_both_evaluators_agree_on_every_well_typed_expression(seed: int, expr: Expr, vocabulary: Vocabulary) -> None:
    chance = Random(seed)  # noqa: S311 (repeatable facts, no secret)
    symbols = Symbols(vocabulary, PARAMS)
    try:
        printed = parse(to_cel(expr))
        found = check(printed, symbols)
    except RuleLanguageError as refused:
        assume(refused.code not in ("too_deep", "too_large", "too_long", "overflow_possible"))
        assume(refused.code != "bare_number_against_money")
        raise
    assert printed == expr
    program = compile_cel(printed, declarations_of(symbols), found.kind)

    for _ in range(EVALUATIONS_EACH):
        facts = some_facts(vocabulary, chance) | symbols.parameter_values()
        ours, theirs = evaluate(printed, facts), program.evaluate(facts)

        assert ours == theirs
        assert type(ours) is type(theirs)
        if found.kind is not Kind.BOOL:
            assert found.low <= ours <= found.high


class _Liar:
    """Stands for a native library that answers wrongly."""

    def __init__(self, answer: Callable[[], bool | int]) -> None:
        self._answer = answer

    def evaluate(self, facts: object) -> bool | int:
        return self._answer()


def _fail() -> bool:
    raise RuleLanguageError("cel_evaluation", "no answer")


@pytest.mark.parametrize("answer", [lambda: True, lambda: 0, _fail])
def test_a_difference_between_the_evaluators_is_an_error(answer: Callable[[], bool | int]) -> None:
    liar: Any = _Liar(answer)
    expression = CompiledExpression(expr=parse("1 > 2"), program=liar, reads={})

    with pytest.raises(RuleLanguageError) as refused:
        expression.value({})

    assert refused.value.code == "evaluator_difference"


def test_a_rule_decides_where_its_condition_holds_and_no_exception_does(vocabulary: Vocabulary) -> None:
    rule = a_rule(
        decision="reimburse_up_to",
        applies_when='expense.category == "meals" && expense.day_total_minor > p.limit',
        cap="p.limit",
        params={"limit": PARAMS["limit"]},
        unless=[{"condition": "expense.preapproved", "source": a_rule().source}],
    )
    compiled = compile_rule(rule, vocabulary)
    over: dict[str, FactValue] = {"expense.category": "meals", "expense.day_total_minor": 7501}

    assert compiled.decide(complete_facts(vocabulary, over)) == Outcome(
        decision=Decision.REIMBURSE_UP_TO, cap_minor=7500
    )
    assert compiled.decide(complete_facts(vocabulary, over | {"expense.day_total_minor": 7500})) == Outcome()
    assert compiled.decide(complete_facts(vocabulary, over | {"expense.preapproved": True})) == Outcome()


def test_a_negative_cap_is_an_error_and_not_a_decision(vocabulary: Vocabulary) -> None:
    rule = a_rule(
        decision="reimburse_up_to",
        applies_when="true",
        cap="expense.amount_minor - p.limit",
        params={"limit": PARAMS["limit"]},
    )

    with pytest.raises(RuleLanguageError) as refused:
        compile_rule(rule, vocabulary).decide(complete_facts(vocabulary, {}))

    assert refused.value.code == "cap_out_of_range"


def test_a_fact_that_the_evaluation_would_not_reach_must_still_be_there(vocabulary: Vocabulary) -> None:
    compiled = compile_rule(a_rule(applies_when="expense.has_receipt || trip.km > 5"), vocabulary)

    with pytest.raises(RuleLanguageError) as refused:
        compiled.decide({"expense.has_receipt": True})

    assert refused.value.code == "missing_fact"


def test_a_bool_is_not_taken_for_a_number_by_a_rule(vocabulary: Vocabulary) -> None:
    compiled = compile_rule(a_rule(applies_when="trip.km > 0"), vocabulary)

    with pytest.raises(RuleLanguageError) as refused:
        compiled.decide(complete_facts(vocabulary, {}) | {"trip.km": True})

    assert refused.value.code == "wrong_fact_type"


# What the library does by itself: where a new version behaves better, the guards around it can go.


def test_the_library_returns_errors_as_values_and_the_engine_raises_them() -> None:
    compiled = cel.NewEnv(variables={"a.b": cel.Type.INT}).compile("a.b / 0 > 1")

    assert compiled.eval(data={"a.b": 1}).type().name() == "ERROR"
    with pytest.raises(RuleLanguageError) as refused:
        CelProgram(text="", result="BOOL", program=compiled).evaluate({"a.b": 1})
    assert refused.value.code == "cel_evaluation"


@pytest.mark.parametrize("value", [1.0, 2**63, "1", None])
def test_a_value_of_a_wrong_type_never_passes_the_cel_engine(value: Any) -> None:
    compiled = cel.NewEnv(variables={"a.b": cel.Type.INT}).compile("a.b")

    with pytest.raises(RuleLanguageError):
        CelProgram(text="", result="INT", program=compiled).evaluate({"a.b": value})


def test_the_library_misses_an_unreached_variable_and_takes_a_bool_for_a_number() -> None:
    env = cel.NewEnv(variables={"a.b": cel.Type.INT, "a.s": cel.Type.STRING})

    assert env.compile('a.b > 0 || a.s == "x"').eval(data={"a.b": 1}).value() is True
    assert env.compile("a.b > 0").eval(data={"a.b": True}).value() is True


def test_an_exhausted_iteration_budget_is_an_error_of_the_language() -> None:
    compiled = cel.NewEnv(variables={"a.l": cel.Type.List(cel.Type.INT)}).compile(
        "a.l.all(x, a.l.all(y, a.l.all(z, x + y + z >= 0)))"
    )

    with pytest.raises(RuleLanguageError):
        CelProgram(text="", result="BOOL", program=compiled).evaluate({"a.l": list(range(1000))})  # type: ignore[dict-item]


def test_an_expression_of_another_type_than_promised_does_not_compile() -> None:
    declarations = (("a.b", "INT"),)

    with pytest.raises(RuleLanguageError, match="finds INT where BOOL is due"):
        compile_cel(parse("a.b"), declarations, Kind.BOOL)
    with pytest.raises(RuleLanguageError, match="does not accept this condition") as refused:
        compile_cel(parse('a.b > 0 && a.c == "secret"'), declarations, Kind.BOOL)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "source",
    [
        "!" * 23 + "a.t",
        "-" * 20 + "a.b > 0",
        "1 + " * 21 + "a.b > 0",
        "(1 - " * 22 + "a.b" + ")" * 22 + " > 0",
        "(1 * (2 + " * 10 + "a.b" + "))" * 10 + " > 0",
        "a.t ? a.t : " * 22 + "a.t",
        "(a.t ? " * 22 + "a.t" + " : a.t)" * 22,
        "(" * 22 + "a.t" + " ? a.t : a.t)" * 22,
        "!(a.t && " * 11 + "a.t" + ")" * 11,
        "a.t || " * 190 + "a.t",
        "(a.t && (a.t || " * 11 + "a.t" + "))" * 11,
        "a.b in [" + "1, " * 190 + "1]",
    ],
)
def test_whatever_the_parser_accepts_is_within_the_limits_of_the_cel_engine(source: str) -> None:
    program = compile_cel(parse(source), (("a.b", "INT"), ("a.t", "BOOL")), Kind.BOOL)

    assert isinstance(program.evaluate({"a.b": 1, "a.t": True}), bool)
