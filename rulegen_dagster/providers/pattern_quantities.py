"""Amounts, lengths of time and percentages as English and German policies write them; integers only."""

import re
from dataclasses import dataclass
from enum import StrEnum

from rulegen_dagster.domain.money import MAX_MINOR, exponent

_MICRO_DIGITS = 6
_CURRENCIES = {
    "$": "USD", "us$": "USD", "usd": "USD", "dollar": "USD", "dollars": "USD", "us dollar": "USD", "us dollars": "USD",
    "c$": "CAD", "ca$": "CAD", "cad": "CAD", "a$": "AUD", "au$": "AUD", "aud": "AUD", "nz$": "NZD", "nzd": "NZD",
    "€": "EUR", "eur": "EUR", "euro": "EUR", "euros": "EUR", "£": "GBP", "gbp": "GBP", "pounds": "GBP",
    "pounds sterling": "GBP", "¥": "JPY", "jpy": "JPY", "yen": "JPY", "chf": "CHF", "franken": "CHF",
    "us-dollar": "USD", "cent": "EUR", "₹": "INR",
}  # fmt: skip
_OTHER_CODES = "AED BRL CNY CZK DKK HKD HUF INR KRW MXN NOK PLN QAR SAR SEK SGD THB TRY ZAR"
_CURRENCIES |= {code.lower(): code for code in _OTHER_CODES.split()}
_CODES = "|".join(rf"{code}\b" for code in ("USD EUR GBP CHF JPY CAD AUD NZD " + _OTHER_CODES).split())
_AFTER_AMOUNT = {
    ".": r"(?:US )?dollars?\b|euros?\b|pounds(?: sterling)?\b|yen\b",
    ",": r"US-Dollar\b|Dollar\b|Euros?\b|Franken\b|Yen\b|Cent\b",
}


class Unit(StrEnum):
    """Units of time that a policy counts in."""

    DAYS = "days"
    WEEKS = "weeks"
    MONTHS = "months"
    YEARS = "years"
    HOURS = "hours"


_ENGLISH_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_GERMAN_SMALL = (
    "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn "
    "achtzehn neunzehn"
)


def _english_words() -> dict[str, int]:
    words = {word: value for value, word in enumerate(_ENGLISH_SMALL.split())}
    for tens, word in enumerate("twenty thirty forty fifty sixty seventy eighty ninety".split(), start=2):
        words[word] = tens * 10
        words |= {f"{word}-{unit}": tens * 10 + words[unit] for unit in _ENGLISH_SMALL.split()[1:10]}
    return words


def _german_words() -> dict[str, int]:
    words = {word: value for value, word in enumerate(_GERMAN_SMALL.split())}
    units = ["ein", *_GERMAN_SMALL.split()[2:10]]
    tens_words = "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig"
    for tens, word in enumerate(tens_words.split(), start=2):
        words[word] = tens * 10
        words |= {f"{unit}und{word}": tens * 10 + value for value, unit in enumerate(units, start=1)}
    return words | dict.fromkeys(("ein", "eine", "einen", "einem", "einer", "eines"), 1)


class NumberStyle:
    """How one language writes numbers: the sign of the decimals, its number words and the words of time.

    In English `1,250.50`, in German `1.250,50`. German cents are cents of the euro.
    """

    def __init__(self, *, decimal: str, words: dict[str, int], times: dict[str, Unit], kinds: str, business: str):
        """Compile the patterns; `times` maps the stem of each word of time to its unit."""
        group = "," if decimal == "." else "."
        number = rf"(?:\d{{1,3}}(?:{re.escape(group)}\d{{3}})+|\d{{1,12}})(?:{re.escape(decimal)}\d{{1,6}})?"
        self.decimal, self.group, self.words, self.times, self.business = decimal, group, words, times, business
        self.money = re.compile(
            r"(?<![\w.,$€£¥₹-])(?:"
            rf"(?P<prefix>US\$|CA?\$|AU?\$|NZ\$|[$€£¥₹]|{_CODES})\s?(?P<first>{number})(?:\s(?:{_CODES}))?"
            rf"|(?P<second>{number})\s?(?P<suffix>[€£¥₹]|{_CODES}|{_AFTER_AMOUNT[decimal]}))"
            r"(?![\w%]|[.,]\d)",
            re.IGNORECASE,
        )
        worded = "|".join(sorted(words, key=len, reverse=True))
        stems = "|".join(sorted(times, key=len, reverse=True))
        self.duration = re.compile(
            rf"(?<![\w.,-])(?:(?P<digits>\d{{1,4}})|(?P<word>{worded}))"
            rf"(?:\s?\((?P<repeated>\d{{1,4}})\))?[\s-](?P<kind>{kinds})?\s?(?P<unit>{stems})(?!\w)",
            re.IGNORECASE,
        )


ENGLISH_NUMBERS = NumberStyle(
    decimal=".",
    words=_english_words(),
    times={
        f"{stem}{ending}": Unit(f"{stem}s") for stem in ("day", "week", "month", "year", "hour") for ending in ("", "s")
    },
    kinds="calendar|consecutive|business|working",
    business="business working",
)
GERMAN_NUMBERS = NumberStyle(
    decimal=",",
    words=_german_words(),
    times={
        f"{stem}{ending}": unit
        for stem, unit, endings in (
            ("tag", Unit.DAYS, "e en es"), ("kalendertag", Unit.DAYS, "e en es"), ("werktag", Unit.DAYS, "e en es"),
            ("arbeitstag", Unit.DAYS, "e en es"), ("woche", Unit.WEEKS, "n"), ("monat", Unit.MONTHS, "e en s"),
            ("jahr", Unit.YEARS, "e en es"), ("stunde", Unit.HOURS, "n"),
        )
        for ending in ("", *endings.split())
    },
    kinds="aufeinanderfolgende[nr]?|zusammenhängende[nr]?",
    business="werktag arbeitstag",
)  # fmt: skip

_PERCENT = re.compile(
    r"(?<![\w.,-])(?P<number>\d{1,9}(?:[.,]\d{1,9})?)\s?(?:%(?!\w)|per\s?cent\b|prozent\b|(?:vom|v\.) ?hundert\b)",
    re.IGNORECASE,
)


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


@dataclass(frozen=True, kw_only=True)
class Percentage:
    """A percentage as written; `value` is None where it is not a whole number from 1 to 100."""

    start: int
    end: int
    value: int | None


def find_money(text: str, numbers: NumberStyle = ENGLISH_NUMBERS) -> list[Money]:
    """Return the amounts of a text whose form is unambiguous in its language, in order."""
    found: list[Money] = []
    for match in numbers.money.finditer(text):
        written = match["first"] or match["second"]
        whole, _, fraction = written.replace(numbers.group, "").partition(numbers.decimal)
        if len(fraction) == 3 and numbers.group not in written and (match["suffix"] or numbers.decimal == ","):
            continue  # 1.000 euros, 1,000 Euro: a thousand or one, by the writer's language
        sign = " ".join((match["prefix"] or match["suffix"]).lower().split())
        micros = int(whole) * 10**_MICRO_DIGITS + int(fraction.ljust(_MICRO_DIGITS, "0"))
        micros = micros // 100 if sign == "cent" else micros
        found.append(Money(start=match.start(), end=match.end(), currency=_CURRENCIES[sign], micros=micros))
    return found


def find_durations(text: str, numbers: NumberStyle = ENGLISH_NUMBERS) -> list[Duration]:
    """Return the lengths of time of a text, in order; `thirty (31) days` contradicts itself and is left out."""
    found: list[Duration] = []
    for match in numbers.duration.finditer(text):
        value = int(match["digits"]) if match["digits"] else numbers.words[match["word"].lower()]
        if match["repeated"] and int(match["repeated"]) != value:
            continue
        named = f"{match['kind'] or ''} {match['unit']}".lower()
        found.append(
            Duration(
                start=match.start(),
                end=match.end(),
                value=value,
                unit=numbers.times[match["unit"].lower()],
                is_business=any(word in named for word in numbers.business.split()),
            )
        )
    return found


def find_percentages(text: str) -> list[Percentage]:
    """Return the percentages of a text, in order."""
    found: list[Percentage] = []
    for match in _PERCENT.finditer(text):
        whole = int(match["number"]) if match["number"].isdigit() else 0
        value = whole if 1 <= whole <= 100 else None
        found.append(Percentage(start=match.start(), end=match.end(), value=value))
    return found
