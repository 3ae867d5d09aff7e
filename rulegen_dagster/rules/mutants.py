"""Mutants: copies of a rule that are wrong in one place, as a slip of the pen or of a model would make them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from rulegen_dagster.domain.errors import RuleLanguageError
from rulegen_dagster.domain.money import exponent, micros_per_minor
from rulegen_dagster.domain.rule import MoneyParam, Param, RateParam
from rulegen_dagster.domain.vocabulary import EnumFact, Vocabulary
from rulegen_dagster.rules.engine import CompiledRule
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
    names_in,
)
from rulegen_dagster.rules.formula import Formula, formula_of
from rulegen_dagster.rules.symbols import PARAM_PREFIX, Symbols
from rulegen_dagster.rules.typecheck import check

Mutant = tuple[str, Formula]
"""What is wrong with it, in words, and the wrong formula."""

_FLIPS = {
    Relation.LESS: (Relation.LESS_OR_EQUAL, Relation.GREATER),
    Relation.LESS_OR_EQUAL: (Relation.LESS, Relation.GREATER_OR_EQUAL),
    Relation.GREATER: (Relation.GREATER_OR_EQUAL, Relation.LESS),
    Relation.GREATER_OR_EQUAL: (Relation.GREATER, Relation.LESS_OR_EQUAL),
    Relation.EQUAL: (Relation.NOT_EQUAL,),
    Relation.NOT_EQUAL: (Relation.EQUAL,),
}
_SWAPS = {
    ArithmeticOperator.MULTIPLY: (ArithmeticOperator.ADD,),
    ArithmeticOperator.DIVIDE: (ArithmeticOperator.MULTIPLY,),
}
_MAX_PARAMETER = 10**15


def mutants_of(rule: CompiledRule, vocabulary: Vocabulary) -> Iterator[Mutant]:
    """Yield every mutant of a rule, each once, and none that is written like the rule itself.

    Operators flipped, conjuncts, disjuncts, list items and exceptions left out, parts negated, enum values swapped,
    parameters off by one, by ten, by a hundredth where they are money, and the same for numbers and operators of a cap.
    """
    formula = formula_of(rule)
    symbols = Symbols(vocabulary, rule.rule.params)
    seen = {_written(formula)}
    for told, mutant in _all(formula, rule, vocabulary):
        if (written := _written(mutant)) not in seen:
            seen.add(written)
            if _is_well_typed(mutant, symbols):
                yield told, mutant
    if formula.cap is not None:
        # Nobody can write it, as the language refuses a bare number beside money; it asks whether a test names the cap.
        more = Arithmetic(ArithmeticOperator.ADD, formula.cap, IntLiteral(1))
        yield "cap: one minor unit more", replace(formula, cap=more)


def _is_well_typed(mutant: Formula, symbols: Symbols) -> bool:
    """Return whether the type check lets it pass; what it refuses could never become a rule."""
    try:
        for expr in mutant.expressions:
            check(expr, symbols)
    except RuleLanguageError:
        return False
    return True


def _written(formula: Formula) -> object:
    used = frozenset[str]().union(*map(names_in, formula.expressions))
    values = frozenset((name, value) for name, value in formula.parameters.items() if name in used)
    return formula.condition, frozenset(formula.exceptions), formula.cap, values


def _all(formula: Formula, rule: CompiledRule, vocabulary: Vocabulary) -> Iterator[Mutant]:
    for told, expr in _variants(formula.condition, vocabulary):
        yield f"condition: {told}", replace(formula, condition=expr)
    yield "condition: negated", replace(formula, condition=_negation(formula.condition))
    for index, exception in enumerate(formula.exceptions):
        others = (*formula.exceptions[:index], *formula.exceptions[index + 1 :])
        yield f"exception {index + 1}: left out", replace(formula, exceptions=others)
        for told, expr in (*_variants(exception, vocabulary), ("negated", _negation(exception))):
            changed = (*formula.exceptions[:index], expr, *formula.exceptions[index + 1 :])
            yield f"exception {index + 1}: {told}", replace(formula, exceptions=changed)
    if formula.cap is not None:
        for told, expr in _variants(formula.cap, vocabulary):
            yield f"cap: {told}", replace(formula, cap=expr)
    for name, param in rule.rule.params.items():
        for told, value in _other_values(param, formula.parameters[PARAM_PREFIX + name]):
            changed_values = {**formula.parameters, PARAM_PREFIX + name: value}
            yield f"parameter {name}: {told}", replace(formula, parameters=changed_values)


def _other_values(param: Param, value: int) -> Iterator[tuple[str, int]]:
    # A millionth more per mile is no slip of the pen: a rate is off by one in the last place of its currency.
    step = micros_per_minor(param.currency) if isinstance(param, RateParam) else 1
    yield "one more", value + step
    yield "one less", value - step
    if 0 < abs(value) * 10 <= _MAX_PARAMETER:
        yield "ten times", value * 10
    if isinstance(param, MoneyParam | RateParam):
        units: int = 10 ** exponent(param.currency)
        if units > 1:
            yield "major units for minor units", value // units


def _negation(expr: Expr) -> Expr:
    return expr.operand if isinstance(expr, Not) else Not(expr)


def _variants(expr: Expr, vocabulary: Vocabulary) -> Iterator[tuple[str, Expr]]:
    """Yield the tree with one change, anywhere in it."""
    yield from _changes(expr, vocabulary)
    match expr:
        case And(operands) | Or(operands):
            for index, operand in enumerate(operands):
                for told, changed in _variants(operand, vocabulary):
                    yield told, type(expr)((*operands[:index], changed, *operands[index + 1 :]), expr.position)
        case Not(operand):
            yield from ((told, Not(changed)) for told, changed in _variants(operand, vocabulary))
        case Negate(operand):
            yield from ((told, Negate(changed)) for told, changed in _variants(operand, vocabulary))
        case Comparison(relation, left, right):
            yield from ((told, Comparison(relation, changed, right)) for told, changed in _variants(left, vocabulary))
            yield from ((told, Comparison(relation, left, changed)) for told, changed in _variants(right, vocabulary))
        case Arithmetic(operator, left, right):
            yield from ((told, Arithmetic(operator, changed, right)) for told, changed in _variants(left, vocabulary))
            yield from ((told, Arithmetic(operator, left, changed)) for told, changed in _variants(right, vocabulary))
        case Conditional(condition, then, otherwise):
            for told, changed in _variants(condition, vocabulary):
                yield told, Conditional(changed, then, otherwise)
            for told, changed in _variants(then, vocabulary):
                yield told, Conditional(condition, changed, otherwise)
            for told, changed in _variants(otherwise, vocabulary):
                yield told, Conditional(condition, then, changed)
        case _:
            pass


def _changes(expr: Expr, vocabulary: Vocabulary) -> Iterator[tuple[str, Expr]]:
    """Yield the changes of this very node."""
    match expr:
        case And(operands) | Or(operands):
            yield from _without_one(expr, operands)
            other = Or if isinstance(expr, And) else And
            yield ("|| for &&" if isinstance(expr, And) else "&& for ||"), other(operands)
            for index, operand in enumerate(operands):
                changed = (*operands[:index], _negation(operand), *operands[index + 1 :])
                yield "one part negated", type(expr)(changed)
        case Comparison(relation, left, right):
            for flipped in _FLIPS[relation]:
                yield f"{flipped} for {relation}", Comparison(flipped, left, right)
            yield from _enum_swaps(expr, vocabulary)
        case Membership(operand, items) if len(items) > 1:
            for index, item in enumerate(items):
                yield f"without {item.value}", Membership(operand, (*items[:index], *items[index + 1 :]))
        case Arithmetic(operator, left, right):
            for swapped in _SWAPS.get(operator, ()):
                yield f"{swapped} for {operator}", Arithmetic(swapped, left, right)
        case IntLiteral(value) if value:
            yield f"{value + 1} for {value}", IntLiteral(value + 1)
            yield f"{value - 1} for {value}", IntLiteral(value - 1)
        case _:
            pass


def _without_one(expr: And | Or, operands: Sequence[Expr]) -> Iterator[tuple[str, Expr]]:
    for index in range(len(operands)):
        rest = (*operands[:index], *operands[index + 1 :])
        yield f"part {index + 1} left out", rest[0] if len(rest) == 1 else type(expr)(rest)


def _enum_swaps(expr: Comparison, vocabulary: Vocabulary) -> Iterator[tuple[str, Expr]]:
    match expr:
        case Comparison(relation, Name(name), StringLiteral(value)):
            if other := _next_value(name, value, vocabulary):
                yield f"{other} for {value}", Comparison(relation, expr.left, StringLiteral(other))
        case Comparison(relation, StringLiteral(value), Name(name)):
            if other := _next_value(name, value, vocabulary):
                yield f"{other} for {value}", Comparison(relation, StringLiteral(other), expr.right)
        case _:
            pass


def _next_value(name: str, value: str, vocabulary: Vocabulary) -> str | None:
    fact = vocabulary.facts.get(name)
    if not isinstance(fact, EnumFact):
        return None
    return next((other for other in fact.values if other != value), None)
