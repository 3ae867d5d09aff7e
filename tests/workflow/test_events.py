import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rulegen_dagster.domain.states import Stage
from rulegen_dagster.ledger.database import Database
from rulegen_dagster.ledger.events import Event, EventReader
from rulegen_dagster.ledger.reads import JobRecord
from rulegen_dagster.ledger.schema import transition
from rulegen_dagster.workflow.events import event_report, events_of, follow_events
from rulegen_dagster.workflow.runtime import Runtime
from tests.workflow.conftest import OTHER, claim_items, finish, open_rules, policy, submit

only_postgresql = pytest.mark.parametrize("ledger_url", ["postgresql"], indirect=True)


def _no_sleep(_seconds: float) -> None:
    raise AssertionError("there was nothing to wait for")


def _write(connection: Connection, job: JobRecord, cause: str) -> None:
    connection.execute(
        sa.insert(transition).values(
            job_id=job.job_id, subject="job", from_state="a", to_state="b", cause=cause, actor="test", at=1
        )
    )


@contextmanager
def _in_flight(database: Database, job: JobRecord, cause: str) -> Iterator[None]:
    """A transaction that has written one event and has not committed it."""
    with database.write() as connection:
        _write(connection, job, cause)
        yield


def _reader(runtime: Runtime, job: JobRecord) -> EventReader:
    """A reader that has seen everything so far."""
    reader = EventReader(runtime.ledger.database, job.job_id)
    while not reader.read().is_complete:
        pass
    return reader


def _causes(events: tuple[Event, ...]) -> list[str]:
    return [event.cause for event in events]


def test_a_job_is_told_from_its_beginning_in_order(runtime: Runtime) -> None:
    job = finish(runtime, submit(runtime, policy(2)))

    events = [event_report(event) for event in events_of(runtime, job)]

    of_job = [(event["from"], event["to"]) for event in events if event["subject"] == "job"]
    assert [event["id"] for event in events] == sorted(event["id"] for event in events)
    assert (of_job[0], of_job[-1]) == ((None, "received"), ("validating", "awaiting_confirmation"))
    assert {event["item"] for event in events} == {
        None,
        "parse",
        "retrieve",
        "generate_rules/rule-01",
        "generate_rules/rule-02",
        "generate_tests/rule-01",
        "generate_tests/rule-02",
        "validate",
    }
    assert set(events[0]) == {"id", "at_ms", "subject", "item", "from", "to", "cause", "actor"}


def test_an_action_is_named_by_its_kind(local_runtime: Runtime) -> None:
    job = finish(local_runtime, submit(local_runtime, policy(1)))
    local_runtime.ledger.actions.confirm(job.job_id, str(job.action_set_digest), actor="ann")

    told = [event_report(event) for event in events_of(local_runtime, job)]

    (action,) = [event for event in told if event["subject"] == "action"]
    assert (action["item"], action["from"], action["to"], action["actor"]) == (
        "publish",
        "proposed",
        "confirmed",
        "ann",
    )


def test_other_jobs_events_are_not_told(runtime: Runtime) -> None:
    first, second = submit(runtime, policy(1), key="first"), submit(runtime, policy(2), key="second")

    ids = [{event.event_id for event in events_of(runtime, job)} for job in (first, second)]

    assert ids[0]
    assert ids[1]
    assert ids[0] & ids[1] == set()


def test_a_number_goes_on_right_behind_it(runtime: Runtime) -> None:
    job = finish(runtime, submit(runtime, policy(1)))
    everything = list(events_of(runtime, job))

    rest = list(events_of(runtime, job, since=everything[4].event_id))

    assert rest == everything[5:]


def test_following_ends_by_itself_behind_the_last_event_of_a_job_that_has_ended(runtime: Runtime) -> None:
    job = finish(runtime, submit(runtime, policy(1)))
    runtime.ledger.actions.reject(job.job_id, actor="ann", reason="superseded")

    told = list(follow_events(runtime, job, sleep=_no_sleep))

    assert told == list(events_of(runtime, job))
    assert (told[-1].to_state, told[-1].actor) == ("cancelled", "ann")


def test_following_tells_what_happens_between_two_looks(runtime: Runtime) -> None:
    job = submit(runtime, policy(1))
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 1:
            claim_items(runtime, Stage.PARSE, 1)
        elif len(waits) == 3:
            with runtime.ledger.database.write() as connection:
                connection.execute(sa.text("UPDATE job SET state = 'failed'"))
                _write(connection, job, "given up")

    told = list(follow_events(runtime, job, sleep=sleep))

    assert (told[-2].cause, told[-2].item, told[-2].actor) == ("claimed", "parse", OTHER.worker)
    assert told[-1].cause == "given up"
    assert set(waits) == {0.5}


def test_a_reader_that_is_slower_than_the_writers_loses_nothing(runtime: Runtime) -> None:
    job = open_rules(runtime, policy(1))
    reader = EventReader(runtime.ledger.database, job.job_id, limit=2)
    told: list[Event] = []

    for number in range(40):
        with runtime.ledger.database.write() as connection:
            for part in range(3):
                _write(connection, job, f"{number}/{part}")
        told += reader.read().events
    while not (batch := reader.read()).is_complete:
        told += batch.events
    told += batch.events

    assert told == list(events_of(runtime, job))
    assert _causes(tuple(told))[-120:] == [f"{number}/{part}" for number in range(40) for part in range(3)]


@only_postgresql
def test_an_event_that_becomes_visible_late_is_told_in_its_place(runtime: Runtime) -> None:
    job = submit(runtime, policy(1))
    reader, database = _reader(runtime, job), runtime.ledger.database

    with _in_flight(database, job, "late"):
        with database.write() as connection:
            _write(connection, job, "early")
        before = reader.read()
    after = reader.read()

    assert (before.events, before.is_complete) == ((), False)
    assert (_causes(after.events), after.is_complete) == (["late", "early"], True)


@only_postgresql
def test_an_event_that_is_rolled_back_holds_nothing_up_for_good(runtime: Runtime) -> None:
    job = submit(runtime, policy(1))
    reader, database = _reader(runtime, job), runtime.ledger.database

    with database.engine.connect() as undone:
        _write(undone, job, "never")
        with database.write() as connection:
            _write(connection, job, "early")
        before = reader.read()
        undone.rollback()
    after = reader.read()

    assert before.events == ()
    assert (_causes(after.events), after.is_complete) == (["early"], True)


@only_postgresql
def test_writers_that_never_pause_do_not_starve_a_reader(runtime: Runtime) -> None:
    job = submit(runtime, policy(1))
    reader, database = _reader(runtime, job), runtime.ledger.database

    with ExitStack() as second:
        with _in_flight(database, job, "first"):
            with database.write() as connection:
                _write(connection, job, "done")
            noted = reader.read()
            second.enter_context(_in_flight(database, job, "second"))
        settled = reader.read()
    rest = reader.read()

    assert noted.events == ()
    assert (_causes(settled.events), settled.is_complete) == (["first", "done"], True)
    assert _causes(rest.events) == ["second"]


def test_many_writers_at_once_are_told_completely_and_in_order(runtime: Runtime) -> None:
    job, database = submit(runtime, policy(1)), runtime.ledger.database
    reader = _reader(runtime, job)
    begin = reader.cursor
    told: list[Event] = []

    def write(seed: int) -> None:
        for number in range(25):
            with database.write() as connection:
                for part in range(1 + (seed + number) % 3):
                    _write(connection, job, f"{seed}/{number}/{part}")

    threads = [threading.Thread(target=write, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        told += reader.read().events
    for thread in threads:
        thread.join()
    told += reader.read().events

    with database.read() as connection:
        written = connection.execute(
            sa.select(transition.c.transition_id)
            .where(transition.c.transition_id > begin)
            .order_by(transition.c.transition_id)
        ).scalars()
        assert [event.event_id for event in told] == list(written)
