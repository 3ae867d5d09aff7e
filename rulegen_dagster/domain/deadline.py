"""Deadlines: how much time a job has left for work, and durations as people write them. All times are ms."""

import math
import re
from dataclasses import dataclass

from rulegen_dagster.domain.errors import InputError

MAX_DURATION_MS = 3_650 * 24 * 3_600_000
"""The longest duration that can be given: ten years."""

_UNITS = {"d": 24 * 3_600_000, "h": 3_600_000, "m": 60_000, "s": 1_000}
_DURATION = re.compile(r"(?=\d)" + "".join(rf"(?:(\d{{1,9}}){unit})?" for unit in _UNITS))


@dataclass(frozen=True, kw_only=True)
class DeadlinePolicy:
    """What a job is given, and what has to be left of it for another call.

    `given_ms` counts from submission. `margin_ms` is kept for completing, after the last call. A call that would get
    less than `least_call_ms` is not worth its price.
    """

    given_ms: int = 7 * 24 * 3_600_000
    margin_ms: int = 2_000
    least_call_ms: int = 1_000

    @property
    def reserve_ms(self) -> int:
        """What has to be left before the deadline, so that a call can begin."""
        return self.margin_ms + self.least_call_ms


DEFAULT_DEADLINES = DeadlinePolicy()
"""What holds where nobody has set anything else."""


def remaining_ms(deadline_at: int, now: int, margin_ms: int) -> int:
    """Return what is left for calls; negative once the margin has begun."""
    return deadline_at - now - margin_ms


def is_enough(remaining: int | None, policy: DeadlinePolicy, *, wait_ms: int = 0) -> bool:
    """Return whether a useful call fits into what is left, after a wait; None means that there is no deadline."""
    return remaining is None or remaining - wait_ms >= policy.least_call_ms


def left_ms(at_claim: int | None, elapsed_s: float) -> int | None:
    """Return what is left of a claim's remaining time after `elapsed_s` of the worker's own monotonic clock."""
    return None if at_claim is None else at_claim - math.ceil(elapsed_s * 1000)


def call_budget_ms(remaining: int | None, call_timeout_ms: int) -> int:
    """Return how long one call may take: its timeout, and never more than what is left."""
    return call_timeout_ms if remaining is None else min(call_timeout_ms, remaining)


def parse_duration(text: str) -> int:
    """Read a duration such as `90s`, `30m`, `2h`, `7d` or `1h30m`; return it in ms.

    Raises `InputError` for anything else, for nothing at all, and for more than ten years.
    """
    found = _DURATION.fullmatch(text.strip())
    counts = found.groups() if found else ()
    total = sum(int(count or 0) * size for count, size in zip(counts, _UNITS.values(), strict=False))
    if not 0 < total <= MAX_DURATION_MS:
        raise InputError(
            "a duration is a whole number with a unit, such as 90s, 30m, 2h or 7d, more than nothing and at most 3650d",
            code="invalid_duration",
        )
    return total


def duration(length_ms: int) -> str:
    """Return a duration as `parse_duration` reads it, in whole seconds, rounded down: `6d23h59m58s`, `0s`."""
    rest, parts = max(length_ms, 0), []
    for unit, size in _UNITS.items():
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"
