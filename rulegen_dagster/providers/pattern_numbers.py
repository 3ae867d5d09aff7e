"""The numbers of a clause: rates, deadlines, limits and thresholds, each with the words that state it."""

import re

from rulegen_dagster.domain.clause import Clause, ClauseKind
from rulegen_dagster.providers import pattern_sentences as sentences
from rulegen_dagster.providers.pattern_exceptions import longer_flight
from rulegen_dagster.providers.pattern_model import (
    AMOUNT,
    DAYS_AHEAD,
    DAYS_SINCE_EXPENSE,
    DAYS_SINCE_TRIP,
    KILOMETRES,
    MILES,
    Abstention,
    Comparator,
    Demand,
    Rate,
    Threshold,
)
from rulegen_dagster.providers.pattern_quantities import Money, Unit
from rulegen_dagster.providers.pattern_words import READ, SIGNS, Marked, read

_REFUSED_BELOW = (Comparator.BELOW, Comparator.AT_MOST)
_DEADLINES = (
    (sentences.SUBMITTED_SINCE_EXPENSE, DAYS_SINCE_EXPENSE, Comparator.ABOVE),
    (sentences.SUBMITTED_SINCE_TRIP, DAYS_SINCE_TRIP, Comparator.ABOVE),
    (sentences.BOOKED_AHEAD, DAYS_AHEAD, Comparator.BELOW),
)
_LATE = (
    (sentences.LATER_THAN_TRIP, DAYS_SINCE_TRIP, Comparator.ABOVE),
    (sentences.OLDER_THAN, DAYS_SINCE_EXPENSE, Comparator.ABOVE),
    (sentences.BOOKED_LATE, DAYS_AHEAD, Comparator.BELOW),
)


class NumberReader:
    """Reads the numbers of one clause, and keeps which of its words are read; the first obstacle names the reason."""

    def __init__(self, clause: Clause, marked: Marked) -> None:
        """Begin with nothing read."""
        self._clause = clause
        self._marked = marked
        self._working = marked.working
        self._demands: list[Demand] = []
        self._threshold: Threshold | None = None
        self._rate: Rate | None = None
        self._abstention: Abstention | None = None

    def _abstain(self, reason: str, detail: str = "") -> None:
        self._abstention = self._abstention or Abstention(reason=reason, detail=detail)

    def _take(self, match: re.Match[str]) -> None:
        self._working = read(self._working, match.start(), match.end())

    def _read_rate(self) -> None:
        match = sentences.RATE.search(self._working)
        if match is None:
            return
        group = "rate" if match["rate"] else "rate2"
        money = next(item for item in self._marked.money if item.start == match.start(group))
        in_miles = (match["unit"] or match["unit2"]).lower().startswith("mile")
        self._rate = Rate(
            distance_fact=MILES if in_miles else KILOMETRES,
            per="mile" if in_miles else "km",
            micros=money.micros,
            currency=money.currency,
            quote=self._marked.text[match.start(group) : match.end()],
        )
        self._demands.append(Demand.RATE)
        self._take(match)

    def _read_deadlines(self) -> None:
        for pattern, fact, comparator in _DEADLINES:
            if match := pattern.search(self._working):
                self._demands.append(Demand.DEADLINE)
                self._set_threshold(self._days(match, fact, comparator))
                self._take(match)
        for pattern, fact, comparator in _LATE:
            if match := pattern.search(self._working):
                self._set_threshold(self._days(match, fact, comparator))
                self._take(match)

    def _days(self, match: re.Match[str], fact: str, comparator: Comparator) -> Threshold | None:
        group = next(name for name, found in match.groupdict().items() if found)
        duration = next(item for item in self._marked.durations if item.start == match.start(group))
        if duration.is_business or duration.unit is not Unit.DAYS:
            unit = "business_days" if duration.is_business else duration.unit.value
            self._abstain(f"{unit}_not_modelled", "facts count calendar days")
            return None
        return Threshold(
            fact=fact,
            comparator=comparator,
            value=duration.value,
            unit=duration.unit.value,
            quote=self._marked.text[duration.start : duration.end],
        )

    def _read_thresholds(self) -> None:
        if self._clause.kind is ClauseKind.TABLE_ROW or self._clause.lead:
            self._read_inherited_limit()
        for comparator, pattern in sentences.MONEY_COMPARATORS:
            if match := pattern.search(self._working):
                group = next(name for name, found in match.groupdict().items() if found)
                money = next(item for item in self._marked.money if item.start == match.start(group))
                is_limit = comparator is Comparator.AT_MOST and set(self._demands) <= {Demand.PERMISSION}
                if is_limit:
                    self._demands.append(Demand.LIMIT)
                # A limit is passed by what lies above it.
                passed = Comparator.ABOVE if is_limit else comparator
                self._set_threshold(self._money_threshold(money, passed, match.start(), match.end()))
                self._take(match)
        if match := sentences.LONGER_FLIGHT.search(self._working):
            self._set_threshold(longer_flight(self._marked, match))
            # The flight itself stays: it is the category that the threshold belongs to.
            signs = [item for item in self._marked.values if match.start() <= item.start < match.end()]
            start = signs[-1].end if signs else match.start()
            self._working = read(self._working, start, match.end())

    def _read_inherited_limit(self) -> None:
        """Read an amount that stands alone in a row or list item, under a header or lead that calls it a limit."""
        match = sentences.INHERITED_LIMIT.search(self._working, 0, self._marked.own_start)
        money = [item for item in self._marked.money if item.start >= self._marked.own_start]
        if match is None or len(money) != 1 or self._demands:
            return
        self._demands.append(Demand.LIMIT)
        self._set_threshold(self._money_threshold(money[0], Comparator.ABOVE, money[0].start, money[0].end))
        self._take(match)
        self._working = read(self._working, money[0].start, money[0].end)

    def _money_threshold(self, money: Money, comparator: Comparator, start: int, end: int) -> Threshold | None:
        if comparator in _REFUSED_BELOW:
            self._abstain("threshold_boundary_unclear", "the demand holds below an amount")
            return None
        facts = {item.fact for item in self._marked.periods}
        if len(facts) > 1:
            self._abstain("several_periods_in_one_clause")
            return None
        if money.minor is None:
            self._abstain("amount_format_unclear")
            return None
        self._working = self._working.replace(SIGNS["PERIOD"], READ)
        return Threshold(
            fact=next(iter(facts), AMOUNT),
            comparator=comparator,
            value=money.minor,
            unit="minor",
            currency=money.currency,
            quote=self._marked.text[start:end].strip(),
        )

    def _set_threshold(self, threshold: Threshold | None) -> None:
        if threshold is None:
            return
        if self._threshold is not None:
            both_money = threshold.currency is not None and self._threshold.currency is not None
            self._abstain(
                "several_amounts_in_one_clause" if both_money else "several_conditions_in_one_clause",
            )
        self._threshold = threshold
