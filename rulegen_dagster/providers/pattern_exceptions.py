"""Exceptions of a clause ("unless …", "except …"): split off, and read only if every word is understood."""

import re
from dataclasses import dataclass

from rulegen_dagster.providers.pattern_model import FLIGHT_HOURS, Comparator, ExceptionReading, FactIs, Threshold
from rulegen_dagster.providers.pattern_quantities import Unit
from rulegen_dagster.providers.pattern_sentences import APPROVED, EXCEPTION_WORD, LONGER_FLIGHT
from rulegen_dagster.providers.pattern_words import READ, SIGNS, Marked, Named, read

_WORD = re.compile(r"[^\W_]+(?:'[a-z]+)?|[%$€£¥]", re.IGNORECASE)
_FILLER_WORDS = (
    "a an the for in of on to is are it they this when where case cases or and that expense purchase trip made incurred"
)
_FILLERS = frozenset(_FILLER_WORDS.split())


@dataclass(frozen=True, kw_only=True)
class ExceptionPart:
    """Where the exception of a clause stands, from its first word on."""

    start: int
    words_start: int
    end: int


def split_exception(working: str, own_start: int) -> ExceptionPart | None:
    """Find the exception: from its word to the end, or to the comma where the clause begins with it."""
    match = EXCEPTION_WORD.search(working, own_start)
    if match is None:
        return None
    end = len(working.rstrip(" .;,"))
    if not working[own_start : match.start()].strip():
        comma = working.find(",", match.end())
        end = comma if comma >= 0 else end
    return ExceptionPart(start=match.start(), words_start=match.end(), end=end)


def unread_words(working: str) -> list[str]:
    """Return the words of a working text that are neither marks nor read."""
    return _WORD.findall(working)


def group_values(values: list[Named] | tuple[Named, ...]) -> tuple[FactIs, ...]:
    """Collect the named values by fact, in order of first mention."""
    grouped: dict[str, list[str | bool]] = {}
    for named in values:
        known = grouped.setdefault(named.fact, [])
        if named.value not in known:
            known.append(named.value)
    return tuple(FactIs(fact=fact, values=tuple(found)) for fact, found in grouped.items())


def read_exception(marked: Marked, part: ExceptionPart) -> ExceptionReading | None:
    """Read one exception, or return None where it is not understood.

    It is an approval, a longer flight, or one fact of the vocabulary; never a mixture.
    """
    working = READ * part.words_start + marked.working[part.words_start : part.end]
    quote = marked.text[part.start : part.end].strip()
    facts: tuple[FactIs, ...] = ()
    threshold: Threshold | None = None
    if approved := APPROVED.search(working):
        name = next(item for item in marked.approvers if item.start in {approved.start(group) for group in "abc"})
        facts = (FactIs(fact=name.fact, values=(True,)),)
        working = read(working, approved.start(), approved.end())
    elif longer := LONGER_FLIGHT.search(working):
        threshold = longer_flight(marked, longer)
        working = read(working, longer.start(), longer.end())
    else:
        inside = [item for item in marked.values if part.words_start <= item.start < part.end]
        facts = group_values(inside)
        for item in inside:
            working = read(working, item.start, item.end)
    if len(facts) + (threshold is not None) != 1 or any(sign in working for sign in SIGNS.values()):
        return None
    if any(word.lower() not in _FILLERS for word in unread_words(working)):
        return None
    return ExceptionReading(facts=facts, threshold=threshold, quote=quote)


def longer_flight(marked: Marked, match: re.Match[str]) -> Threshold:
    """Return the threshold of a match of `LONGER_FLIGHT`."""
    hours = next(item for item in marked.durations if item.start == match.start("hours"))
    return Threshold(
        fact=FLIGHT_HOURS,
        comparator=Comparator.ABOVE,
        value=hours.value,
        unit=Unit.HOURS.value,
        quote=marked.text[hours.start : hours.end],
    )
