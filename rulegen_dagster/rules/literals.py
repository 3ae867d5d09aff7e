"""Numbers that are written into a condition: each must be stated by the clause, or be arithmetic of the language."""

from collections.abc import Iterator
from decimal import Decimal
from typing import Final

from rulegen_dagster.domain.money import micros_per_minor
from rulegen_dagster.domain.vocabulary import IntFact
from rulegen_dagster.rules.expression import (
    Arithmetic,
    ArithmeticOperator,
    Comparison,
    Expr,
    IntLiteral,
    Membership,
    Name,
    walk,
)
from rulegen_dagster.rules.quantities import states_count
from rulegen_dagster.rules.symbols import Kind, Symbols
from rulegen_dagster.rules.typecheck import check

# Emptiness, one step, percent.
_STRUCTURAL: Final = frozenset({0, 1, 100})
# Days of a week, months of a year, hours of a day, minutes of an hour, metres of a kilometre. Months have no length.
_CONVERSIONS: Final = frozenset({7, 12, 24, 60, 1000})


def unstated_literals(expr: Expr, words: str, symbols: Symbols) -> Iterator[IntLiteral]:
    """Yield the numbers of a checked expression that these words do not state.

    A number in a parameter stands in that parameter's quote; one in a condition would escape this check. One that is
    compared with a fact that has a unit may stand there in another unit of its kind. Free are 0, 1, 100, the divisor of
    a rate, and a factor between units where it converts a count and not an amount.
    """
    free = _STRUCTURAL | ({micros_per_minor(symbols.currency)} if symbols.currency else frozenset())
    conversions: set[int] = set()
    units: dict[int, str] = {}
    for node in walk(expr):
        match node:
            case Arithmetic(ArithmeticOperator.MULTIPLY | ArithmeticOperator.DIVIDE, left, right):
                for literal, other in ((left, right), (right, left)):
                    if isinstance(literal, IntLiteral) and check(other, symbols).kind is Kind.INT:
                        conversions.add(literal.position)
            case Comparison(_, left, right):
                units |= _units_of((left,), right, symbols) | _units_of((right,), left, symbols)
            case Membership(operand, items):
                units |= _units_of(items, operand, symbols)
            case IntLiteral(value, position):
                if value in free or (position in conversions and value in _CONVERSIONS):
                    continue
                if not states_count(words, Decimal(value), units.get(position)):
                    yield node


def _units_of(items: tuple[Expr, ...], fact: Expr, symbols: Symbols) -> dict[int, str]:
    """Return the unit of each number that is compared with a fact, by its position."""
    known = symbols.vocabulary.facts.get(fact.name) if isinstance(fact, Name) else None
    if not isinstance(known, IntFact) or known.unit is None:
        return {}
    return {item.position: known.unit for item in items if isinstance(item, IntLiteral)}
