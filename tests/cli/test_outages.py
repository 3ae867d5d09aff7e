"""What the commands say, and how they end, where the ledger takes no writes or cannot be used."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from rulegen_dagster.ledger import database as databases
from rulegen_dagster.workflow import outages
from tests.cli.conftest import Command, document


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outages, "LEAST_PATIENCE_S", 0.0)


@pytest.fixture
def read_only() -> Iterator[None]:
    """Make every SQLite connection of this process refuse writes, as one on a read-only disk does."""

    def begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("PRAGMA query_only = 1")

    event.listen(sa.Engine, "begin", begin)
    yield
    event.remove(sa.Engine, "begin", begin)


@pytest.mark.usefixtures("read_only")
@pytest.mark.parametrize("command", ["submit", "run"])
def test_a_ledger_that_takes_no_writes_is_a_clear_error(
    rulegen: Command, home: Path, policy_file: Path, command: str
) -> None:
    told = rulegen(command, str(policy_file), "--json")
    in_words = rulegen(command, str(policy_file))

    error = document(told)["error"]
    assert (told.exit_code, error["code"]) == (1, "ledger_read_only")
    assert error["message"].startswith(f"the ledger takes no writes ({home / 'ledger.sqlite3'})")
    assert "make the file and its folder writable" in error["message"]
    assert (in_words.exit_code, in_words.stdout) == (1, "")
    assert in_words.stderr.endswith("[ledger_read_only]\n")


@pytest.mark.usefixtures("read_only")
def test_a_ledger_that_takes_no_writes_can_still_be_read(rulegen: Command) -> None:
    assert rulegen("list", "--json").exit_code == 0


def test_a_ledger_that_is_locked_is_a_clear_error_and_the_next_try_works(
    rulegen: Command, home: Path, policy_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "BUSY_TIMEOUT_MS", 1)
    other = sqlite3.connect(home / "ledger.sqlite3", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    locked = rulegen("submit", str(policy_file), "--json")
    other.execute("COMMIT")
    other.close()
    after = rulegen("submit", str(policy_file), "--json")

    assert (locked.exit_code, document(locked)["error"]["code"]) == (1, "ledger_locked")
    assert (after.exit_code, document(after)["state"]) == (0, "extracting")
    assert "existing" not in document(after)


def test_a_ledger_that_is_damaged_is_a_clear_error(rulegen: Command, home: Path) -> None:
    (home / "ledger.sqlite3").write_bytes(b"this is no database, whatever its name says\n" * 100)

    told = rulegen("list", "--json")

    assert (told.exit_code, document(told)["error"]["code"]) == (1, "ledger_corrupt")
    assert "restore a backup" in document(told)["error"]["message"]
