"""The numbers of a clause: rates, deadlines, limits, shares and thresholds, each with the words that state it."""

import re
from functools import lru_cache

from rulegen_dagster.domain.clause import Clause, ClauseKind
from rulegen_dagster.domain.vocabulary import Vocabulary
from rulegen_dagster.providers.pattern_language import READ, SIGNS, Language, group_of, sentence_pattern
from rulegen_dagster.providers.pattern_model import Abstention, Comparator, Demand, Rate, Share, Threshold
from rulegen_dagster.providers.pattern_quantities import Unit
from rulegen_dagster.providers.pattern_roles import FLIGHT_HOURS, Event, amount_of, count_of, events_of, measures_of
from rulegen_dagster.providers.pattern_thresholds import (
    compared,
    count_threshold,
    longer_flight,
    money_threshold,
    take,
)
from rulegen_dagster.providers.pattern_words import Marked, read

_BELOW = (Comparator.BELOW, Comparator.AT_MOST)
_DAYS_OF_A_WEEK = 7
_MONEY = "(?P<number><MONEY>)"
_COUNT = "(?P<number><DAYS>|<HOURS>)"
_SHARE = "(?P<number><PERCENT>) (?P<whole><WHOLE>)"


class NumberReader:
    """Reads the numbers of one clause, and keeps which of its words are read; the first obstacle names the reason."""

    def __init__(self, clause: Clause, marked: Marked, language: Language, vocabulary: Vocabulary) -> None:
        """Begin with nothing read."""
        self._clause = clause
        self._marked = marked
        self._language = language
        self._vocabulary = vocabulary
        self._working = marked.working
        self._demands: list[Demand] = []
        self._threshold: Threshold | None = None
        self._share: Share | None = None
        self._rate: Rate | None = None
        self._abstention: Abstention | None = None

    def _abstain(self, reason: str, detail: str = "") -> None:
        self._abstention = self._abstention or Abstention(reason=reason, detail=detail)

    def _take(self, match: re.Match[str]) -> None:
        self._working = take(self._working, match)

    def _read_rate(self) -> None:
        measures = measures_of(self._vocabulary)
        match = _filled(self._language.rate, units=tuple(measures)).search(self._working) if measures else None
        if match is not None:
            words = " ".join(match[group_of(match, "unit") or 0].lower().split())
        elif match := self._language.flat_rate.search(self._working):
            words = self._marked.text[slice(*match.span(group_of(match, "period") or 0))].lower().split()[-1]
        else:
            return
        start = match.start(group_of(match, "money") or 0)
        money = next(item for item in self._marked.money if item.start == start)
        measure = measures.get(words)
        self._demands.append(Demand.RATE)
        if measure is None:
            self._abstain("rate_not_modelled", f"no count of {words[:40]}")
        else:
            fact, unit = measure
            quote = self._marked.text[start : match.end()].strip()
            self._rate = Rate(measure=fact, per=unit, micros=money.micros, currency=money.currency, quote=quote)
        self._take(match)

    def _read_deadlines(self) -> None:
        language = self._language
        for event in events_of(self._vocabulary):
            action = language.actions.get(event.action)
            if action is None:
                continue
            words = _any_article(event, language)
            in_time, late = (language.ahead, language.not_ahead) if event.is_before else (
                language.in_time, language.too_late
            )  # fmt: skip
            comparator = Comparator.BELOW if event.is_before else Comparator.ABOVE
            if match := _filled(in_time, action=action, event=words).search(self._working):
                self._demands.append(Demand.DEADLINE)
                self._read_deadline(match, event.fact, comparator)
            elif match := _filled(late, action=action, event=words).search(self._working):
                self._read_deadline(match, event.fact, comparator)
        if match := language.older_than.search(self._working):
            ages = [event.fact for event in events_of(self._vocabulary) if event.words in ("expense", "ausgabe")]
            if ages:
                self._read_deadline(match, ages[0], Comparator.ABOVE)

    def _read_deadline(self, match: re.Match[str], fact: str, comparator: Comparator) -> None:
        self._take(match)
        start = match.start(group_of(match, "days") or 0)
        duration = next(item for item in self._marked.durations if item.start == start)
        if duration.is_business or duration.unit not in (Unit.DAYS, Unit.WEEKS):
            unit = "business_days" if duration.is_business else duration.unit.value
            self._abstain(f"{unit}_not_modelled", "facts count calendar days")
            return
        self._set_threshold(
            Threshold(
                fact=fact,
                comparator=comparator,
                value=duration.value,
                unit=duration.unit.value,
                factor=_DAYS_OF_A_WEEK if duration.unit is Unit.WEEKS else 1,
                quote=self._marked.text[duration.start : duration.end],
            )
        )

    def _read_thresholds(self) -> None:
        if self._clause.kind is ClauseKind.TABLE_ROW or self._clause.lead:
            self._read_inherited_limit()
        self._read_shares()
        if match := self._language.stay_below.search(self._working):
            self._demands.append(Demand.LIMIT)
            below = group_of(match, "below") is not None
            self._set_money_threshold(match, Comparator.AT_LEAST if below else Comparator.ABOVE)
        for comparator, pattern in self._language.comparators(_MONEY):
            if match := pattern.search(self._working):
                self._set_money_threshold(match, self._passed(comparator))
        knows_flights = FLIGHT_HOURS in self._vocabulary.facts
        if knows_flights and (match := self._language.longer_flight.search(self._working)):
            self._read_longer_flight(match)
        self._read_counts()

    def _passed(self, comparator: Comparator) -> Comparator:
        """Return by what a comparison is passed: a limit by what lies above it."""
        if comparator is Comparator.AT_MOST and set(self._demands) <= {Demand.PERMISSION}:
            self._demands.append(Demand.LIMIT)
            return Comparator.ABOVE
        return comparator

    def _read_shares(self) -> None:
        """Read a percentage of a whole, or of the expense itself where that share is what is paid."""
        amount = amount_of(self._vocabulary)
        if not self._marked.percentages or amount is None:
            return
        whole, comparator = amount, None
        if found := compared(self._working, self._language.comparators(_SHARE)):
            comparator, match = self._passed(found[0]), found[1]
            start, stated = match.start(group_of(match, "whole") or 0), group_of(match, "number") or 0
            whole = next(item.fact for item in self._marked.wholes if item.start == start)
        elif (own := self._language.share.search(self._working)) and set(self._demands) == {Demand.PERMISSION}:
            match, stated = own, group_of(own, "percent") or 0
            self._demands.append(Demand.LIMIT)
        else:
            return
        percentage = next(item for item in self._marked.percentages if item.start == match.start(stated))
        self._take(match)
        if percentage.value is None:
            self._abstain("percentage_not_modelled", "not a whole number from 1 to 100")
        elif comparator in _BELOW:
            self._abstain("threshold_boundary_unclear", "the demand holds below a share")
        elif whole.partition(".")[0] != amount.partition(".")[0]:
            # A single expense is no part of an allowance for a whole day.
            self._abstain("percentage_not_modelled", f"{whole} is not counted like {amount}")
        else:
            quote = self._marked.text[percentage.start : percentage.end]
            self._share = Share(part=amount, whole=whole, percent=percentage.value, comparator=comparator, quote=quote)

    def _read_longer_flight(self, match: re.Match[str]) -> None:
        self._set_threshold(longer_flight(self._marked, match))
        # The flight itself stays: it is the category that the threshold belongs to.
        signs = [item for item in self._marked.values if match.start() <= item.start < match.end()]
        start = signs[-1].end if signs else match.start()
        self._working = read(self._working, start, match.end())

    def _read_counts(self) -> None:
        """Read days or hours that a fact of the vocabulary counts, such as the days of a request."""
        if not any(count_of(self._vocabulary, unit) for unit in ("days", "hours")):
            return
        found = compared(self._working, self._language.comparators(_COUNT))
        if found is None and (match := self._language.count_limits.search(self._working)):
            found = (Comparator.AT_MOST, match)
            self._demands.append(Demand.PERMISSION)
        if found is None:
            return
        comparator, match = self._passed(found[0]), found[1]
        self._take(match)
        self._set_or_abstain(count_threshold(self._marked, match, comparator, self._vocabulary), comparator)

    def _read_inherited_limit(self) -> None:
        """Read an amount that stands alone in a row or list item, under a header or lead that calls it a limit."""
        match = self._language.inherited_limit.search(self._working, 0, self._marked.own_start)
        money = [item for item in self._marked.money if item.start >= self._marked.own_start]
        if match is None or len(money) != 1 or self._demands:
            return
        own = re.compile(f"(?P<number_0>{SIGNS['MONEY']}+)").search(self._working, self._marked.own_start)
        if own is None:
            return
        self._demands.append(Demand.LIMIT)
        self._take(match)
        self._set_money_threshold(own, Comparator.ABOVE)

    def _set_money_threshold(self, match: re.Match[str], comparator: Comparator) -> None:
        self._take(match)
        span = (0, len(self._marked.text))
        self._set_or_abstain(money_threshold(self._marked, match, comparator, self._vocabulary, span=span), comparator)

    def _set_or_abstain(self, found: Threshold | Abstention, comparator: Comparator) -> None:
        if comparator in _BELOW:
            self._abstain("threshold_boundary_unclear", "the demand holds below a number")
        elif isinstance(found, Abstention):
            self._abstain(found.reason, found.detail)
        else:
            self._working = self._working.replace(SIGNS["PERIOD"], READ)
            self._set_threshold(found)

    def _set_threshold(self, threshold: Threshold) -> None:
        if self._threshold is not None:
            both_money = threshold.currency is not None and self._threshold.currency is not None
            self._abstain("several_amounts_in_one_clause" if both_money else "several_conditions_in_one_clause")
        self._threshold = threshold


def _any_article(event: Event, language: Language) -> str:
    """Return the pattern of an event's words, in which one article stands for each other one."""
    written, pattern = language.articles
    return " ".join(pattern if word == written else re.escape(word) for word in event.words.split())


@lru_cache(maxsize=512)
def _filled(template: str, *, action: str = "", event: str = "", units: tuple[str, ...] = ()) -> re.Pattern[str]:
    longest_first = sorted(units, key=lambda unit: (-len(unit), unit))
    spelled = "|".join(" ".join(map(re.escape, unit.split())) for unit in longest_first)
    return sentence_pattern(template.replace("{action}", action).replace("{event}", event).replace("{units}", spelled))
