"""Trace context: where a span stands, in W3C's `traceparent`, as the ledger and Dagster's run tags keep it."""

import re
from dataclasses import dataclass
from typing import Final, Self

_TRACEPARENT: Final = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")


@dataclass(frozen=True)
class TraceContext:
    """A span's place: its trace, itself, and flags (bit 0: it is recorded), all in hex."""

    trace_id: str
    span_id: str
    flags: str = "01"

    @classmethod
    def parse(cls, text: str | None) -> Self | None:
        """Read a `traceparent` of version 00; None for anything else, because tags can be edited by people."""
        found = _TRACEPARENT.fullmatch(text) if text else None
        return cls(*found.groups()) if found else None

    @property
    def traceparent(self) -> str:
        """The context as W3C writes it."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags}"
