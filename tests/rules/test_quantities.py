"""Quantities: a number is stated in its own unit or in another one of its kind, and in no other."""

from decimal import Decimal

import pytest

from rulegen_dagster.rules.quantities import quantities_in, states_count, unit_of


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        ("mindestens zwei Stunden", 120, "minute"),
        ("at least two hours", 120, "minutes"),
        ("after 90 minutes", 90, "minute"),
        ("within 48 hours", 2, "day"),
        ("a two-week trip", 14, "days"),
        ("half an hour", 30, "minute"),
        ("eine halbe Stunde", 30, "Minuten"),
        ("anderthalb Stunden", 90, "minute"),
        ("innerhalb einer Woche", 7, "day"),
        ("vom 15. Tag an", 15, "day"),
        ("a 10-day trip", 10, "day"),
        ("2 years", 24, "month"),
        ("one quarter", 3, "months"),
        ("1.5 km", 1500, "metres"),
        ("10 working days", 10, "working_days"),
        ("within 10 business days", 10, "working day"),
        ("5 jours ouvrables", 5, "business_days"),
        ("30 calendar days", 30, "day"),
        ("50 %", 50, "percent"),
        ("fünfzig Prozent", 50, "%"),
        ("grade 7 or above", 7, "day"),
        ("75", 75, "minute"),
        ("two hours", 2, None),
        ("two hours", 2, "grade"),
    ],
)
def test_a_number_is_stated_in_another_unit_of_its_kind(text: str, value: int, unit: str | None) -> None:
    assert states_count(text, Decimal(value), unit)


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        ("mindestens zwei Stunden", 119, "minute"),
        ("mindestens zwei Stunden", 121, "minute"),
        ("mindestens zwei Stunden", 2, "minute"),
        ("mindestens zwei Stunden", 7200, "minute"),
        ("half an hour", 60, "minute"),
        ("half an hour", 1, "hour"),
        ("six months", 180, "day"),
        ("six months", 6, "day"),
        ("six months", 6, "nights"),
        ("10 working days", 10, "day"),
        ("10 days", 10, "working_days"),
        ("50 percent", 50, "day"),
        ("$75", 75, "day"),
        ("no number", 1, "day"),
    ],
)
def test_a_number_of_another_unit_is_not_stated(text: str, value: int, unit: str) -> None:
    assert not states_count(text, Decimal(value), unit)


@pytest.mark.parametrize("name", ["grade", "", None, "very_long_day_of_something", "class steps"])
def test_a_unit_that_is_not_known_has_no_dimension(name: str | None) -> None:
    assert unit_of(name) is None


def test_an_amount_per_something_is_of_another_kind_than_an_amount() -> None:
    rate, amount = quantities_in("20 Cent je Kilometer, höchstens jedoch 130 Euro")

    assert (rate.readings, rate.dimension, rate.per) == ((Decimal("0.20"),), "money", "length")
    assert (amount.readings, amount.dimension, amount.per) == ((Decimal(130),), "money", None)
