"""Dates in running text, in the notations of policies; a date of a rule counts as stated when one reading equals it."""

import calendar
import re
from collections.abc import Iterator
from datetime import date
from typing import Final

_MONTH_NAMES: Final = (
    "january jan januar jänner janvier", "february feb februar février fevrier", "march mar märz maerz mars",
    "april apr avril", "may mai", "june jun juni juin", "july jul juli juillet", "august aug août aout",
    "september sep sept septembre", "october oct oktober okt octobre", "november nov novembre",
    "december dec dezember dez décembre decembre",
)  # fmt: skip
_MONTHS: Final = {name: number for number, names in enumerate(_MONTH_NAMES, start=1) for name in names.split()}
_NAME: Final = rf"(?P<month>{'|'.join(sorted(_MONTHS, key=len, reverse=True))})\b\.?"
_YEAR: Final = r"(?P<year>[12]\d{3})(?!\d)"

_NUMBERS = (
    re.compile(r"(?<![\d-])(?P<year>[12]\d{3})-(?P<month>\d{1,2})-(?P<day>\d{1,2})(?!\d)"),
    re.compile(rf"(?<![\d.])(?P<day>\d{{1,2}})\.\s?(?P<month>\d{{1,2}})\.\s?{_YEAR}"),
    re.compile(rf"(?<![\d/])(?P<day>\d{{1,2}})/(?P<month>\d{{1,2}})/{_YEAR}"),
    re.compile(rf"(?<![\d/])(?P<month>\d{{1,2}})/(?P<day>\d{{1,2}})/{_YEAR}"),
    re.compile(r"(?P<year>[12]\d{3})\s?年\s?(?P<month>\d{1,2})\s?月\s?(?P<day>\d{1,2})\s?日"),
)
_WORDS = (
    re.compile(rf"(?<!\d)(?P<day>\d{{1,2}})(?:st|nd|rd|th|er|\.)?\s+(?:of\s+)?{_NAME},?\s+{_YEAR}", re.IGNORECASE),
    re.compile(rf"\b{_NAME}\s+(?P<day>\d{{1,2}})(?:st|nd|rd|th)?,?\s+{_YEAR}", re.IGNORECASE),
)
_MONTH_OF_YEAR = re.compile(rf"\b{_NAME},?\s+{_YEAR}", re.IGNORECASE)


def dates_in(text: str) -> frozenset[date]:
    """Return every date that a text may state.

    `3/4/2026` has two readings; a month without a day ("from July 2026") states its first and its last day.
    """
    return frozenset(_read(text))


def _read(text: str) -> Iterator[date]:
    for pattern in _NUMBERS:
        for match in pattern.finditer(text):
            yield from _date(int(match["year"]), int(match["month"]), int(match["day"]))
    for pattern in _WORDS:
        for match in pattern.finditer(text):
            yield from _date(int(match["year"]), _MONTHS[match["month"].lower()], int(match["day"]))
    for match in _MONTH_OF_YEAR.finditer(text):
        year, month = int(match["year"]), _MONTHS[match["month"].lower()]
        yield date(year, month, 1)
        yield date(year, month, calendar.monthrange(year, month)[1])


def _date(year: int, month: int, day: int) -> Iterator[date]:
    try:
        yield date(year, month, day)
    except ValueError:
        return
