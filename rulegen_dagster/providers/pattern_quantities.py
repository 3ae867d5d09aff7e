"""Amounts, lengths of time and percentages as English policies write them; integers only."""

import re
from dataclasses import dataclass
from enum import StrEnum

from rulegen_dagster.domain.money import MAX_MINOR, exponent

_MICRO_DIGITS = 6
_CURRENCIES = {
    "$": "USD", "us$": "USD", "usd": "USD", "dollar": "USD", "dollars": "USD", "us dollar": "USD", "us dollars": "USD",
    "c$": "CAD", "ca$": "CAD", "cad": "CAD", "a$": "AUD", "au$": "AUD", "aud": "AUD", "nz$": "NZD", "nzd": "NZD",
    "€": "EUR", "eur": "EUR", "euro": "EUR", "euros": "EUR", "£": "GBP", "gbp": "GBP", "pounds": "GBP",
    "pounds sterling": "GBP", "¥": "JPY", "jpy": "JPY", "yen": "JPY", "chf": "CHF",
}  # fmt: skip
_NUMBER = r"(?:\d{1,3}(?:,\d{3})+|\d{1,12})(?:\.\d{1,6})?"
_MONEY = re.compile(
    r"(?<![\w.,$€£¥-])(?:"
    rf"(?P<prefix>US\$|CA?\$|AU?\$|NZ\$|[$€£¥]|USD\b|EUR\b|GBP\b|CHF\b|JPY\b|CAD\b|AUD\b|NZD\b)\s?(?P<first>{_NUMBER})"
    r"(?:\s(?:USD|EUR|GBP|CHF|JPY|CAD|AUD|NZD)\b)?"
    rf"|(?P<second>{_NUMBER})\s?(?P<suffix>[€£¥]|USD\b|EUR\b|GBP\b|CHF\b|JPY\b|CAD\b|AUD\b|NZD\b"
    r"|(?:US )?dollars?\b|euros?\b|pounds(?: sterling)?\b|yen\b))"
    r"(?![\w%]|[.,]\d)",
    re.IGNORECASE,
)
_WORDS_TO_TWENTY = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen twenty"
)
_NUMBER_WORDS = {word: value for value, word in enumerate(_WORDS_TO_TWENTY.split())} | {
    "thirty": 30,
    "forty": 40,
    "forty-five": 45,
    "fifty": 50,
    "sixty": 60,
    "ninety": 90,
}
_DURATION = re.compile(
    rf"(?<![\w.,-])(?:(?P<digits>\d{{1,4}})|(?P<word>{'|'.join(sorted(_NUMBER_WORDS, key=len, reverse=True))}))"
    r"(?:\s?\((?P<repeated>\d{1,4})\))?[\s-](?P<kind>calendar|consecutive|business|working)?\s?"
    r"(?P<unit>day|week|month|year|hour)s?(?!\w)",
    re.IGNORECASE,
)
_PERCENT = re.compile(r"\d\s?(?:%|per\s?cent\b)", re.IGNORECASE)


class Unit(StrEnum):
    """Units of time that a policy counts in."""

    DAYS = "days"
    WEEKS = "weeks"
    MONTHS = "months"
    YEARS = "years"
    HOURS = "hours"


@dataclass(frozen=True, kw_only=True)
class Money:
    """An amount as written: its span, currency and exact value in micros of the major unit."""

    start: int
    end: int
    currency: str
    micros: int

    @property
    def minor(self) -> int | None:
        """The amount in minor units, or None where it has more decimal places than the currency, or is too large."""
        minor, rest = divmod(self.micros, 10 ** (_MICRO_DIGITS - exponent(self.currency)))
        return minor if rest == 0 and minor < MAX_MINOR else None


@dataclass(frozen=True, kw_only=True)
class Duration:
    """A length of time as written; `is_business` for business or working days."""

    start: int
    end: int
    value: int
    unit: Unit
    is_business: bool


def find_money(text: str) -> list[Money]:
    """Return the amounts of a text whose form is unambiguous, in order."""
    found: list[Money] = []
    for match in _MONEY.finditer(text):
        number = (match["first"] or match["second"]).replace(",", "")
        whole, _, fraction = number.partition(".")
        if len(fraction) == 3 and "," not in (match["first"] or match["second"]) and match["suffix"] is not None:
            continue  # 1.000 euros: a thousand or one, by the writer's language
        sign = " ".join((match["prefix"] or match["suffix"]).lower().split())
        micros = int(whole) * 10**_MICRO_DIGITS + int(fraction.ljust(_MICRO_DIGITS, "0"))
        found.append(Money(start=match.start(), end=match.end(), currency=_CURRENCIES[sign], micros=micros))
    return found


def find_durations(text: str) -> list[Duration]:
    """Return the lengths of time of a text, in order; `thirty (31) days` contradicts itself and is left out."""
    found: list[Duration] = []
    for match in _DURATION.finditer(text):
        value = int(match["digits"]) if match["digits"] else _NUMBER_WORDS[match["word"].lower()]
        if match["repeated"] and int(match["repeated"]) != value:
            continue
        found.append(
            Duration(
                start=match.start(),
                end=match.end(),
                value=value,
                unit=Unit(match["unit"].lower() + "s"),
                is_business=(match["kind"] or "").lower() in ("business", "working"),
            )
        )
    return found


def has_percentage(text: str) -> bool:
    """Tell whether a text names a percentage."""
    return _PERCENT.search(text) is not None
