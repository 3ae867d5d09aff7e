"""Mirroring: the events of accepted outputs that no run has written, copied from the outbox into an event log.

The log and the ledger share no transaction. So each row is held by one process at a time, its event is looked for
before it is written, and the row is marked after that: a crash between any two of these leaves a row that the next look
treats right. What is left open is a process that is suspended between its look and its write for longer than its hold:
it may write a second event, and the ledger is not touched by that.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from rulegen_dagster.domain.failpoints import Failpoint, reach
from rulegen_dagster.ledger.outbox import Acceptance, OutboxRow
from rulegen_dagster.workflow.runtime import Runtime

HOLD_MS: Final = 60_000
"""How long one process has the rows of a batch to itself."""

BATCH: Final = 50
"""Rows that are held, looked for and marked together."""

_LOOKS_PER_EVENT: Final = 10


class EventLog(Protocol):
    """Where the events go."""

    def unfinished(self, run_ids: Collection[str]) -> Collection[str]:
        """Return those of the runs that are still in progress and write their own events."""
        ...

    def missing(self, acceptances: Sequence[Acceptance]) -> Sequence[Acceptance]:
        """Return those whose event is not in the log, which is then ready to take it."""
        ...

    def write(self, acceptance: Acceptance) -> None:
        """Write one event."""
        ...


@dataclass(frozen=True, kw_only=True)
class Mirrored:
    """What was done with the rows: their events written, or found in the log, or neither.

    A row is left where another process holds it, or where the log was too slow for the hold.
    """

    written: int = 0
    found: int = 0
    left: int = 0

    def __add__(self, other: "Mirrored") -> "Mirrored":
        """Return the sum of both."""
        return Mirrored(
            written=self.written + other.written, found=self.found + other.found, left=self.left + other.left
        )


def mirror(runtime: Runtime, log: EventLog, *, limit: int, budget_ms: int = HOLD_MS // 3) -> Mirrored:
    """Mirror the rows that are not mirrored yet, oldest first; write about `limit` events at most.

    No batch is begun after `budget_ms`, and none takes much longer than half a hold. Rows of runs in progress are left
    out, and so are rows that another process holds. Raises `LedgerError`, and what the log raises; what was written
    before that is marked.
    """
    done, reads = Mirrored(), runtime.ledger.reads
    until = reads.now() + budget_ms
    for batch in _batches(runtime, log, unmirrored=True):
        done += _mirror(runtime, log, batch)
        if done.written >= limit or done.written + done.found >= limit * _LOOKS_PER_EVENT or reads.now() > until:
            break
    return done


def resync(runtime: Runtime, log: EventLog, *, observe: Callable[[Mirrored], None] = lambda _: None) -> Mirrored:
    """Go through every accepted output, mirrored or not, and write each event that the log lacks.

    For a log that was lost, or whose runs were deleted. `observe` hears how far it is after each batch. Raises as
    `mirror` does; a second call finds what the first has written.
    """
    done = Mirrored()
    for batch in _batches(runtime, log, unmirrored=False):
        done += _mirror(runtime, log, batch)
        observe(done)
    return done


def _batches(runtime: Runtime, log: EventLog, *, unmirrored: bool) -> Iterator[list[OutboxRow]]:
    last, known, running = 0, set[str](), set[str]()
    while True:
        rows = runtime.ledger.outbox.rows(after=last, limit=BATCH, unmirrored=unmirrored, besides=running)
        new = {row.run_id for row in rows if row.run_id is not None} - known
        known |= new
        in_progress = log.unfinished(new)
        if in_progress:
            # Asked again without them, so that a long run in front does not hold up what lies behind it.
            running |= set(in_progress)
            continue
        if not rows:
            return
        yield rows
        last = rows[-1].outbox_id


def _mirror(runtime: Runtime, log: EventLog, rows: Sequence[OutboxRow]) -> Mirrored:
    outbox, reads = runtime.ledger.outbox, runtime.ledger.reads
    until = reads.now() + HOLD_MS // 2
    held = outbox.hold([row.outbox_id for row in rows], lease_ms=HOLD_MS)
    missing = log.missing(outbox.acceptances(sorted(held)))
    there = held.keys() - {acceptance.outbox_id for acceptance in missing}
    written = set[int]()
    try:
        for acceptance in missing:
            if reads.now() > until:
                # A slow log, or a process that stood still: the rest is held anew, by whoever looks next.
                break
            log.write(acceptance)
            reach(Failpoint.EVENT_WRITTEN)
            written.add(acceptance.outbox_id)
    finally:
        known = {row.outbox_id for row in rows if row.is_mirrored}
        outbox.mirrored(sorted((there | written) - known), held=held)
    return Mirrored(written=len(written), found=len(there), left=len(rows) - len(written) - len(there))
