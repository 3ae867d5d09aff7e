"""Numbers that are written into a condition: each must be stated by the clause, or be arithmetic of the language."""

from collections.abc import Iterator
from decimal import Decimal
from typing import Final

from rulegen_dagster.domain.money import micros_per_minor
from rulegen_dagster.rules.expression import Arithmetic, ArithmeticOperator, Expr, IntLiteral, walk
from rulegen_dagster.rules.symbols import Kind, Symbols
from rulegen_dagster.rules.typecheck import check

# Emptiness, one step, percent.
_STRUCTURAL: Final = frozenset({0, 1, 100})
# Days of a week, months of a year, hours of a day, minutes of an hour, metres of a kilometre. Months have no length.
_CONVERSIONS: Final = frozenset({7, 12, 24, 60, 1000})


def unstated_literals(expr: Expr, stated: frozenset[Decimal], symbols: Symbols) -> Iterator[IntLiteral]:
    """Yield the numbers of a checked expression that the clause does not state.

    A number in a parameter stands in that parameter's quote; one in a condition would escape this check. Free are 0,
    1, 100, the divisor of a rate, and a factor between units where it converts a count and not an amount.
    """
    free = _STRUCTURAL | ({micros_per_minor(symbols.currency)} if symbols.currency else frozenset())
    conversions: set[int] = set()
    for node in walk(expr):
        match node:
            case Arithmetic(ArithmeticOperator.MULTIPLY | ArithmeticOperator.DIVIDE, left, right):
                for literal, other in ((left, right), (right, left)):
                    if isinstance(literal, IntLiteral) and check(other, symbols).kind is Kind.INT:
                        conversions.add(literal.position)
            case IntLiteral(value, position):
                converts = position in conversions and value in _CONVERSIONS
                if value not in free and not converts and value not in stated:
                    yield node
