import pytest
from hypothesis import given
from hypothesis import strategies as st

from rulegen_dagster.domain.money import exponent, format_minor, micros_per_minor

CURRENCIES = st.sampled_from(["EUR", "USD", "JPY", "KWD", "ISK", "CHF"])


@pytest.mark.parametrize(
    ("minor", "currency", "shown"),
    [
        (7500, "USD", "USD 75.00"),
        (5, "EUR", "EUR 0.05"),
        (0, "EUR", "EUR 0.00"),
        (-5, "EUR", "EUR -0.05"),
        (-12345, "EUR", "EUR -123.45"),
        (1200, "JPY", "JPY 1200"),
        (1, "KWD", "KWD 0.001"),
    ],
)
def test_an_amount_is_shown_with_the_decimals_of_its_currency(minor: int, currency: str, shown: str) -> None:
    assert format_minor(minor, currency) == shown


@given(st.integers(-(10**12), 10**12), CURRENCIES)
def test_a_shown_amount_says_exactly_the_minor_units(minor: int, currency: str) -> None:
    shown = format_minor(minor, currency)

    assert int(shown.removeprefix(f"{currency} ").replace(".", "")) == minor


@given(CURRENCIES)
def test_a_minor_unit_holds_a_whole_number_of_micros(currency: str) -> None:
    assert micros_per_minor(currency) * 10 ** exponent(currency) == 1_000_000


def test_an_unlisted_currency_has_two_decimals() -> None:
    assert exponent("XYZ") == 2
