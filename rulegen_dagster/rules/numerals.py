"""Numbers in running text: digits with either kind of separator, number words, cents and multipliers.

A number of a rule counts as stated when one reading of one number in the quote equals it. `1.234` has two readings,
1234 and 1.234; `1.234,56` and `1,234.56` have the same one.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Final


@dataclass(frozen=True, slots=True)
class Numeral:
    """A number in a text, with everything that its value could be; `in_cents` where cents follow it."""

    start: int
    end: int
    readings: tuple[Decimal, ...]
    in_cents: bool = False


# No rule can hold a longer number, and a page of digits is not worth reading.
_MAX_DIGITS: Final = 40
_SCALES: Final = {
    "k": 1_000, "thousand": 1_000, "tausend": 1_000, "tsd": 1_000,
    "million": 1_000_000, "millions": 1_000_000, "millionen": 1_000_000, "mio": 1_000_000,
}  # fmt: skip

# Only a no-break space (of any width) joins groups for certain; an ordinary one is a second reading.
_DIGITS = re.compile(
    r"""(?P<number>\d+(?:[.,'’]\d+|[\u00a0\u202f\u2009]\d{3}(?!\d))*)
        (?:\s?(?P<scale>k|thousand|tausend|tsd|millions?|millionen|mio)\b\.?)?
        (?P<cents>\s?(?:(?:cents?|ct|pence)\b|¢))?""",
    re.VERBOSE | re.IGNORECASE,
)
_JOINED_BY_SPACE = re.compile(r"(?<![\d.,])\d{1,3}(?:[ \u00a0\u202f\u2009]\d{3})+(?![\d])")
_WORD = re.compile(r"[^\W\d_]+")


@lru_cache(maxsize=128)
def numerals_in(text: str) -> tuple[Numeral, ...]:
    """Return the numbers written in digits, in order."""
    return tuple(
        Numeral(match.start(), match.end(), _readings(match["number"], match["scale"]), match["cents"] is not None)
        for match in _DIGITS.finditer(text)
    )


def amounts_in(text: str) -> frozenset[Decimal]:
    """Return every amount that a text may state, in the major unit (20 cents are 0.2)."""
    digits = (
        reading / 100 if numeral.in_cents else reading for numeral in numerals_in(text) for reading in numeral.readings
    )
    return frozenset((*digits, *_space_joined(text), *_worded_values(text)))


def counts_in(text: str) -> frozenset[Decimal]:
    """Return every number that a text may state, in digits or words, whatever it counts."""
    digits = (reading for numeral in numerals_in(text) for reading in numeral.readings)
    return frozenset((*digits, *_space_joined(text), *_worded_values(text)))


@lru_cache(maxsize=128)
def numbers_in(text: str) -> tuple[Numeral, ...]:
    """Return the numbers of a text in digits and in words, each with its place, in no order."""
    return (*numerals_in(text), *_space_joined_numerals(text), *_worded(text))


def _readings(number: str, scale: str | None) -> tuple[Decimal, ...]:
    if len(number) > _MAX_DIGITS:
        return ()
    factor = _SCALES[scale.lower()] if scale else 1
    return tuple(reading * factor for reading in _unscaled(number))


def _unscaled(number: str) -> tuple[Decimal, ...]:
    number = re.sub(r"['’\s]", "", number)
    separators = [character for character in number if character in ".,"]
    if not separators:
        return (Decimal(number),)
    last = separators[-1]
    whole, _, fraction = number.rpartition(last)
    as_decimal = Decimal(f"{re.sub('[.,]', '', whole)}.{fraction}")
    grouped = Decimal(re.sub("[.,]", "", number))
    if len(set(separators)) == 2:
        # 1.234,56 and 1,234.56: the last kind of separator is the decimal one, and it stands once.
        return (as_decimal,) if separators.count(last) == 1 else ()
    groups = re.split("[.,]", number)
    is_grouped = not groups[0].startswith("0") and len(groups[0]) <= 3 and all(len(group) == 3 for group in groups[1:])
    if len(separators) > 1:
        return (grouped,) if is_grouped else ()
    return (as_decimal, grouped) if is_grouped else (as_decimal,)


def _space_joined(text: str) -> Iterator[Decimal]:
    return (reading for numeral in _space_joined_numerals(text) for reading in numeral.readings)


def _space_joined_numerals(text: str) -> Iterator[Numeral]:
    for match in _JOINED_BY_SPACE.finditer(text):
        yield Numeral(match.start(), match.end(), (Decimal(re.sub(r"\s", "", match[0])),))


def _german_words() -> dict[str, int]:
    small = "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn".split()
    words = {word: value for value, word in enumerate(small)}
    words |= {"sechzehn": 16, "siebzehn": 17, "achtzehn": 18, "neunzehn": 19}
    tens = "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig".split()
    for ten, word in enumerate(tens, start=2):
        words[word] = ten * 10
        for unit, prefix in enumerate(["ein", *small[2:10]], start=1):
            words[f"{prefix}und{word}"] = ten * 10 + unit
    words |= {f"{prefix}hundert": value * 100 for value, prefix in enumerate(["ein", *small[2:10]], start=1)}
    words |= {"hundert": 100, "tausend": 1000, "zwo": 2, "beide": 2, "beiden": 2, "doppelt": 2}
    words |= dict.fromkeys(("ein", "eine", "einen", "einem", "einer", "eines", "einmal"), 1)
    # Words are looked up without case, and without case "ß" is "ss".
    return {word.casefold(): value for word, value in words.items()}


_SMALL: Final = {
    word: value
    for value, word in enumerate(
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
        "seventeen eighteen nineteen".split()
    )
}
_TENS: Final = {
    word: value * 10
    for value, word in enumerate("twenty thirty forty fifty sixty seventy eighty ninety".split(), start=2)
}
_OTHER: Final = {
    "single": 1, "once": 1, "both": 2, "double": 2, "dual": 2, "twice": 2, "pair": 2, "triple": 3, "dozen": 12,
} | _german_words()  # fmt: skip


def _worded_values(text: str) -> Iterator[Decimal]:
    return (reading for numeral in _worded(text) for reading in numeral.readings)


def _worded(text: str) -> Iterator[Numeral]:
    """Yield the numbers written in words; English ones are composed over hyphens, spaces and `and`."""
    run: list[str] = []
    start = end = 0
    for match in _WORD.finditer(text):
        word = match[0].casefold()
        adjacent = text[end : match.start()].strip(" \t\r\n-\u2010\u2011") == ""
        if run and not (adjacent and _continues(run, word)):
            yield Numeral(start, end, (Decimal(_composed(run)),))
            run = []
        end = match.end()
        if word in _OTHER and not run:
            yield Numeral(match.start(), end, (Decimal(_OTHER[word]),))
        elif run or word in _SMALL or word in _TENS or word in ("hundred", "thousand"):
            start = start if run else match.start()
            run.append(word)
    if run:
        yield Numeral(start, end, (Decimal(_composed(run)),))


def _continues(run: list[str], word: str) -> bool:
    last = run[-1]
    if word in ("hundred", "thousand"):
        return last != "and" and word not in run
    if last in ("hundred", "thousand"):
        return word == "and" or word in _SMALL or word in _TENS
    if last == "and":
        return word in _SMALL or word in _TENS
    return last in _TENS and 0 < _SMALL.get(word, 0) < 10


def _composed(run: list[str]) -> int:
    total = current = 0
    for word in run:
        match word:
            case "hundred":
                current = max(current, 1) * 100
            case "thousand":
                total, current = max(current, 1) * 1000, 0
            case "and":
                pass
            case _:
                current += _SMALL.get(word, 0) + _TENS.get(word, 0)
    return total + current
