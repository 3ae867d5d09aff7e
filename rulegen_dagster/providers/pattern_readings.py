"""What a clause demands, read from its marks; an abstention with a typed reason where any word stays unread.

A clause is read only if each of its words is accounted for: as a mark, as part of a sentence pattern, or as one of a
short list of words that never narrow a rule. That costs coverage and buys the promise that nothing is guessed.
"""

from itertools import pairwise

from rulegen_dagster.domain.clause import Clause
from rulegen_dagster.domain.rule import Modality
from rulegen_dagster.domain.vocabulary import IntFact, MoneyFact, Vocabulary
from rulegen_dagster.providers import pattern_sentences as sentences
from rulegen_dagster.providers.pattern_exceptions import (
    group_values,
    read_exception,
    split_exception,
    unread_words,
)
from rulegen_dagster.providers.pattern_model import (
    AMOUNT,
    CATEGORY,
    FLIGHT_HOURS,
    RECEIPT,
    Abstention,
    Demand,
    ExceptionReading,
    FactIs,
    Reading,
)
from rulegen_dagster.providers.pattern_numbers import NumberReader
from rulegen_dagster.providers.pattern_quantities import has_percentage
from rulegen_dagster.providers.pattern_words import READ, SIGNS, Named, mark, read, values_in

_MAX_CLAUSE = 2000


def read_clause(clause: Clause, vocabulary: Vocabulary) -> Reading | Abstention:
    """Read one clause; the same clause and vocabulary always give the same answer."""
    if len(clause.text) + len(clause.lead or "") > _MAX_CLAUSE:
        return Abstention(reason="clause_too_long", detail=f"more than {_MAX_CLAUSE} characters")
    if any("\ue000" <= character <= READ for character in clause.text + (clause.lead or "")):
        return Abstention(reason="unread_words", detail="private characters")
    return _ClauseReader(clause, vocabulary).read()


class _ClauseReader(NumberReader):
    """Reads one clause step by step; the first step that cannot go on names the reason."""

    def __init__(self, clause: Clause, vocabulary: Vocabulary) -> None:
        super().__init__(clause, mark(clause, vocabulary))
        self._vocabulary = vocabulary
        self._facts: tuple[FactIs, ...] = ()
        self._approval: Named | None = None
        self._exceptions: tuple[ExceptionReading, ...] = ()
        self._modality_source = self._working

    def read(self) -> Reading | Abstention:
        part = split_exception(self._working, self._marked.own_start)
        if part:
            self._working = read(self._working, part.start, part.end)
        self._modality_source = self._working
        self._read_polite_words()
        self._read_rate()
        self._read_deadlines()
        self._read_demands()
        self._read_thresholds()
        demand = self._demand()
        if demand is None:
            return Abstention(reason="no_pattern")
        self._read_values(part.start if part else None, part.end if part else 0)
        if part:
            exception = read_exception(self._marked, part)
            if exception is None:
                self._abstain("condition_or_exception_not_modelled", "the exception is not understood")
            else:
                self._exceptions = (exception,)
        self._check_rest(demand)
        reading = self._reading(demand)
        self._check_vocabulary(reading)
        return self._abstention or reading

    def _read_polite_words(self) -> None:
        for match in sentences.POLITE.finditer(self._working):
            self._take(match)
        for match in sentences.IGNORED_BEFORE_VALUE.finditer(self._working):
            self._take(match)

    def _read_demands(self) -> None:
        if match := sentences.APPROVAL.search(self._working):
            start = next(match.start(group) for group in "abcdefg" if match[group])
            self._approval = next(item for item in self._marked.approvers if item.start == start)
            self._demands.append(Demand.APPROVAL)
            self._take(match)
        elif match := sentences.APPROVAL_BY_NOBODY_NAMED.search(self._working):
            self._abstain("approver_not_known")
            self._demands.append(Demand.APPROVAL)
            self._take(match)
        for demand, pattern in sentences.DEMANDS:
            if match := pattern.search(self._working):
                self._demands.append(demand)
                self._take(match)

    def _demand(self) -> Demand | None:
        found = set(self._demands)
        if found & {Demand.LIMIT, Demand.RATE}:
            # "is reimbursed up to" and "is reimbursed at" are one demand each.
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
        if several and len(self._facts) > 1 and (len(several) > 1 or several[0].fact == CATEGORY):
            self._abstain("several_categories_in_one_clause")
        for previous, following in pairwise(values):
            between = self._working[previous.end : following.start]
            if previous.fact == following.fact and previous.value != following.value and not _only_connects(between):
                self._abstain("several_categories_in_one_clause")
            if previous.fact != following.fact and _joins(between):
                self._abstain("several_categories_in_one_clause")
            if previous.fact == following.fact and _only_connects(between):
                self._working = read(self._working, previous.end, following.start)
        for item in values:
            self._working = read(self._working, item.start, item.end)
        if (match := sentences.WITHOUT_RECEIPT.search(self._working)) and Demand.REFUSAL in self._demands:
            self._facts = (*self._facts, FactIs(fact=RECEIPT, values=(False,)))
            self._take(match)

    def _check_rest(self, demand: Demand) -> None:
        """Abstain where anything in the clause is left that no step has read."""
        working = self._working
        if SIGNS["TIME"] in working:
            self._abstain("time_not_modelled")
        if SIGNS["MONEY"] in working:
            several = len(self._marked.money) > 1
            self._abstain("several_amounts_in_one_clause" if several else "threshold_boundary_unclear")
        if has_percentage(working):
            self._abstain("percentage_not_modelled")
        rest = [word for word in unread_words(working) if word.lower() not in sentences.FILLERS]
        narrowing = [word for word in rest if sentences.NARROWING.fullmatch(word)]
        if narrowing or any(SIGNS[name] in working for name in ("DAYS", "HOURS", "PERIOD", "APPROVER", "VALUE")):
            self._abstain("condition_or_exception_not_modelled", _detail(narrowing))
        if rest:
            self._abstain("unread_words", _detail(rest))
        self._check_scope(demand)

    def _check_scope(self, demand: Demand) -> None:
        """Abstain where it is not certain which expenses the clause is about."""
        threshold = self._threshold
        if threshold and threshold.currency and sentences.WHOLE_CLAIM.search(self._working):
            self._abstain("claim_or_expense_unclear")
        if threshold and threshold.fact == FLIGHT_HOURS and not self._is_about_flights():
            self._abstain("no_known_category")
        if demand in (Demand.LIMIT, Demand.RATE) and any(len(fact.values) > 1 for fact in self._facts):
            self._abstain("several_categories_in_one_clause", "one limit for each of them, or for all together")
        if self._facts and any(fact.fact != RECEIPT for fact in self._facts):
            return
        if demand in (Demand.LIMIT, Demand.RATE, Demand.PERMISSION):
            self._abstain("no_known_category")
        if demand is Demand.REFUSAL and threshold is None and not self._facts:
            self._abstain("no_known_category")
        if any(values_in(heading, self._vocabulary) for heading in self._clause.heading_path):
            self._abstain("scope_set_by_heading")
        if not sentences.EVERY_EXPENSE.search(self._marked.working):
            self._abstain("scope_unclear", "neither a category nor all expenses")

    def _is_about_flights(self) -> bool:
        return any("airfare" in fact.values or fact.fact.startswith("flight.") for fact in self._facts)

    def _reading(self, demand: Demand) -> Reading:
        facts = self._facts
        needs_amount = False
        if demand is Demand.RECEIPT:
            facts = (*facts, FactIs(fact=RECEIPT, values=(False,)))
        if demand is Demand.APPROVAL and self._approval:
            facts = (*facts, FactIs(fact=self._approval.fact, values=(False,)))
        if any(fact.values == (False,) for fact in facts):
            needs_amount = self._threshold is None
        words = self._approval and self._marked.text[self._approval.start : self._approval.end]
        return Reading(
            demand=demand,
            modality=self._modality(demand),
            facts=facts,
            threshold=self._threshold,
            rate=self._rate,
            approver=words or None,
            needs_amount=needs_amount,
            exceptions=self._exceptions,
        )

    def _modality(self, demand: Demand) -> Modality:
        if sentences.SHOULD.search(self._modality_source):
            return Modality.SHOULD
        optional = demand is Demand.PERMISSION or (
            demand is Demand.LIMIT and sentences.MAY.search(self._modality_source) is not None
        )
        return Modality.MAY if optional else Modality.MUST

    def _check_vocabulary(self, reading: Reading) -> None:
        names = {fact.fact for fact in reading.facts}
        names |= {reading.threshold.fact} if reading.threshold else set()
        names |= {reading.rate.distance_fact} if reading.rate else set()
        names |= {AMOUNT} if reading.needs_amount else set()
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
            if threshold and isinstance(fact, IntFact | MoneyFact) and not fact.min <= threshold.value < fact.max:
                self._abstain("threshold_out_of_range", f"{threshold.fact} ends at {fact.max}")
        if reading.rate and not any(fact.fact == CATEGORY for fact in reading.facts):
            self._abstain("no_known_category")


def _only_connects(between: str) -> bool:
    left = sentences.CONNECTORS.sub("", between)
    return not left.strip(" ,&/")


def _joins(between: str) -> bool:
    return any(word.lower() in ("and", "or") for word in unread_words(between)) or "," in between


def _detail(words: list[str]) -> str:
    return ", ".join(dict.fromkeys(word.lower() for word in words[:5]))[:200]
