"""Events for people and programs: a job's transitions so far, or as they happen."""

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from rulegen_dagster.domain.states import TERMINAL_JOB_STATES
from rulegen_dagster.ledger.events import Event, EventReader
from rulegen_dagster.ledger.reads import JobRecord
from rulegen_dagster.workflow.runtime import Runtime

POLL_S: Final = 0.5
_SETTLE_S = 0.05
_SETTLE_LOOKS = 40


def events_of(
    runtime: Runtime, job: JobRecord, *, since: int = 0, sleep: Callable[[float], None] = time.sleep
) -> Iterator[Event]:
    """Yield the job's events behind number `since`, oldest first.

    Rows whose order is not settled yet are waited for, at most two seconds; see `ledger.events`.
    """
    reader = EventReader(runtime.ledger.database, job.job_id, after=since)
    looks = itertools.count()
    while True:
        batch = reader.read()
        yield from batch.events
        if batch.is_complete or (not batch.events and next(looks) >= _SETTLE_LOOKS):
            return
        if not batch.events:
            sleep(_SETTLE_S)


def follow_events(
    runtime: Runtime, job: JobRecord, *, since: int = 0, sleep: Callable[[float], None] = time.sleep
) -> Iterator[Event]:
    """Yield the job's events behind number `since` as they happen; end behind the last one of a job that has ended.

    Nothing is pushed, so a consumer may be as slow as it likes: the cursor moves only with what it took. One that was
    ended goes on with the number of the last event that it has seen.
    """
    reader = EventReader(runtime.ledger.database, job.job_id, after=since)
    while True:
        # Asked before the look, so that the look sees whatever the end has left.
        has_ended = runtime.ledger.reads.job_by_id(job.job_id).state in TERMINAL_JOB_STATES
        batch = reader.read()
        yield from batch.events
        if has_ended and batch.is_complete:
            return
        if not batch.events:
            sleep(POLL_S)


def event_report(event: Event) -> dict[str, Any]:
    """Return an event as plain data, in the shape of one line of `rulegen events --json`."""
    return {
        "id": event.event_id,
        "at_ms": event.at,
        "subject": event.subject,
        "item": event.item,
        "from": event.from_state,
        "to": event.to_state,
        "cause": event.cause,
        "actor": event.actor,
    }
