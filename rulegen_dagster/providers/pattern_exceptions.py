"""Exceptions of a clause ("unless …", "es sei denn …"): split off, and read only if every word is understood."""

import re
from dataclasses import dataclass

from rulegen_dagster.domain.vocabulary import Vocabulary
from rulegen_dagster.providers.pattern_language import READ, SIGNS, Language, group_of
from rulegen_dagster.providers.pattern_model import Abstention, ExceptionReading, FactIs, Threshold
from rulegen_dagster.providers.pattern_thresholds import compared, longer_flight, money_threshold, take
from rulegen_dagster.providers.pattern_words import Marked, Named, read

_WORD = re.compile(r"[^\W_]+(?:'[a-z]+)?|[%$€£¥]", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class ExceptionPart:
    """Where the exception of a clause stands, from its first word on."""

    start: int
    words_start: int
    end: int


def split_exception(working: str, own_start: int, language: Language) -> ExceptionPart | None:
    """Find the exception: from its word to the end, or to the comma where the clause begins with it."""
    match = language.exception_word.search(working, own_start)
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


def read_exception(
    marked: Marked, part: ExceptionPart, language: Language, vocabulary: Vocabulary
) -> ExceptionReading | None:
    """Read one exception, or return None where it is not understood.

    It is an approval, an amount, a longer flight, or one fact of the vocabulary; never a mixture.
    """
    working = READ * part.words_start + marked.working[part.words_start : part.end]
    quote = marked.text[part.start : part.end].strip()
    facts: tuple[FactIs, ...] = ()
    threshold: Threshold | None = None
    if approved := language.approved.search(working):
        start = approved.start(group_of(approved, "approver") or 0)
        name = next(item for item in marked.approvers if item.start == start)
        facts = (FactIs(fact=name.fact, values=(True,)),)
        working = take(working, approved)
    elif amount := compared(working, language.comparators("(?P<number><MONEY>)")):
        comparator, match = amount
        if SIGNS["VALUE"] in match[0]:
            return None
        found = money_threshold(marked, match, comparator, vocabulary, span=(part.words_start, part.end))
        if isinstance(found, Abstention):
            return None
        threshold = found
        working = take(working, match).replace(SIGNS["PERIOD"], READ)
    elif longer := language.longer_flight.search(working):
        threshold = longer_flight(marked, longer)
        working = take(working, longer)
    else:
        inside = [item for item in marked.values if part.words_start <= item.start < part.end]
        facts = group_values(inside)
        for item in inside:
            working = read(working, item.start, item.end)
    if len(facts) + (threshold is not None) != 1 or any(sign in working for sign in SIGNS.values()):
        return None
    if any(word.lower() not in language.exception_fillers for word in unread_words(working)):
        return None
    return ExceptionReading(facts=facts, threshold=threshold, quote=quote)
