"""What a clause demands, read from its marks; an abstention with a typed reason where any word stays unread.

A clause is read only if each of its words is accounted for: as a mark, as part of a sentence pattern, or as one of a
short list of words that never narrow a rule. That costs coverage and buys the promise that nothing is guessed.
"""

from itertools import pairwise

from rulegen_dagster.domain.clause import Clause
from rulegen_dagster.domain.rule import Modality
from rulegen_dagster.domain.vocabulary import IntFact, MoneyFact, Vocabulary
from rulegen_dagster.providers.pattern_english import ENGLISH
from rulegen_dagster.providers.pattern_exceptions import (
    ExceptionPart,
    group_values,
    read_exception,
    split_exception,
    unread_words,
)
from rulegen_dagster.providers.pattern_german import GERMAN
from rulegen_dagster.providers.pattern_language import READ, SIGNS, Language, group_of, language_of
from rulegen_dagster.providers.pattern_model import (
    Abstention,
    Comparator,
    Demand,
    ExceptionReading,
    FactIs,
    Reading,
    Threshold,
)
from rulegen_dagster.providers.pattern_numbers import NumberReader
from rulegen_dagster.providers.pattern_roles import FLIGHT_HOURS, category_of, is_paper, spent_of
from rulegen_dagster.providers.pattern_words import Marked, Named, mark, names_value, read, whole_text, without_markup

LANGUAGES = (ENGLISH, GERMAN)
_MAX_CLAUSE = 2000
_UNREAD_SIGNS = ("DAYS", "HOURS", "PERIOD", "APPROVER", "VALUE", "PAPER", "WHOLE")
_OPPOSITE = {Comparator.BELOW: Comparator.AT_LEAST, Comparator.AT_MOST: Comparator.ABOVE}
"""An exception below an amount is a demand from that amount on; the other way round it is none that facts can show."""


def read_clause(clause: Clause, vocabulary: Vocabulary) -> Reading | Abstention:
    """Read one clause; the same clause and vocabulary always give the same answer."""
    text = whole_text(clause)
    if len(text) > _MAX_CLAUSE:
        return Abstention(reason="clause_too_long", detail=f"more than {_MAX_CLAUSE} characters")
    if any("\ue000" <= character <= READ for character in text):
        return Abstention(reason="unread_words", detail="private characters")
    language = language_of(without_markup(text), LANGUAGES)
    if language is None:
        return Abstention(reason="language_not_modelled", detail="neither English nor German alone")
    return _ClauseReader(clause, mark(clause, vocabulary, language), language, vocabulary).read()


class _ClauseReader(NumberReader):
    """Reads one clause step by step; the first step that cannot go on names the reason."""

    def __init__(self, clause: Clause, marked: Marked, language: Language, vocabulary: Vocabulary) -> None:
        super().__init__(clause, marked, language, vocabulary)
        self._facts: tuple[FactIs, ...] = ()
        self._approval: Named | None = None
        self._paper: Named | None = None
        self._is_negated = False
        self._exceptions: tuple[ExceptionReading, ...] = ()
        self._modality_source = self._working

    def read(self) -> Reading | Abstention:
        part = split_exception(self._working, self._marked.own_start, self._language)
        if part:
            self._working = read(self._working, part.start, part.end)
        self._modality_source = self._working
        self._read_polite_words()
        self._read_rate()
        self._read_deadlines()
        self._read_demands()
        if self._is_negated and part is None:
            self._abstain("receipt_not_needed", "no decision says that something is not needed")
        self._read_thresholds()
        demand = self._demand()
        if demand is None:
            return Abstention(reason="no_pattern")
        self._read_values(part.start if part else None, part.end if part else 0)
        if part:
            self._read_exception(part, demand)
        self._check_rest(demand)
        reading = self._reading(demand)
        self._check_vocabulary(reading)
        return self._abstention or reading

    def _read_exception(self, part: ExceptionPart, demand: Demand) -> None:
        exception = read_exception(self._marked, part, self._language, self._vocabulary)
        if exception is None:
            self._abstain("condition_or_exception_not_modelled", "the exception is not understood")
        elif exception.threshold is None or exception.threshold.currency is None:
            self._exceptions = (exception,)
            if self._is_negated:
                self._abstain("receipt_not_needed", "no decision says that something is not needed")
        else:
            self._read_excepted_amount(exception.threshold, demand)

    def _read_excepted_amount(self, excepted: Threshold, demand: Demand) -> None:
        """Read "not needed unless above 25" and "needed unless below 25", which are the same threshold."""
        comparator: Comparator | None
        if self._is_negated:
            comparator = excepted.comparator if excepted.comparator in _OPPOSITE.values() else None
        else:
            comparator = _OPPOSITE.get(excepted.comparator)
        if comparator is None or demand in (Demand.LIMIT, Demand.RATE, Demand.PERMISSION) or self._share:
            self._abstain("condition_or_exception_not_modelled", "an exception by amount")
            return
        self._set_threshold(
            Threshold(
                fact=excepted.fact,
                comparator=comparator,
                value=excepted.value,
                unit=excepted.unit,
                currency=excepted.currency,
                quote=excepted.quote,
            )
        )

    def _read_polite_words(self) -> None:
        for pattern in (self._language.polite, self._language.ignored_before_value):
            for match in pattern.finditer(self._working):
                self._take(match)

    def _read_demands(self) -> None:
        language = self._language
        if match := language.approval.search(self._working):
            start = match.start(group_of(match, "approver") or 0)
            self._approval = next(item for item in self._marked.approvers if item.start == start)
            self._demands.append(Demand.APPROVAL)
            self._take(match)
        elif match := language.approval_by_nobody_named.search(self._working):
            self._abstain("approver_not_known")
            self._demands.append(Demand.APPROVAL)
            self._take(match)
        if match := language.no_paper.search(self._working):
            self._is_negated = True
            self._read_paper(match.start(), match.end())
            self._demands.append(Demand.RECEIPT)
            self._take(match)
        for demand, pattern in language.demands:
            if match := pattern.search(self._working):
                self._demands.append(demand)
                if demand is Demand.RECEIPT:
                    self._read_paper(match.start(), match.end())
                self._take(match)

    def _read_paper(self, start: int, end: int) -> None:
        self._paper = next(item for item in self._marked.papers if start <= item.start < end)

    def _demand(self) -> Demand | None:
        found = set(self._demands)
        if found & {Demand.LIMIT, Demand.RATE}:
            # "is reimbursed up to" and "is reimbursed at" are one demand each; with an "if" between them they are two.
            if Demand.PERMISSION in found and self._language.conditional.search(self._working):
                self._abstain("condition_or_exception_not_modelled", "a limit under a condition")
            found.discard(Demand.PERMISSION)
        if len(found) > 1:
            self._abstain("several_demands_in_one_clause")
        return next((demand for demand in Demand if demand in found), None)

    def _read_values(self, exception_start: int | None, exception_end: int) -> None:
        values = [
            item
            for item in self._marked.values
            if exception_start is None or not exception_start <= item.start < exception_end
        ]
        self._facts = group_values(values)
        several = [fact for fact in self._facts if len(fact.values) > 1]
        category = category_of(self._vocabulary)
        if several and len(self._facts) > 1 and (len(several) > 1 or several[0].fact == category):
            self._abstain("several_categories_in_one_clause")
        for previous, following in pairwise(values):
            between = self._working[previous.end : following.start]
            if (
                previous.fact == following.fact
                and previous.value != following.value
                and not self._only_connects(between)
            ):
                self._abstain("several_categories_in_one_clause")
            if previous.fact != following.fact and self._joins(between):
                self._abstain("several_categories_in_one_clause")
            if previous.fact == following.fact and self._only_connects(between):
                self._working = read(self._working, previous.end, following.start)
        for item in values:
            self._working = read(self._working, item.start, item.end)
        if (match := self._language.without_paper.search(self._working)) and Demand.REFUSAL in self._demands:
            paper = next(item for item in self._marked.papers if match.start() <= item.start < match.end())
            self._facts = (*self._facts, FactIs(fact=paper.fact, values=(False,)))
            self._take(match)

    def _check_rest(self, demand: Demand) -> None:
        """Abstain where anything in the clause is left that no step has read."""
        working = self._working
        if SIGNS["TIME"] in working:
            self._abstain("time_not_modelled")
        if SIGNS["MONEY"] in working:
            several = len(self._marked.money) > 1
            self._abstain("several_amounts_in_one_clause" if several else "threshold_boundary_unclear")
        if SIGNS["PERCENT"] in working:
            self._abstain("percentage_not_modelled", "of what is not said in words of the vocabulary")
        rest = [word for word in unread_words(working) if word.lower() not in self._language.fillers]
        narrowing = [word for word in rest if self._language.narrowing.fullmatch(word)]
        if narrowing or any(SIGNS[name] in working for name in _UNREAD_SIGNS):
            self._abstain("condition_or_exception_not_modelled", _detail(narrowing))
        if rest:
            self._abstain("unread_words", _detail(rest))
        self._check_scope(demand)

    def _check_scope(self, demand: Demand) -> None:
        """Abstain where it is not certain which expenses the clause is about."""
        threshold = self._threshold
        if threshold and threshold.currency and self._language.whole_claim.search(self._working):
            self._abstain("claim_or_expense_unclear")
        if threshold and threshold.fact == FLIGHT_HOURS and not self._is_about_flights():
            self._abstain("no_known_category")
        if demand in (Demand.LIMIT, Demand.RATE) and any(len(fact.values) > 1 for fact in self._facts):
            self._abstain("several_categories_in_one_clause", "one limit for each of them, or for all together")
        if any(not is_paper(fact.fact) for fact in self._facts):
            return
        if demand in (Demand.LIMIT, Demand.RATE, Demand.PERMISSION) and not self._counts_requests():
            self._abstain("no_known_category")
        if demand is Demand.REFUSAL and threshold is None and not self._facts:
            self._abstain("no_known_category")
        if any(names_value(heading, self._vocabulary, self._language) for heading in self._clause.heading_path):
            self._abstain("scope_set_by_heading")
        if not self._language.everything.search(self._marked.working):
            self._abstain("scope_unclear", "neither a category nor all expenses")

    def _counts_requests(self) -> bool:
        threshold = self._threshold
        return threshold is not None and threshold.currency is None and threshold.fact != FLIGHT_HOURS

    def _is_about_flights(self) -> bool:
        return any("airfare" in fact.values or fact.fact.startswith("flight.") for fact in self._facts)

    def _reading(self, demand: Demand) -> Reading:
        facts = self._facts
        if demand is Demand.RECEIPT and self._paper:
            facts = (*facts, FactIs(fact=self._paper.fact, values=(False,)))
        if demand is Demand.APPROVAL and self._approval:
            facts = (*facts, FactIs(fact=self._approval.fact, values=(False,)))
        misses_something = any(fact.values == (False,) for fact in facts)
        pays_a_share = self._share is not None and self._share.comparator is None
        words = self._approval and self._marked.text[self._approval.start : self._approval.end]
        has_number = self._threshold is not None or (self._share is not None and not pays_a_share)
        return Reading(
            demand=demand,
            modality=self._modality(demand),
            facts=facts,
            threshold=self._threshold,
            share=self._share,
            rate=self._rate,
            approver=words or None,
            spent=self._spent() if (misses_something or pays_a_share) and not has_number else (),
            exceptions=self._exceptions,
        )

    def _spent(self) -> tuple[str, ...]:
        """Return what has to be above zero, so that a claim about which nothing is known breaks no rule."""
        names_kind = any(not isinstance(value, bool) for fact in self._facts for value in fact.values)
        spent = spent_of(self._vocabulary)
        if not spent and not names_kind:
            self._abstain("scope_unclear", "the vocabulary has no amount that tells a claim from none")
        return spent

    def _modality(self, demand: Demand) -> Modality:
        if self._language.should.search(self._modality_source):
            return Modality.SHOULD
        optional = demand is Demand.PERMISSION or (
            demand is Demand.LIMIT and self._language.may.search(self._modality_source) is not None
        )
        return Modality.MAY if optional else Modality.MUST

    def _check_vocabulary(self, reading: Reading) -> None:
        names = {fact.fact for fact in reading.facts}
        names |= {reading.threshold.fact} if reading.threshold else set()
        for exception in reading.exceptions:
            if exception.threshold:
                names.add(exception.threshold.fact)
                if not self._is_about_flights():
                    self._abstain("condition_or_exception_not_modelled", "an exception for flights only")
        missing = sorted(names - set(self._vocabulary.facts))
        if missing:
            self._abstain("fact_not_in_vocabulary", ", ".join(missing))
        for threshold in (reading.threshold, *(exception.threshold for exception in reading.exceptions)):
            fact = self._vocabulary.facts.get(threshold.fact) if threshold else None
            if threshold and isinstance(fact, IntFact | MoneyFact) and not fact.min <= threshold.limit < fact.max:
                self._abstain("threshold_out_of_range", f"{threshold.fact} ends at {fact.max}")
        category = category_of(self._vocabulary)
        if reading.rate and not any(fact.fact == category for fact in reading.facts):
            self._abstain("no_known_category")

    def _only_connects(self, between: str) -> bool:
        return not self._language.connectors.sub("", between).strip(" ,&/")

    def _joins(self, between: str) -> bool:
        return "," in between or any(word.lower() in self._language.joining_words for word in unread_words(between))


def _detail(words: list[str]) -> str:
    return ", ".join(dict.fromkeys(word.lower() for word in words[:5]))[:200]
