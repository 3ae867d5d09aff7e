import pytest
from hypothesis import given
from hypothesis import strategies as st

from rulegen_dagster.domain.deadline import (
    MAX_DURATION_MS,
    DeadlinePolicy,
    call_budget_ms,
    duration,
    is_enough,
    left_ms,
    parse_duration,
    remaining_ms,
)
from rulegen_dagster.domain.errors import InputError

POLICY = DeadlinePolicy(given_ms=60_000, margin_ms=2_000, least_call_ms=1_000)


def test_what_remains_is_the_time_to_the_deadline_less_the_margin() -> None:
    assert remaining_ms(10_000, 4_000, 2_000) == 4_000
    assert remaining_ms(10_000, 9_000, 2_000) == -1_000
    assert POLICY.reserve_ms == 3_000


@pytest.mark.parametrize(
    ("remaining", "wait", "enough"),
    [(1_000, 0, True), (999, 0, False), (-5, 0, False), (1_500, 500, True), (1_500, 501, False), (None, 10**12, True)],
)
def test_a_call_needs_its_least_time_after_any_wait(remaining: int | None, wait: int, enough: bool) -> None:
    assert is_enough(remaining, POLICY, wait_ms=wait) is enough


def test_a_call_gets_its_timeout_and_never_more_than_what_is_left() -> None:
    assert call_budget_ms(left_ms(90_000, 0.0), 60_000) == 60_000
    assert call_budget_ms(left_ms(90_000, 45.5), 60_000) == 44_500
    assert call_budget_ms(left_ms(None, 45.5), 60_000) == 60_000


@pytest.mark.parametrize(
    ("text", "length_ms"),
    [
        ("90s", 90_000),
        ("30m", 1_800_000),
        ("2h", 7_200_000),
        ("7d", 604_800_000),
        ("1h30m", 5_400_000),
        (" 1s ", 1_000),
    ],
)
def test_a_duration_is_a_number_with_a_unit(text: str, length_ms: int) -> None:
    assert parse_duration(text) == length_ms


NO_DURATIONS = ["", " ", "2", "h", "2 h", "-2h", "+2h", "2.5h", "2H", "2w", "0s", "0h0m", "30m1h", "2h2h", "3651d"]


@pytest.mark.parametrize("text", [*NO_DURATIONS, "9" * 40 + "s", "²h", "2h\n3m"])
def test_anything_else_is_no_duration(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_duration(text)

    assert caught.value.code == "invalid_duration"
    assert "90s" in caught.value.message


@given(st.integers(1, MAX_DURATION_MS // 1_000))
def test_what_is_printed_is_read_as_the_same_duration(seconds: int) -> None:
    assert parse_duration(duration(seconds * 1_000)) == seconds * 1_000


def test_a_duration_is_printed_in_whole_seconds_and_never_below_nothing() -> None:
    assert [duration(length) for length in (-5_000, 0, 999, 1_999, 93_784_000)] == ["0s", "0s", "0s", "1s", "1d2h3m4s"]
