"""The database refuses every transition that the table lacks; each pair of states is tried on both databases."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError

from rulegen_dagster.domain.errors import LedgerError
from rulegen_dagster.domain.states import ActionState, JobState, Stage, Subject, WorkState
from rulegen_dagster.domain.transitions import ALLOWED_TRANSITIONS, NO_STATE
from rulegen_dagster.domain.work import Landing, Offer
from rulegen_dagster.ledger import migrate as migrations
from rulegen_dagster.ledger.database import Database, ManualClock, open_database
from rulegen_dagster.ledger.schema import (
    action,
    action_set,
    allowed_transition,
    attempt,
    behaviour,
    job,
    metadata,
    submission,
    work_item,
)
from rulegen_dagster.ledger.store import Ledger
from tests.conftest import POLICY
from tests.ledger.conftest import claim, complete, stage_scope

ITEM = {"job_id": 1, "stage": "generate_rules", "item_key": "rule-1", "stage_version": 1}
TIMES = {"created_at": 1, "updated_at": 1}
RUNNING = {"token": "t", "lease_until": 9, "worker": "w"}
OF_STATE: dict[tuple[Subject, str], dict[str, Any]] = {
    (Subject.WORK_ITEM, WorkState.RUNNING): RUNNING,
    (Subject.WORK_ITEM, WorkState.WAITING): {"next_attempt_at": 9},
    (Subject.WORK_ITEM, WorkState.SUCCEEDED): {"output": "{}", "output_digest": "d"},
    (Subject.WORK_ITEM, WorkState.FAILED): {"error_code": "e"},
    (Subject.ACTION, ActionState.EXECUTING): {"token": "t"},
    (Subject.ACTION, ActionState.DONE): {"receipt": "{}"},
}
"""What the CHECK constraints ask of a row in a state; every other such column is null."""


def _rows() -> dict[sa.Table, dict[str, Any]]:
    return {
        behaviour: {"digest": "b", "content": "{}", "created_at": 1},
        submission: {
            "tenant": "default",
            "submission_key": "k",
            "input_digest": "d",
            "file_name": "f.md",
            "size_bytes": 1,
            "received_at": 1,
        },
        job: {
            "job_id": 1,
            "tenant": "default",
            "submission_key": "k",
            "partition_key": "p",
            "ruleset": "r",
            "state": "received",
            "behaviour_digest": "b",
            "spec_digest": "d",
            "action_set_digest": "a",
            **TIMES,
        },
        action_set: {"job_id": 1, "digest": "a", "content": "{}", "created_at": 1},
        action: {
            "action_key": "publish:1:a",
            "job_id": 1,
            "action_set_digest": "a",
            "kind": "publish",
            "state": "proposed",
            **TIMES,
        },
        work_item: {**ITEM, "ordinal": 1, "state": "pending", "attempt_limit": 3, **TIMES},
        attempt: {
            **ITEM,
            "attempt": 1,
            "token": "t",
            "worker": "w",
            "operation_key": "o",
            "started_at": 1,
            "provider_called": True,
        },
    }


def _insert_all(connection: Connection) -> None:
    for table, row in _rows().items():
        connection.execute(sa.insert(table).values(row))


def _move(connection: Connection, subject: Subject, state: str) -> None:
    table = metadata.tables[subject]
    tied = {name: None for of, values in OF_STATE.items() if of[0] is subject for name in values}
    if subject is Subject.ATTEMPT:
        values: dict[str, Any] = {"outcome": None if state == NO_STATE else state}
        values["ended_at"] = None if state == NO_STATE else 2
    else:
        values = {"state": state, **tied, **OF_STATE.get((subject, state), {})}
    connection.execute(sa.update(table).values(values))


def _states(subject: Subject) -> list[str]:
    found = {state for pair in ALLOWED_TRANSITIONS[subject] for state in pair}
    return sorted(found if subject is Subject.ATTEMPT else found - {NO_STATE})


def _way_to(subject: Subject, state: str) -> list[str]:
    """Return the states to pass from the row's first state on, by allowed transitions alone."""
    first = NO_STATE if subject is Subject.ATTEMPT else _initial(subject)
    ways: list[list[str]] = [[first]]
    for way in ways:
        if way[-1] == state:
            return way[1:]
        ways.extend(
            [*way, after] for before, after in ALLOWED_TRANSITIONS[subject] if before == way[-1] and after not in way
        )
    raise AssertionError(f"no way to {state}")


def _initial(subject: Subject) -> str:
    (first,) = (after for before, after in ALLOWED_TRANSITIONS[subject] if before == NO_STATE)
    return first


def _try_every_change(connection: Connection, subject: Subject) -> Iterator[tuple[str, str, str | None]]:
    """Yield from, to and the refusal (None where it was allowed) for every pair of two different states."""
    for before in _states(subject):
        with connection.begin_nested() as on_the_way:
            for state in _way_to(subject, before):
                _move(connection, subject, state)
            for after in _states(subject):
                if after != before:
                    with connection.begin_nested() as step:
                        try:
                            _move(connection, subject, after)
                            yield before, after, None
                        except IntegrityError as refusal:
                            yield before, after, str(refusal.orig).splitlines()[0]
                        step.rollback()
            on_the_way.rollback()


def test_the_database_lists_exactly_the_transitions_of_the_code(ledger: Ledger) -> None:
    with ledger.database.read() as connection:
        rows = connection.execute(sa.select(allowed_transition)).all()

    assert {(row.subject, row.from_state, row.to_state) for row in rows} == {
        (subject.value, before, after) for subject, pairs in ALLOWED_TRANSITIONS.items() for before, after in pairs
    }


@pytest.mark.parametrize("subject", Subject)
def test_the_database_admits_the_listed_transitions_and_names_each_other_one_that_it_refuses(
    ledger: Ledger, subject: Subject
) -> None:
    with ledger.database.engine.connect() as connection:
        _insert_all(connection)
        tried = list(_try_every_change(connection, subject))
        connection.rollback()

    admitted = {(before, after) for before, after, refusal in tried if refusal is None}
    unnamed = [
        (before, after, refusal)
        for before, after, refusal in tried
        if refusal is not None
        and f"no {subject} goes from {before} to {after}" not in refusal
        # The triggers on final rows may speak first.
        and "is final" not in refusal
    ]
    from_a_state = {pair for pair in ALLOWED_TRANSITIONS[subject] if subject is Subject.ATTEMPT or NO_STATE not in pair}
    assert admitted == from_a_state
    assert unnamed == []
    assert len(tried) == len(_states(subject)) * (len(_states(subject)) - 1)


def test_a_row_begins_in_its_first_state_and_in_no_other(ledger: Ledger) -> None:
    begun: set[tuple[str, str]] = set()
    refusals: set[str] = set()

    with ledger.database.engine.connect() as connection:
        for table, row in _rows().items():
            if table.name not in ("job", "work_item", "action"):
                connection.execute(sa.insert(table).values(row))
                continue
            subject = Subject(table.name)
            for state in _states(subject):
                with connection.begin_nested() as step:
                    tried = {**row, "state": state, **OF_STATE.get((subject, state), {})}
                    try:
                        connection.execute(sa.insert(table).values(tried))
                        begun.add((subject.value, state))
                    except IntegrityError as refusal:
                        refusals.add(str(refusal.orig).splitlines()[0])
                    step.rollback()
            connection.execute(sa.insert(table).values(row))
        connection.rollback()

    assert begun == {("job", "received"), ("work_item", "pending"), ("action", "proposed")}
    assert refusals == {
        "no job begins in any state but received",
        "no work_item begins in any state but pending",
        "no action begins in any state but proposed",
    }


def test_an_item_that_keeps_its_state_makes_no_transition(ledger: Ledger) -> None:
    with ledger.database.write() as connection:
        _insert_all(connection)
        _move(connection, Subject.WORK_ITEM, WorkState.RUNNING)

        taken_over = connection.execute(sa.update(work_item).values({"state": "running", "token": "t2"}))

    assert taken_over.rowcount == 1


@pytest.mark.parametrize(
    "change",
    [
        sa.insert(allowed_transition).values(subject="job", from_state="completed", to_state="received"),
        sa.update(allowed_transition).values(to_state="x"),
        sa.delete(allowed_transition),
    ],
    ids=["insert", "update", "delete"],
)
def test_the_table_of_transitions_is_not_changed_at_run_time(ledger: Ledger, change: sa.Executable) -> None:
    with pytest.raises(LedgerError, match="by migrations alone"), ledger.database.write() as connection:
        connection.execute(change)


@pytest.fixture
def first_ledger(ledger_url: str, clock: ManualClock) -> Iterator[Database]:
    """A ledger as the first migration makes it, with a job under way."""
    database = open_database(ledger_url, clock)
    if database.dialect == "sqlite":
        database.close()
        Path(ledger_url.removeprefix("sqlite:///")).unlink()
    with database.write() as connection:
        if database.dialect == "postgresql":
            connection.execute(sa.text("DROP SCHEMA public CASCADE"))
            connection.execute(sa.text("CREATE SCHEMA public"))
        _upgrade(connection, "0001")
        _insert_first_job(connection)
    yield database
    database.close()


def _upgrade(connection: Connection, revision: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def _insert_first_job(connection: Connection) -> None:
    connection.execute(sa.text("INSERT INTO behaviour (digest, content, created_at) VALUES ('b', '{}', 1)"))
    connection.execute(
        sa.text(
            "INSERT INTO submission (tenant, submission_key, input_digest, file_name, size_bytes, received_at)"
            " VALUES ('default', 'k', 'd', 'f.md', 1, 1)"
        )
    )
    connection.execute(
        sa.text(
            "INSERT INTO job (job_id, tenant, submission_key, partition_key, ruleset, state, behaviour_digest,"
            " spec_digest, created_at, updated_at)"
            " VALUES (1, 'default', 'k', 'p', 'r', 'generating_rules', 'b', 'd', 1, 1)"
        )
    )
    insert = (
        "INSERT INTO work_item (job_id, stage, item_key, stage_version, ordinal, state, attempts, attempt_limit, token,"
        " lease_until, worker, next_attempt_at, output, output_digest, error_code, created_at, updated_at)"
        " VALUES (1, 'generate_rules', :key, 1, :ordinal, :state, :attempts, 3, :token, :lease, :worker, :due, :output,"
        " :digest, :error, 1, 1)"
    )
    none = dict.fromkeys(("token", "lease", "worker", "due", "output", "digest", "error"))
    items: dict[str, dict[str, Any]] = {
        "succeeded": {"attempts": 1, "output": "{}", "digest": "d"},
        "running": {"attempts": 1, "token": "t", "lease": 99_000, "worker": "w"},
        "waiting": {"attempts": 1, "due": 99_000},
        "failed": {"attempts": 3, "error": "e"},
        "pending": {"attempts": 0},
    }
    for ordinal, (state, values) in enumerate(items.items(), start=1):
        row = {**none, **values, "state": state, "key": f"rule-{ordinal}", "ordinal": ordinal}
        connection.execute(sa.text(insert), row)


def test_a_ledger_of_the_first_release_is_migrated_with_its_jobs_and_goes_on(first_ledger: Database) -> None:
    everything = sa.text("SELECT item_key, state, token, output FROM work_item ORDER BY ordinal")
    with first_ledger.read() as connection:
        before = connection.execute(everything).all()

    moved = migrations.migrate(first_ledger)

    with first_ledger.read() as connection:
        after = connection.execute(everything).all()
    ledger = Ledger(first_ledger, POLICY)
    (claimed,) = claim(ledger, stage_scope(Stage.GENERATE_RULES), 9)
    landings = complete(ledger, Offer(claim=claimed, output="{}"))
    assert moved == ("0001", migrations.HEAD)
    assert [tuple(row) for row in after] == [tuple(row) for row in before]
    assert landings == {claimed.token: Landing.ACCEPTED}
    assert ledger.reads.job_by_id(1).state is JobState.GENERATING_RULES
    with (
        pytest.raises(LedgerError, match="no work_item goes from waiting to succeeded"),
        first_ledger.write() as connection,
    ):
        connection.execute(
            sa.update(work_item)
            .where(work_item.c.item_key == "rule-3")
            .values(state="succeeded", next_attempt_at=None, output="{}", output_digest="d")
        )
