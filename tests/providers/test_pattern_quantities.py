"""Amounts, times and percentages as English and German policies write them."""

import pytest

from rulegen_dagster.providers.pattern_quantities import (
    ENGLISH_NUMBERS,
    GERMAN_NUMBERS,
    Unit,
    find_durations,
    find_money,
    find_percentages,
)
from rulegen_dagster.rules.numerals import counts_in


@pytest.mark.parametrize(
    ("text", "currency", "minor"),
    [
        ("$75", "USD", 7500),
        ("$ 1,250.50", "USD", 125050),
        ("US$400", "USD", 40000),
        ("$75 USD", "USD", 7500),
        ("EUR 60", "EUR", 6000),
        ("15.25€", "EUR", 1525),
        ("50 dollars", "USD", 5000),
        ("£0.5", "GBP", 50),
        ("¥5000", "JPY", 5000),
        ("CHF 12.30", "CHF", 1230),
    ],
)
def test_an_amount_is_read_in_minor_units(text: str, currency: str, minor: int) -> None:
    [money] = find_money(f"up to {text} per day")

    assert (money.currency, money.minor) == (currency, minor)
    assert f"up to {text} per day"[money.start : money.end] == text


@pytest.mark.parametrize("text", ["$10k", "1.000 euros", "$5.5.5", "75", "AB$75", "$9999999999999", "$75%"])
def test_an_amount_of_doubtful_form_is_not_read(text: str) -> None:
    assert find_money(f"up to {text} per day") == []


@pytest.mark.parametrize(
    ("text", "currency", "minor"),
    [
        ("50 Euro", "EUR", 5000),
        ("1.250,50 EUR", "EUR", 125050),
        ("1.000 Euro", "EUR", 100000),
        ("€ 15,25", "EUR", 1525),
        ("20 Cent", "EUR", 20),
        ("75 US-Dollar", "USD", 7500),
        ("CHF 12,30", "CHF", 1230),
    ],
)
def test_a_german_amount_is_read_in_minor_units(text: str, currency: str, minor: int) -> None:
    [money] = find_money(f"bis zu {text} pro Tag", GERMAN_NUMBERS)

    assert (money.currency, money.minor) == (currency, minor)
    assert f"bis zu {text} pro Tag"[money.start : money.end] == text


@pytest.mark.parametrize("text", ["1,000 Euro", "1,250.50 EUR", "15.25 €", "1.00 Euro", "5,5,5 Euro", "50 Eurocent"])
def test_a_german_amount_of_doubtful_form_is_not_read(text: str) -> None:
    assert find_money(f"bis zu {text} pro Tag", GERMAN_NUMBERS) == []


def test_an_amount_with_more_places_than_its_currency_has_no_minor_units() -> None:
    [money] = find_money("$0.655")

    assert (money.micros, money.minor) == (655_000, None)


@pytest.mark.parametrize(
    ("text", "value", "unit", "is_business"),
    [
        ("30 days", 30, Unit.DAYS, False),
        ("thirty (30) calendar days", 30, Unit.DAYS, False),
        ("10 business days", 10, Unit.DAYS, True),
        ("two weeks", 2, Unit.WEEKS, False),
        ("an 8-hour flight", 8, Unit.HOURS, False),
        ("forty-five days", 45, Unit.DAYS, False),
        ("ninety-nine days", 99, Unit.DAYS, False),
    ],
)
def test_a_length_of_time_is_read(text: str, value: int, unit: Unit, is_business: bool) -> None:
    [duration] = find_durations(text)

    assert (duration.value, duration.unit, duration.is_business) == (value, unit, is_business)


@pytest.mark.parametrize(
    ("text", "value", "unit", "is_business"),
    [
        ("30 Tage", 30, Unit.DAYS, False),
        ("zwei Wochen", 2, Unit.WEEKS, False),
        ("eines Monats", 1, Unit.MONTHS, False),
        ("einundzwanzig Tagen", 21, Unit.DAYS, False),
        ("dreißig (30) Kalendertagen", 30, Unit.DAYS, False),
        ("10 Arbeitstage", 10, Unit.DAYS, True),
        ("fünf Werktagen", 5, Unit.DAYS, True),
        ("8 Stunden", 8, Unit.HOURS, False),
    ],
)
def test_a_german_length_of_time_is_read(text: str, value: int, unit: Unit, is_business: bool) -> None:
    [duration] = find_durations(text, GERMAN_NUMBERS)

    assert (duration.value, duration.unit, duration.is_business) == (value, unit, is_business)


def test_a_length_of_time_that_contradicts_itself_is_not_read() -> None:
    assert find_durations("thirty (31) days") == []
    assert find_durations("dreißig (31) Tage", GERMAN_NUMBERS) == []


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("above 20 %", 20),
        ("75 percent", 75),
        ("50 per cent", 50),
        ("bis zu 50 Prozent", 50),
        ("um 10 vom Hundert", 10),
        ("12,6 Prozent", None),
        ("12.5%", None),
        ("0 percent", None),
        ("150 percent", None),
    ],
)
def test_a_percentage_is_seen_and_read_where_it_is_whole(text: str, value: int | None) -> None:
    [percentage] = find_percentages(text)

    assert percentage.value == value


def test_days_are_no_percentage() -> None:
    assert find_percentages("20 days") == []


@pytest.mark.parametrize("numbers", [ENGLISH_NUMBERS, GERMAN_NUMBERS], ids=["english", "german"])
def test_each_number_word_that_is_read_is_one_that_grounding_finds_in_a_quote(numbers: object) -> None:
    words = ENGLISH_NUMBERS.words if numbers is ENGLISH_NUMBERS else GERMAN_NUMBERS.words

    assert {word: value for word, value in words.items() if value not in counts_in(f"{word} x")} == {}
