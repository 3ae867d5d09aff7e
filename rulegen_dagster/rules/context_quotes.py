"""Quotes from the context: what of a rule may be grounded in another clause than its own.

A rule's own quote never is. An exception may quote a clause that retrieval found to belong to this one, in whole
sentences; a parameter may only where the clause points at the other one, and only for what it does not state itself:
the limit of the next sentence is no limit of this one. Which clauses belong together is decided by retrieval, from the
text alone; a draft can only choose among them.
"""

from collections.abc import Mapping
from decimal import Decimal

from rulegen_dagster.domain.clause import Clause, ClauseRole, ContextEntry
from rulegen_dagster.domain.money import exponent
from rulegen_dagster.domain.rule import IntParam, MoneyParam, Param, RateParam, Source
from rulegen_dagster.rules.grounding import QuoteProblem, ground_sentence, states_parameter, words_around
from rulegen_dagster.rules.quantities import Quantity, quantities_in, unit_of

_Measure = tuple[str | None, str | None]


def ground_exception_in_context(
    quote: str, clause_ordinal: int, context: Mapping[int, ContextEntry]
) -> Source | QuoteProblem:
    """Return where whole sentences of a context clause stand, or why they are no ground for an exception."""
    entry = context.get(clause_ordinal)
    if entry is None or not entry.relation.may_give_exceptions:
        return QuoteProblem.NOT_IN_CONTEXT
    return _ground(quote, entry.clause)


def ground_parameter_in_context(
    param: Param, clause_ordinal: int, clause: Clause, context: Mapping[int, ContextEntry]
) -> str | QuoteProblem:
    """Return the raw words of a parameter's quote in a context clause, or why they are no ground for it."""
    entry = context.get(clause_ordinal)
    if entry is None or not entry.relation.may_give_numbers:
        return QuoteProblem.NOT_IN_CONTEXT
    found = _ground(param.quote, entry.clause)
    if isinstance(found, QuoteProblem):
        return found
    if states_parameter(found.quote, param) and _competes(param, found.quote, words_around(clause)):
        return QuoteProblem.NUMBER_OF_ANOTHER_CLAUSE
    return found.quote


def _ground(quote: str, clause: Clause) -> Source | QuoteProblem:
    # What only informs or introduces decides nothing.
    if clause.role is ClauseRole.INFORMATIVE:
        return QuoteProblem.NOT_IN_CONTEXT
    return ground_sentence(quote, clause)


def _competes(param: Param, quote: str, own: str) -> bool:
    """Return whether the clause itself states a quantity of the kind that the parameter is taken from the quote as."""
    stated = {_measure(item) for item in quantities_in(own)}
    return any(
        dimension in (other, None) and per in (its, None)
        for dimension, per in _measures_of(param, quote)
        for other, its in stated
    )


def _measures_of(param: Param, quote: str) -> list[_Measure]:
    value, dimension = _value_of(param)
    found = [
        _measure(item)
        for item in quantities_in(quote)
        if value in item.readings and dimension in (None, item.dimension)
    ]
    return found or [(dimension, param.per if isinstance(param, RateParam) else None)]


def _value_of(param: Param) -> tuple[Decimal, str | None]:
    match param:
        case MoneyParam(minor=minor, currency=currency):
            return Decimal(minor).scaleb(-exponent(currency)), "money"
        case RateParam(micros=micros):
            return Decimal(micros).scaleb(-6), "money"
        case IntParam(value=value, unit=name):
            unit = unit_of(name)
            return Decimal(abs(value)) * (unit.factor if unit else 1), unit.dimension if unit else None


def _measure(quantity: Quantity) -> _Measure:
    # Per night and per day are one kind.
    return quantity.dimension, "time" if quantity.per == "nights" else quantity.per
