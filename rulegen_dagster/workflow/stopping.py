"""Stopping: a request to come to an end, which engines and drivers look at; and the signals that make one."""

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Final

from rulegen_dagster.domain.states import AttemptOutcome
from rulegen_dagster.domain.work import Claim, FailedAttempt
from rulegen_dagster.ledger.claims import PROVIDER_STAGES

WORKER_STOPPED: Final = "worker_stopped"
"""The error code of an attempt that was given back because its worker was told to stop."""

_CALLS_SHARE: Final = 0.75
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_TOLD: Final = b"\nstopping: what is in flight is finished or given back; the same signal again ends at once\n"


class Stop:
    """A request to stop, made once, from any thread or a signal's handler.

    Nothing is woken by it: whoever works looks at it at least twice a second.
    """

    def __init__(self, *, grace_ms: int) -> None:
        """Give whoever stops `grace_ms` from the request to its end."""
        self.grace_s = grace_ms / 1000
        self._requested_at: float | None = None

    def request(self) -> None:
        """Ask for the end; a second request changes nothing."""
        if self._requested_at is None:
            self._requested_at = time.monotonic()

    @property
    def is_requested(self) -> bool:
        """Whether the end was asked for."""
        return self._requested_at is not None

    @property
    def calls_left_s(self) -> float:
        """How long calls in flight may still take, in seconds; infinite before the request.

        They have a share of the grace period; the rest is for giving them back.
        """
        if self._requested_at is None:
            return math.inf
        return max(0.0, self._requested_at + self.grace_s * _CALLS_SHARE - time.monotonic())

    @property
    def left_s(self) -> float:
        """How much of the grace period is left, in seconds; the whole of it before the request."""
        if self._requested_at is None:
            return self.grace_s
        return max(0.0, self._requested_at + self.grace_s - time.monotonic())


def given_back(claim: Claim) -> FailedAttempt:
    """Return the result of an attempt that its worker gives up: the item waits, due now, and no attempt is used up.

    A call that was ended may be paid for all the same, and counts as such.
    """
    return FailedAttempt(
        claim=claim,
        outcome=AttemptOutcome.CANCELLED,
        error_code=WORKER_STOPPED,
        message="its worker was told to stop and gave it back",
        provider_called=claim.key.stage in PROVIDER_STAGES,
    )


@contextlib.contextmanager
def stopped_by_signals(*, grace_ms: int) -> Iterator[Stop]:
    """Turn the first SIGTERM or Ctrl-C within the block into a request to stop.

    The second one does what it always does: it ends the process at once. Outside the main thread, which alone receives
    signals, the request never comes.
    """
    stop = Stop(grace_ms=grace_ms)
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def ask(_number: int, _frame: FrameType | None) -> None:
        stop.request()
        for number in heard:
            signal.signal(number, signal.SIG_DFL)
        # Straight to the kernel: the handler may have interrupted a half-written line.
        with contextlib.suppress(OSError):
            os.write(2, _TOLD)

    # A signal that is ignored (a job in the background of a shell) stays ignored.
    heard = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, ask) for number in heard}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
