"""Amounts and times as policies write them."""

import pytest

from rulegen_dagster.providers.pattern_quantities import Unit, find_durations, find_money, has_percentage


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
    ],
)
def test_a_length_of_time_is_read(text: str, value: int, unit: Unit, is_business: bool) -> None:
    [duration] = find_durations(text)

    assert (duration.value, duration.unit, duration.is_business) == (value, unit, is_business)


def test_a_length_of_time_that_contradicts_itself_is_not_read() -> None:
    assert find_durations("thirty (31) days") == []


def test_percentages_are_seen() -> None:
    assert has_percentage("above 20 %")
    assert has_percentage("75 percent")
    assert not has_percentage("20 days")
