"""Quantities: numbers with their units, so that 120 minutes are stated by "two hours", and by nothing else.

Only units whose ratio is fixed are converted: minutes, hours, days and weeks; months, quarters and years; metres and
kilometres. A month has no number of days, and a working day is no day. What is no known unit is compared as it stands.
"""

import re
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Final

from rulegen_dagster.rules.numerals import Numeral, numbers_in


@dataclass(frozen=True, slots=True)
class Unit:
    """What a unit measures, and how many of the smallest unit of that kind it is."""

    dimension: str
    factor: Decimal


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number with its unit: each reading in the smallest unit of its dimension; `per` is the dimension it is for."""

    readings: tuple[Decimal, ...]
    dimension: str
    per: str | None = None


def _units() -> dict[str, Unit]:
    table: dict[tuple[str, Decimal | int], str] = {
        ("time", 1): "second seconds sec secs sekunde sekunden seconde secondes",
        ("time", 60): "minute minutes min mins minuten",
        ("time", 3_600): "hour hours hr hrs stunde stunden std heure heures",
        ("time", 86_400): "day days tag tage tagen tages jour jours kalendertag kalendertage kalendertagen",
        ("time", 604_800): "week weeks woche wochen semaine semaines",
        ("working time", 1): "workday workdays werktag werktage werktagen arbeitstag arbeitstage arbeitstagen",
        ("months", 1): "month months monat monate monaten monats mois",
        ("months", 3): "quarter quarters quartal quartale quartals trimestre trimestres",
        ("months", 12): "year years jahr jahre jahren jahres ans année années",
        ("nights", 1): "night nights nacht nächte nächten nuit nuits übernachtung übernachtungen",
        ("length", 1): "metre metres meter meters metern mètre mètres",
        ("length", 1_000): "km kms kilometre kilometres kilometer kilometers kilometern kilomètre kilomètres",
        ("miles", 1): "mile miles meile meilen",
        ("share", 1): "% percent prozent pourcent",
        ("money", 1): "€ $ £ ¥ euro euros eur dollar dollars usd gbp pound pounds chf franken jpy yen cad aud nzd",
        ("money", Decimal("0.01")): "cent cents ct pence ¢",
        ("persons", 1): "person persons people personen personnes",
    }  # fmt: skip
    return {
        word: Unit(dimension, Decimal(factor)) for (dimension, factor), words in table.items() for word in words.split()
    }


_UNITS: Final = _units()
_QUALIFIERS: Final = {
    "working": "working time", "business": "working time", "ouvrable": "working time", "ouvrables": "working time",
    "ouvrés": "working time", "calendar": None, "consecutive": None, "full": None, "volle": None, "vollen": None,
    "aufeinanderfolgende": None, "aufeinanderfolgenden": None,
}  # fmt: skip
_UNIT_NAME = re.compile(r"[^\W\d_]+|[%€$£¥¢]")
# "15. Tag" and "10-day" have a mark between; a unit may have one qualifying word before it or behind it.
_AFTER = re.compile(r"\s?[.\-\u2010\u2011]?\s*(?P<name>[^\W\d_]+|[%€$£¥¢])(?:\s+(?P<next>[^\W\d_]+))?")
_PER = re.compile(r"\s*(?:/|(?:per|je|pro|par|a|an|each|every|für jede[nrs]?)\s+)\s*(?P<per>[^\W\d_]+)", re.IGNORECASE)
_BEFORE = re.compile(r"(?P<unit>[$€£¥]|\b(?:usd|eur|gbp|chf|jpy|cad|aud|nzd))\s?\Z", re.IGNORECASE)
_HALF = re.compile(
    r"\b(?P<half>half\s+an?|(?:eine[rn]?\s+)?halbe[rns]?|une\s+demi[- ]|demi[- ])\s*(?P<unit>[^\W\d_]+)"
    r"|\b(?P<more>anderthalb|eineinhalb|one\s+and\s+a\s+half)\s+(?P<units>[^\W\d_]+)",
    re.IGNORECASE,
)
_LOOK_BEHIND: Final = 6


def unit_of(name: str | None) -> Unit | None:
    """Return the unit of a name as vocabularies and drafts write it (`minute`, `working_days`), None for no known."""
    words = [word.casefold() for word in _UNIT_NAME.findall(name or "")]
    if not words or words[-1] not in _UNITS:
        return None
    *before, last = words
    if not all(word in _QUALIFIERS for word in before):
        return None
    unit = _UNITS[last]
    for word in before:
        unit = _qualified(unit, word)
    return unit


def states_count(text: str, value: Decimal, unit_name: str | None) -> bool:
    """Return whether a text states a number of some unit.

    In a known unit the number may stand there in another one of its kind; a number with another unit does not count,
    one without a known unit does.
    """
    unit = unit_of(unit_name)
    for numeral, quantity in _measured(text):
        if unit is None or quantity is None:
            if value in numeral.readings:
                return True
        elif quantity.dimension == unit.dimension and value * unit.factor in quantity.readings:
            return True
    return False


@lru_cache(maxsize=128)
def quantities_in(text: str) -> tuple[Quantity, ...]:
    """Return the numbers of a text that have a known unit."""
    return tuple(quantity for _, quantity in _measured(text) if quantity is not None)


@lru_cache(maxsize=128)
def _measured(text: str) -> tuple[tuple[Numeral, Quantity | None], ...]:
    halves = [_half(match) for match in _HALF.finditer(text)]
    # "Half an hour" is no "an hour".
    numbers = [
        number for number in numbers_in(text) if not any(half.start <= number.start < half.end for half in halves)
    ]
    return tuple((number, _quantity(text, number)) for number in (*halves, *numbers))


def _half(match: re.Match[str]) -> Numeral:
    more = match["more"] is not None
    end = match.start("units" if more else "unit")
    return Numeral(match.start(), end, (Decimal("1.5" if more else "0.5"),))


def _quantity(text: str, number: Numeral) -> Quantity | None:
    found = _unit_at(text, number)
    if found is None:
        return None
    unit, end = found
    per = _PER.match(text, end)
    for_each = unit_of(per["per"]) if per else None
    readings = tuple(reading * unit.factor for reading in number.readings)
    return Quantity(readings, unit.dimension, None if for_each is None else for_each.dimension)


def _unit_at(text: str, number: Numeral) -> tuple[Unit, int] | None:
    """Return the unit of a number and where its name ends."""
    if number.in_cents:
        return _UNITS["cent"], number.end
    if match := _AFTER.match(text, number.end):
        name, following = match["name"].casefold(), (match["next"] or "").casefold()
        if name in _UNITS:
            return _qualified(_UNITS[name], following), match.end("name")
        if name in _QUALIFIERS and following in _UNITS:
            return _qualified(_UNITS[following], name), match.end("next")
    before = _BEFORE.search(text[max(0, number.start - _LOOK_BEHIND) : number.start])
    return (_UNITS[before["unit"].casefold()], number.end) if before else None


def _qualified(unit: Unit, word: str) -> Unit:
    dimension = _QUALIFIERS.get(word)
    return Unit(dimension, Decimal(1)) if dimension and unit.dimension == "time" else unit
