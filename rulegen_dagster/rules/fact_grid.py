"""The fact grid: facts at which rules can change their minds, so that questions about them need no theorem prover.

For each fact that a formula reads the grid takes the values beside which the answer may differ: both values of a bool,
each enum value that is named and one that is not, and for a number its bounds, its default and each threshold with its
two neighbours. Thresholds are found by bisection of each comparison, which is exact for what is linear in the fact.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Final

from rulegen_dagster.domain.errors import RuleLanguageError
from rulegen_dagster.domain.vocabulary import BoolFact, EnumFact, FactValue, IntFact, MoneyFact, Vocabulary
from rulegen_dagster.rules.evaluate import evaluate
from rulegen_dagster.rules.expression import (
    Arithmetic,
    ArithmeticOperator,
    Comparison,
    Expr,
    Membership,
    Name,
    StringLiteral,
    names_in,
    walk,
)
from rulegen_dagster.rules.formula import Formula

MAX_POINTS: Final = 20_000
"""Most points of one grid where nothing else is said; a larger one is thinned, and says so."""


@dataclass(frozen=True, kw_only=True)
class FactGrid:
    """The points for some formulas.

    `complete` is false where values were left out to stay within the limit, and where a formula takes a remainder: it
    changes its answer over and over, away from every threshold.
    """

    values: Mapping[str, tuple[FactValue, ...]]
    complete: bool

    def points(self) -> Iterator[dict[str, FactValue]]:
        """Yield each point: a value for every fact that a formula reads, and for no other."""
        names = tuple(self.values)
        for combination in product(*self.values.values()):
            yield dict(zip(names, combination, strict=True))


def fact_grid(formulas: Sequence[Formula], vocabulary: Vocabulary, *, max_points: int = MAX_POINTS) -> FactGrid:
    """Return the grid of all facts that the formulas read, with about `max_points` points at most.

    A fact keeps two values at least, so formulas that read many facts may go beyond: by a factor that the limits of
    the rule language bound.
    """
    names = sorted(frozenset[str]().union(*(formula.facts for formula in formulas)))
    defaults = dict(vocabulary.defaults())
    values = {name: _values(name, formulas, vocabulary, defaults) for name in names}
    thinned = dict(values)
    while prod(len(found) for found in thinned.values()) > max_points:
        # The longest list loses its every other value, its ends stay.
        longest = max(thinned, key=lambda name: len(thinned[name]))
        if len(thinned[longest]) <= 2:
            break
        thinned[longest] = (*thinned[longest][:-1:2], thinned[longest][-1])
    return FactGrid(values=thinned, complete=thinned == values and not any(map(_takes_remainder, formulas)))


def _takes_remainder(formula: Formula) -> bool:
    return any(
        isinstance(node, Arithmetic) and node.operator is ArithmeticOperator.REMAINDER
        for expr in formula.expressions
        for node in walk(expr)
    )


def _values(
    name: str, formulas: Sequence[Formula], vocabulary: Vocabulary, defaults: Mapping[str, FactValue]
) -> tuple[FactValue, ...]:
    match vocabulary.facts[name]:
        case BoolFact():
            return (False, True)
        case EnumFact(values=known, default=default):
            named = _named_values(name, formulas)
            used = [value for value in known if value in named]
            # One that nobody names stands for all the others: the default where it is one of them.
            rest = [value for value in (default, *known) if value not in used]
            return (*used, *rest[:1])
        case IntFact(min=low, max=high, default=default) | MoneyFact(min=low, max=high, default=default):
            found = {low, high, default}
            for threshold in _thresholds(name, low, high, formulas, defaults):
                found.update({threshold - 1, threshold, threshold + 1})
            return tuple(sorted(value for value in found if low <= value <= high))


def _named_values(name: str, formulas: Sequence[Formula]) -> frozenset[str]:
    """Return the values of an enum fact that some formula names."""
    named: set[str] = set()
    for formula in formulas:
        for expr in formula.expressions if name in formula.facts else ():
            for node in walk(expr):
                match node:
                    case Comparison(_, Name(fact), StringLiteral(value)) if fact == name:
                        named.add(value)
                    case Comparison(_, StringLiteral(value), Name(fact)) if fact == name:
                        named.add(value)
                    case Membership(Name(fact), items) if fact == name:
                        named.update(item.value for item in items if isinstance(item, StringLiteral))
                    case _:
                        pass
    return frozenset(named)


def _thresholds(
    name: str, low: int, high: int, formulas: Sequence[Formula], defaults: Mapping[str, FactValue]
) -> Iterator[int]:
    """Yield where a comparison that reads the fact changes its answer, with the other facts at their defaults."""
    for formula in formulas:
        if name not in formula.facts:
            continue
        known = {**{fact: defaults[fact] for fact in formula.facts}, **formula.parameters}
        for expr in formula.expressions:
            for node in walk(expr):
                match node:
                    case Comparison() if name in names_in(node):
                        yield from _flips(node, name, low, high, known)
                    case Membership(items=items) if name in names_in(node):
                        yield from (item.value for item in items if not isinstance(item, StringLiteral))
                    case _:
                        pass


def _flips(node: Comparison, name: str, low: int, high: int, known: Mapping[str, FactValue]) -> Iterator[int]:
    def side(value: int) -> int:
        """Return on which side of equality the comparison is, as -1, 0 or 1."""
        facts = {**known, name: value}
        left, right = _number(node.left, facts), _number(node.right, facts)
        return (left > right) - (left < right)

    try:
        ends = side(low), side(high)
        if ends[0] == ends[1]:
            return
        below, above = low, high
        while above - below > 1:
            middle = (below + above) // 2
            if side(middle) == ends[0]:
                below = middle
            else:
                above = middle
        yield above
    except RuleLanguageError:
        # A product that leaves 64 bits at an end of the range is not reached by any rule that passed the type check.
        return


def _number(expr: Expr, facts: Mapping[str, FactValue]) -> int:
    value = evaluate(expr, facts)
    return int(value) if not isinstance(value, str) else 0
