"""A reading to test cases: at each threshold, with other values, and in each exception.

The cases come from what the clause says, never from the text of a rule: this module knows no rule language. It can
therefore catch a rule that is written wrongly, but not a clause that is read wrongly.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from rulegen_dagster.domain.money import micros_per_minor
from rulegen_dagster.domain.rule import Decision, Modality, TestCase, TestKind
from rulegen_dagster.domain.vocabulary import BoolFact, EnumFact, Vocabulary
from rulegen_dagster.providers.pattern_model import Demand, FactIs, Reading, Share, Threshold

_Facts = dict[str, bool | int | str]
_Expected = Decision | Literal["no_match"]
_FULL_DISTANCE = 100
_WHOLE_BILL = 10_000
_MAX_VALUES = 8


def cases_of(reading: Reading, vocabulary: Vocabulary) -> tuple[TestCase, ...]:
    """Return the cases of a reading: at least three, and a boundary or negative case among them."""
    writer = _CaseWriter(reading, vocabulary)
    return (*writer.boundaries(), *writer.normal(), *writer.negatives(), *writer.exceptions())


@dataclass(frozen=True)
class _CaseWriter:
    reading: Reading
    vocabulary: Vocabulary

    def boundaries(self) -> Iterator[TestCase]:
        """One case below, at and above the threshold, in the smallest step of its fact."""
        reading = self.reading
        if threshold := reading.threshold:
            for value, place in _around(threshold):
                fires = _passes(threshold, value)
                yield self._case(f"{place} the threshold", TestKind.BOUNDARY, {threshold.fact: value}, fires=fires)
        if share := reading.share:
            yield from self._share_boundaries(share)
        if reading.spent:
            nothing: _Facts = dict.fromkeys(reading.spent, 0)
            yield self._case("nothing spent", TestKind.BOUNDARY, nothing, fires=False)
            for fact in reading.spent:
                name = f"the smallest {fact}"
                yield self._case(name, TestKind.BOUNDARY, nothing | {fact: 1}, fires=True)
        if rate := reading.rate:
            for distance in (0, 1, _FULL_DISTANCE):
                kind = TestKind.NORMAL if distance == _FULL_DISTANCE else TestKind.BOUNDARY
                yield self._case(f"a distance of {distance}", kind, {rate.measure: distance}, fires=True)

    def _share_boundaries(self, share: Share) -> Iterator[TestCase]:
        comparator = share.comparator
        if comparator is None:
            yield self._case("a whole bill", TestKind.NORMAL, {share.part: _WHOLE_BILL}, fires=True)
            return
        exact = _WHOLE_BILL * share.percent // 100
        for step, place in _STEPS:
            facts: _Facts = {share.whole: _WHOLE_BILL, share.part: exact + step}
            fires = comparator.passed_by(exact + step, exact)
            yield self._case(f"{place} the share", TestKind.BOUNDARY, facts, fires=fires)

    def normal(self) -> Iterator[TestCase]:
        """One case for each named value, beyond any threshold."""
        for fact in self.reading.facts:
            if len(fact.values) > 1 or self._has_no_number():
                for value in fact.values[:_MAX_VALUES]:
                    if not isinstance(value, bool):
                        yield self._case(f"{fact.fact} is {value}", TestKind.NORMAL, {fact.fact: value}, fires=True)

    def negatives(self) -> Iterator[TestCase]:
        """One case for each fact that the clause names, with another value; and one about which nothing is known."""
        for fact in self.reading.facts:
            for value in self._other_values(fact):
                name = f"{fact.fact} is {str(value).lower()}"
                yield self._case(name, TestKind.NEGATIVE, {fact.fact: value}, fires=False)
        if self._has_no_number():
            yield TestCase(name="nothing is known", kind=TestKind.NEGATIVE, facts={}, expect="no_match")

    def exceptions(self) -> Iterator[TestCase]:
        """For each exception: the case itself, and the same without it."""
        for exception in self.reading.exceptions:
            for fact in exception.facts:
                for excepted in fact.values[:_MAX_VALUES]:
                    name = f"exception: {fact.fact} is {str(excepted).lower()}"
                    yield self._case(name, TestKind.EXCEPTION, {fact.fact: excepted}, fires=False)
                if isinstance(fact.values[0], bool):
                    off: _Facts = {fact.fact: not fact.values[0]}
                    yield self._case(f"without the exception {fact.fact}", TestKind.NORMAL, off, fires=True)
            if threshold := exception.threshold:
                for value, place in _around(threshold):
                    holds = _passes(threshold, value)
                    kind = TestKind.EXCEPTION if holds else TestKind.BOUNDARY
                    name = f"{place} the exception's threshold"
                    yield self._case(name, kind, {threshold.fact: value}, fires=not holds)

    def _has_no_number(self) -> bool:
        reading = self.reading
        return reading.threshold is None and reading.rate is None and reading.share is None

    def _case(self, name: str, kind: TestKind, changed: Mapping[str, bool | int | str], *, fires: bool) -> TestCase:
        facts = {**self._firing_facts(), **changed}
        expect: _Expected = self._expected() if fires else "no_match"
        cap = self._cap(facts) if expect is Decision.REIMBURSE_UP_TO else None
        return TestCase(name=name, kind=kind, facts=facts, expect=expect, expect_cap_minor=cap)

    def _firing_facts(self) -> _Facts:
        """Return the facts of a case in which the demand holds and no exception does."""
        reading = self.reading
        facts: _Facts = {fact.fact: fact.values[0] for fact in reading.facts}
        if threshold := reading.threshold:
            beyond = next(value for value, _ in reversed(_around(threshold)) if _passes(threshold, value))
            facts[threshold.fact] = beyond
        if share := reading.share:
            facts[share.whole] = _WHOLE_BILL
            facts[share.part] = _WHOLE_BILL * share.percent // 100 + 1
        if reading.spent:
            facts[reading.spent[0]] = 1
        if reading.rate:
            facts[reading.rate.measure] = _FULL_DISTANCE
        return facts

    def _expected(self) -> Decision:
        reading = self.reading
        if reading.modality is Modality.SHOULD and reading.demand is not Demand.PERMISSION:
            return Decision.FLAG
        match reading.demand:
            case Demand.LIMIT | Demand.RATE:
                counts_time = reading.threshold is not None and reading.threshold.currency is None
                return Decision.DENY if counts_time else Decision.REIMBURSE_UP_TO
            case Demand.RECEIPT:
                return Decision.REQUIRE_RECEIPT
            case Demand.APPROVAL:
                return Decision.REQUIRE_APPROVAL
            case Demand.REFUSAL | Demand.DEADLINE:
                return Decision.DENY
            case Demand.PERMISSION:
                return Decision.ALLOW

    def _cap(self, facts: _Facts) -> int | None:
        reading = self.reading
        if rate := reading.rate:
            return rate.micros * int(facts[rate.measure]) // micros_per_minor(rate.currency)
        if share := reading.share:
            return int(facts[share.whole]) * share.percent // 100
        return reading.threshold.value if reading.threshold else None

    def _other_values(self, fact: FactIs) -> tuple[bool | str, ...]:
        """Return values that the clause does not name: the first one of the fact, and its default."""
        known = self.vocabulary.facts[fact.fact]
        if isinstance(known, BoolFact):
            return (not fact.values[0],)
        if isinstance(known, EnumFact):
            others = [value for value in known.values if value not in fact.values and value != known.default]
            default = [known.default] if known.default not in fact.values else []
            return (*others[:1], *default)
        return ()


_STEPS = ((-1, "just below"), (0, "at"), (1, "just above"))


def _around(threshold: Threshold) -> tuple[tuple[int, str], ...]:
    return tuple((threshold.limit + step, place) for step, place in _STEPS if threshold.limit + step >= 0)


def _passes(threshold: Threshold, value: int) -> bool:
    return threshold.comparator.passed_by(value, threshold.limit)
