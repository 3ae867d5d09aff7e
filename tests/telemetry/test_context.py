"""`traceparent`, as people, sensors and other programs may hand it over."""

import pytest

from rulegen_dagster.telemetry.context import TraceContext

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def test_a_place_is_read_as_it_was_written() -> None:
    text = f"00-{TRACE}-{SPAN}-00"

    found = TraceContext.parse(text)

    assert found == TraceContext(TRACE, SPAN, "00")
    assert found is not None
    assert found.traceparent == text


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "nonsense",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-01\n",
        f" 00-{TRACE}-{SPAN}-01",
    ],
)
def test_what_is_no_place_is_passed_over(text: str | None) -> None:
    assert TraceContext.parse(text) is None
