"""Thresholds: a number of a clause, the fact that it is compared with, and how."""

import re
from collections.abc import Iterable

from rulegen_dagster.domain.vocabulary import IntFact, MoneyFact, Vocabulary
from rulegen_dagster.providers.pattern_language import group_of, parts_of
from rulegen_dagster.providers.pattern_model import Abstention, Comparator, Threshold
from rulegen_dagster.providers.pattern_quantities import Unit
from rulegen_dagster.providers.pattern_roles import FLIGHT_HOURS, amount_of, count_of
from rulegen_dagster.providers.pattern_words import Marked, read


def take(working: str, match: re.Match[str]) -> str:
    """Return the working text with what a match has read marked so."""
    for start, end in parts_of(match):
        working = read(working, start, end)
    return working


def compared(
    working: str, comparators: Iterable[tuple[Comparator, re.Pattern[str]]]
) -> tuple[Comparator, re.Match[str]] | None:
    """Return the first comparison that a text makes."""
    for comparator, pattern in comparators:
        if match := pattern.search(working):
            return comparator, match
    return None


def money_threshold(
    marked: Marked, match: re.Match[str], comparator: Comparator, vocabulary: Vocabulary, *, span: tuple[int, int]
) -> Threshold | Abstention:
    """Return the threshold of a comparison with an amount; `span` is where a period may stand that it is counted by."""
    start = match.start(group_of(match, "number") or 0)
    money = next(item for item in marked.money if item.start == start)
    facts = _counted_by(marked, span, vocabulary, None)
    if len(facts) > 1:
        return Abstention(reason="several_periods_in_one_clause")
    fact = next(iter(facts), amount_of(vocabulary))
    if fact is None:
        return Abstention(reason="fact_not_in_vocabulary", detail="no amount of money")
    if money.minor is None:
        return Abstention(reason="amount_format_unclear")
    return Threshold(
        fact=fact,
        comparator=comparator,
        value=money.minor,
        unit="minor",
        currency=money.currency,
        quote=_quote(marked, match, start),
    )


def count_threshold(
    marked: Marked, match: re.Match[str], comparator: Comparator, vocabulary: Vocabulary
) -> Threshold | Abstention:
    """Return the threshold of a comparison with days or hours."""
    start = match.start(group_of(match, "number") or 0)
    duration = next(item for item in marked.durations if item.start == start)
    facts = _counted_by(marked, (0, len(marked.text)), vocabulary, duration.unit.value)
    if len(facts) > 1:
        return Abstention(reason="several_periods_in_one_clause")
    fact = next(iter(facts), None if marked.periods else count_of(vocabulary, duration.unit.value))
    if fact is None:
        return Abstention(reason="fact_not_in_vocabulary", detail=f"no count of {duration.unit.value} like this")
    return Threshold(
        fact=fact,
        comparator=comparator,
        value=duration.value,
        unit=duration.unit.value,
        quote=_quote(marked, match, start),
    )


def longer_flight(marked: Marked, match: re.Match[str]) -> Threshold:
    """Return the threshold of a match of a language's `longer_flight`."""
    start = match.start(group_of(match, "hours") or 0)
    hours = next(item for item in marked.durations if item.start == start)
    return Threshold(
        fact=FLIGHT_HOURS,
        comparator=Comparator.ABOVE,
        value=hours.value,
        unit=Unit.HOURS.value,
        quote=marked.text[hours.start : hours.end],
    )


def _counted_by(marked: Marked, span: tuple[int, int], vocabulary: Vocabulary, unit: str | None) -> set[str]:
    """Return the facts that count amounts, or days or hours, by the periods of a stretch."""
    return {
        fact
        for item in marked.periods
        if span[0] <= item.start < span[1]
        for fact in item.facts
        if _counts(vocabulary, fact, unit)
    }


def _counts(vocabulary: Vocabulary, name: str, unit: str | None) -> bool:
    fact = vocabulary.facts[name]
    return isinstance(fact, MoneyFact) if unit is None else isinstance(fact, IntFact) and fact.unit == unit


def _quote(marked: Marked, match: re.Match[str], number: int) -> str:
    """Return the words of a comparison, or of its part with the number; never across the end of a lead."""
    start, end = next(part for part in (*parts_of(match), match.span()) if part[0] <= number < part[1])
    if start < marked.own_start < end:
        start, end = match.span(group_of(match, "number") or 0)
    return marked.text[start:end].strip()
