"""Which fact of a vocabulary plays which part, told by its type, unit and phrases and not by a list of names.

- An amount: the money fact with the phrase "per expense". A count: a number of days or hours with "per request".
- A period: another phrase of such a fact, such as "per night". A whole: a phrase with "of", "der", "des" or "vom" in
  front, such as "of the bill"; shares are taken of it.
- A measure: a number whose phrases hold its own unit (unit `miles`, phrase "mile"); rates are paid per measure.
- An event: a phrase such as "booked before departure" or "eingereicht nach ausgabe": what, before or after what.
- The category: the enum whose values are subjects. An approver: a yes-or-no fact named `approval.…`. A paper that has
  to be attached: a yes-or-no fact named `….has_…`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from rulegen_dagster.domain.vocabulary import BoolFact, EnumFact, IntFact, MoneyFact, Vocabulary

APPROVAL_PREFIX = "approval."
FLIGHT_HOURS = "flight.duration_hours"
"""The one fact that patterns know by name: the length of a flight, which has no phrase of its own."""

_PAPER_PREFIX = "has_"
_WHOLE_WORDS = ("of ", "der ", "des ", "vom ")
_ORDERS = {" before ": True, " vor ": True, " after ": False, " nach ": False}
_COUNTED = ("days", "hours")


@dataclass(frozen=True, kw_only=True)
class Event:
    """What has to happen some days before or after what: `action` and `words` are in the phrase's own language."""

    fact: str
    action: str
    is_before: bool
    words: str


def amount_of(vocabulary: Vocabulary) -> str | None:
    """Return the money fact of a single expense, or None where the vocabulary has none."""
    return next(
        (
            name
            for name, fact in vocabulary.facts.items()
            if isinstance(fact, MoneyFact) and "per expense" in fact.phrases
        ),
        None,
    )


def count_of(vocabulary: Vocabulary, unit: str) -> str | None:
    """Return the fact that counts the days or hours of a single request."""
    return next(
        (
            name
            for name, fact in vocabulary.facts.items()
            if isinstance(fact, IntFact) and fact.unit == unit and "per request" in fact.phrases
        ),
        None,
    )


def spent_of(vocabulary: Vocabulary) -> tuple[str, ...]:
    """Return the facts of which one is above zero in every claim: an amount, or the time of a request."""
    facts = (amount_of(vocabulary), *(count_of(vocabulary, unit) for unit in _COUNTED))
    return tuple(fact for fact in facts if fact is not None)


def category_of(vocabulary: Vocabulary) -> str | None:
    """Return the enum whose values, the default aside, are subjects of decisions."""
    for name, fact in vocabulary.facts.items():
        if isinstance(fact, EnumFact) and set(fact.values) - {fact.default} <= set(vocabulary.subjects):
            return name
    return None


def papers_of(vocabulary: Vocabulary) -> tuple[tuple[str, BoolFact], ...]:
    """Return the facts that say which paper is attached."""
    return tuple(
        (name, fact) for name, fact in vocabulary.facts.items() if isinstance(fact, BoolFact) and is_paper(name)
    )


def is_paper(name: str) -> bool:
    """Tell whether a fact says that a paper is attached."""
    return name.rpartition(".")[2].startswith(_PAPER_PREFIX)


def periods_of(vocabulary: Vocabulary) -> dict[str, tuple[str, ...]]:
    """Return the phrases of periods, each with the facts that count by it: amounts, days and hours."""
    found: dict[str, tuple[str, ...]] = {}
    for name, fact in vocabulary.facts.items():
        counts = isinstance(fact, IntFact) and fact.unit in _COUNTED and not _is_measure(fact)
        if not isinstance(fact, MoneyFact) and not counts:
            continue
        for phrase in fact.phrases:
            if phrase.startswith(_WHOLE_WORDS) or (counts and any(order in phrase for order in _ORDERS)):
                continue
            found[phrase] = (*found.get(phrase, ()), name)
    return found


def wholes_of(vocabulary: Vocabulary) -> dict[str, str]:
    """Return the phrases of amounts that shares are taken of, each with its fact."""
    return {
        phrase: name
        for name, fact in vocabulary.facts.items()
        if isinstance(fact, MoneyFact)
        for phrase in fact.phrases
        if phrase.startswith(_WHOLE_WORDS)
    }


def measures_of(vocabulary: Vocabulary) -> dict[str, tuple[str, str]]:
    """Return the phrases of units that rates are paid for, each with its fact and the unit's short name."""
    return {
        phrase: (name, _short(fact.unit or ""))
        for name, fact in vocabulary.facts.items()
        if isinstance(fact, IntFact) and _is_measure(fact)
        for phrase in fact.phrases
    }


def events_of(vocabulary: Vocabulary) -> Iterator[Event]:
    """Yield the events that deadlines are counted from, in the order of the vocabulary."""
    for name, fact in vocabulary.facts.items():
        if not isinstance(fact, IntFact) or fact.unit != "days":
            continue
        for phrase in fact.phrases:
            for order, is_before in _ORDERS.items():
                action, found, words = phrase.partition(order)
                if found:
                    yield Event(fact=name, action=action, is_before=is_before, words=words)


def _is_measure(fact: IntFact) -> bool:
    return fact.unit is not None and fact.unit.removesuffix("s") in fact.phrases


def _short(unit: str) -> str:
    return "km" if unit == "kilometres" else unit.removesuffix("s")
