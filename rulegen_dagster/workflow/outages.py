"""Outages of the ledger: how often to come back to it, and for how long.

What is tried again here is one transaction or one read that may be repeated: each caller says why. Nothing of an outage
is ever booked on an attempt.
"""

import time
from collections.abc import Callable
from typing import TypeVar

from rulegen_dagster.domain.errors import LedgerError

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 0.5
LEAST_PATIENCE_S = 5.0
"""How long to come back to a ledger where no lease says how long it is worth it: a server restarts in that time."""

_R = TypeVar("_R")


def pause_s(failures: int) -> float:
    """Return how long to wait after so many failures in a row, in seconds; it doubles, up to `LONGEST_PAUSE_S`."""
    return float(min(FIRST_PAUSE_S * 2 ** min(failures - 1, 32), LONGEST_PAUSE_S))


def ride_out(
    work: Callable[[], _R], *, patience_s: float | None = None, sleep: Callable[[float], None] = time.sleep
) -> _R:
    """Do the work, and do it again while the ledger has a fault that may pass, for `patience_s` from the first one.

    The work must bear finding itself done: a commit whose answer was lost has landed. Without a patience it is
    `LEAST_PATIENCE_S`. Raises the last `LedgerError`, and at once one that cannot pass.
    """
    patience_s = LEAST_PATIENCE_S if patience_s is None else patience_s
    failures, until = 0, 0.0
    while True:
        try:
            return work()
        except LedgerError as error:
            now = time.monotonic()
            failures += 1
            until = until or now + patience_s
            if not error.is_transient or now >= until:
                raise
            sleep(min(pause_s(failures), until - now))
