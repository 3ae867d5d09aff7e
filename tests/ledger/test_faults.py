"""What each fault of a real database becomes, and which of them are tried again."""

import os
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy import event

from rulegen_dagster.domain.errors import TRANSIENT_FAULTS, LedgerError, LedgerFault
from rulegen_dagster.ledger import database as databases
from rulegen_dagster.ledger.database import CONFLICT_TRIES, Database, again_after_conflicts, open_database
from rulegen_dagster.ledger.schema import job, tenant
from rulegen_dagster.ledger.store import Ledger
from tests.ledger.conftest import MakeJob, submission


def write_tenant(database: Database, name: str = "acme") -> None:
    with database.write() as connection:
        connection.execute(sa.insert(tenant).values(tenant=name, created_at=1))


def fault_of_writing(database: Database) -> LedgerError:
    with pytest.raises(LedgerError) as caught:
        write_tenant(database)
    return caught.value


@pytest.fixture
def sqlite_ledger(sqlite_template: Path, tmp_path: Path) -> Iterator[Database]:
    path = tmp_path / "ledger.sqlite3"
    path.write_bytes(sqlite_template.read_bytes())
    opened = open_database(f"sqlite:///{path}")
    yield opened
    opened.close()


def on_each_transaction(database: Database, statement: str) -> None:
    event.listen(database.engine, "begin", lambda connection: connection.exec_driver_sql(statement))


def test_a_full_disk_is_told_with_its_path_and_may_pass(sqlite_ledger: Database) -> None:
    on_each_transaction(sqlite_ledger, "PRAGMA max_page_count = 1")

    with pytest.raises(LedgerError) as caught, sqlite_ledger.write() as connection:
        connection.execute(sa.insert(tenant), [{"tenant": "a" * 200 + str(n), "created_at": 1} for n in range(1_000)])

    assert caught.value.fault is LedgerFault.FULL
    assert caught.value.is_transient
    assert str(sqlite_ledger.engine.url.database) in caught.value.message


def test_a_file_that_takes_no_writes_is_told_as_such(sqlite_ledger: Database) -> None:
    on_each_transaction(sqlite_ledger, "PRAGMA query_only = 1")

    told = fault_of_writing(sqlite_ledger)

    assert (told.fault, told.is_transient) == (LedgerFault.READ_ONLY, True)
    assert "RULEGEN_DATABASE_URL" in told.message


def test_a_lock_that_outlasts_the_timeout_is_told_as_such(
    sqlite_ledger: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "BUSY_TIMEOUT_MS", 1)
    other = sqlite3.connect(str(sqlite_ledger.engine.url.database), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    told = fault_of_writing(sqlite_ledger)
    other.execute("COMMIT")
    other.close()
    write_tenant(sqlite_ledger)

    assert (told.fault, told.is_transient) == (LedgerFault.LOCKED, True)


def test_a_file_that_is_no_database_is_damaged_for_good(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    path.write_bytes(b"this is no database, whatever its name says\n" * 100)
    opened = open_database(f"sqlite:///{path}")

    told = fault_of_writing(opened)
    opened.close()

    assert (told.fault, told.is_transient) == (LedgerFault.CORRUPT, False)


def test_a_damaged_page_is_damage_for_good(sqlite_ledger: Database) -> None:
    path = Path(str(sqlite_ledger.engine.url.database))
    sqlite_ledger.close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(size - 4096))

    told = fault_of_writing(sqlite_ledger)

    assert (told.fault, told.is_transient) == (LedgerFault.CORRUPT, False)


def test_a_file_that_cannot_be_opened_is_out_of_reach(tmp_path: Path) -> None:
    (tmp_path / "ledger.sqlite3").mkdir()
    opened = open_database(f"sqlite:///{tmp_path / 'ledger.sqlite3'}")

    told = fault_of_writing(opened)
    opened.close()

    assert (told.fault, told.is_transient) == (LedgerFault.UNAVAILABLE, True)


@pytest.fixture
def postgres(postgres_server: str) -> Iterator[Database]:
    """A server's own database, for faults that write nothing."""
    opened = open_database(postgres_server)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("sqlstate", "fault"),
    [
        ("08006", LedgerFault.UNAVAILABLE),
        ("57P01", LedgerFault.UNAVAILABLE),
        ("57P03", LedgerFault.UNAVAILABLE),
        ("53300", LedgerFault.UNAVAILABLE),
        ("53100", LedgerFault.FULL),
        ("25006", LedgerFault.READ_ONLY),
        ("40001", LedgerFault.CONFLICT),
        ("40P01", LedgerFault.CONFLICT),
        ("55P03", LedgerFault.LOCKED),
        ("57014", LedgerFault.LOCKED),
        ("58030", LedgerFault.IO),
        ("XX001", LedgerFault.CORRUPT),
        ("28P01", LedgerFault.DENIED),
        ("42501", LedgerFault.DENIED),
        ("23505", LedgerFault.REFUSED),
        ("42P01", LedgerFault.REFUSED),
        ("P0001", LedgerFault.REFUSED),
    ],
)
def test_a_servers_state_is_told_by_its_kind(postgres: Database, sqlstate: str, fault: LedgerFault) -> None:
    with pytest.raises(LedgerError) as caught, postgres.read() as connection:
        connection.exec_driver_sql(f"DO $$ BEGIN RAISE EXCEPTION 'told' USING ERRCODE = '{sqlstate}'; END $$")

    assert caught.value.fault is fault
    assert caught.value.is_transient == (fault in TRANSIENT_FAULTS)
    assert caught.value.code == fault.value


def _end_session(server: str, connection: sa.Connection) -> None:
    process = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
    with psycopg.connect(server, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 5000)", (process,))


def test_a_session_that_the_server_ends_is_out_of_reach_and_the_next_one_works(
    postgres: Database, postgres_server: str
) -> None:
    def ended_by_the_server() -> None:
        with postgres.read() as connection:
            _end_session(postgres_server, connection)
            connection.exec_driver_sql("SELECT 1")

    with pytest.raises(LedgerError) as caught:
        ended_by_the_server()
    with postgres.read() as connection:
        alive = connection.exec_driver_sql("SELECT 1").scalar_one()

    assert caught.value.fault is LedgerFault.UNAVAILABLE
    assert alive == 1


def test_a_session_that_ended_while_nobody_used_it_is_replaced_unseen(
    postgres: Database, postgres_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whatever lay in the pool counts as idle.
    monkeypatch.setattr(databases, "_TRUSTED_S", 0.0)
    with postgres.read() as connection:
        before = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
    with psycopg.connect(postgres_server, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 5000)", (before,))

    with postgres.read() as connection:
        after = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()

    assert after != before


def test_a_database_that_takes_no_writes_is_told_as_such(postgres: Database) -> None:
    on_each_transaction(postgres, "SET TRANSACTION READ ONLY")

    with pytest.raises(LedgerError) as caught, postgres.write() as connection:
        connection.exec_driver_sql("CREATE TABLE refused (n int)")

    assert caught.value.fault is LedgerFault.READ_ONLY


def test_a_message_names_the_database_and_never_its_password() -> None:
    opened = open_database("postgresql://nobody:hunter2@127.0.0.1:1/none")

    told = fault_of_writing(opened)
    opened.close()

    assert "hunter2" not in told.message
    assert "PostgreSQL database none at 127.0.0.1:1" in told.message


def test_a_transaction_that_a_deadlock_broke_off_is_begun_again_and_lands_once(
    ledger_url: str, ledger: Ledger, make_job: MakeJob
) -> None:
    if ledger.database.dialect == "sqlite":
        pytest.skip("SQLite has one writer at a time, and no deadlocks")
    first, second = make_job(1, key="first"), make_job(1, key="second")
    meeting, begun = threading.Barrier(2), []

    @again_after_conflicts
    def rename(jobs: tuple[int, int], ruleset: str) -> None:
        begun.append(ruleset)
        with ledger.database.write() as connection:
            for number, job_id in enumerate(jobs):
                connection.execute(sa.update(job).where(job.c.job_id == job_id).values(ruleset=ruleset))
                if number == 0 and len(begun) <= 2:
                    meeting.wait(10)

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(rename, (first, second), "a"), pool.submit(rename, (second, first), "b")]:
            done.result(30)

    # One of the two was broken off at least once; the other may meet it again.
    assert len(begun) >= 3
    assert ledger.reads.job_by_id(first).ruleset == ledger.reads.job_by_id(second).ruleset


def test_a_conflict_is_tried_a_few_times_and_nothing_else_is() -> None:
    tries: list[LedgerFault] = []

    @again_after_conflicts
    def broken_off(fault: LedgerFault) -> None:
        tries.append(fault)
        raise LedgerError("no", code=fault.value)

    for fault in LedgerFault:
        with pytest.raises(LedgerError):
            broken_off(fault)

    assert {fault: tries.count(fault) for fault in LedgerFault} == {
        fault: CONFLICT_TRIES if fault is LedgerFault.CONFLICT else 1 for fault in LedgerFault
    }


@pytest.mark.parametrize("code", ["blob_missing", "blob_store", "ledger_revision", "no_scratch_database"])
def test_an_error_that_is_not_the_databases_is_no_fault_of_it(code: str) -> None:
    error = LedgerError("gone", code=code)

    assert (error.fault, error.is_transient) == (None, False)


def test_a_submission_whose_answer_was_lost_is_found_and_not_made_twice(ledger: Ledger) -> None:
    first = ledger.submissions.submit(submission(), actor="test")
    again = ledger.submissions.submit(submission(), actor="test")

    assert (again.job_id, again.existing) == (first.job_id, True)
    assert len(ledger.reads.jobs()) == 1
