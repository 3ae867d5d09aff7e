"""The database behind the ledger: engine, clock, transactions, and errors in their own domain."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError, SQLAlchemyError

from rulegen_dagster.domain.errors import InputError, LedgerError
from rulegen_dagster.domain.failpoints import Commit, reach_after, reach_before

_SQLITE = "sqlite:///"

BUSY_TIMEOUT_MS = 10_000
"""How long SQLite waits for another writer before it reports a lock."""


class Clock(Protocol):
    """The ledger's clock: an SQL expression for now, in ms since 1970 (UTC)."""

    def now(self, dialect: str) -> sa.ColumnElement[int]:
        """Return the expression for one dialect."""
        ...


class DatabaseClock:
    """The database's own clock, so that every host agrees on leases and due times."""

    def now(self, dialect: str) -> sa.ColumnElement[int]:
        """Return the dialect's expression for the time of this statement, not of its transaction."""
        if dialect == "sqlite":
            # unixepoch('subsec') needs SQLite 3.42 and silently returns NULL before it.
            return sa.literal_column("CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER)", sa.BigInteger)
        return sa.literal_column("CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)", sa.BigInteger)


class ManualClock:
    """A clock that stands still until it is set: for tests, and for the crash demo."""

    def __init__(self, now_ms: int) -> None:
        """Start at `now_ms`."""
        self.now_ms = now_ms

    def now(self, dialect: str) -> sa.ColumnElement[int]:  # noqa: ARG002 (the protocol's)
        """Return a parameter that is read when the statement runs."""
        return sa.cast(sa.bindparam("ledger_now", callable_=lambda: self.now_ms, type_=sa.BigInteger), sa.BigInteger)


class Database:
    """An engine and a clock; hands out short transactions and nothing else.

    One instance serves one process; it is safe to use from several threads.
    """

    def __init__(self, engine: Engine, clock: Clock) -> None:
        """Take ownership of the engine."""
        self.engine = engine
        self.dialect = engine.dialect.name
        self.now = clock.now(self.dialect)

    @contextmanager
    def write(self, commits: Collection[Commit] = ()) -> Iterator[Connection]:
        """Open a transaction that may write; it commits when the block ends, and rolls back on any error.

        SQLite takes its write lock at once (`BEGIN IMMEDIATE`), so a writer never fails half-way for a lock.
        `commits` names what this transaction commits, for failpoints; the block may add to it.
        Raises `LedgerError` for whatever the database reports.
        """
        with _ledger_errors(), self.engine.begin() as connection:
            yield connection
            reach_before(commits)
        reach_after(commits)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Open a transaction that only reads. Raises `LedgerError`."""
        with _ledger_errors(), self.engine.connect() as connection:
            if self.dialect == "sqlite":
                connection.info["read_only"] = True
            try:
                yield connection
            finally:
                connection.rollback()
                connection.info.pop("read_only", None)

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()


def open_database(url: str, clock: Clock | None = None) -> Database:
    """Open a SQLite file (its folder is created) or a PostgreSQL database by URL.

    `postgresql://` means psycopg 3 here. Raises `InputError` for a URL that is neither, `LedgerError` where the
    folder cannot be made.
    """
    try:
        # A path may hold '?' and '%', which mean something else in a URL.
        path = url.removeprefix(_SQLITE)
        parsed = make_url(url) if path == url else sa.URL.create("sqlite", database=path)
        backend = parsed.drivername.split("+")[0]
    except (ArgumentError, ValueError):
        # The message of the original may repeat the URL, and with it a password.
        raise InputError(
            "the database URL cannot be read; give sqlite:///path or postgresql://…", code="invalid_url"
        ) from None
    if backend in ("postgresql", "postgres"):
        engine = sa.create_engine(parsed.set(drivername="postgresql+psycopg"), pool_size=4, pool_pre_ping=True)
        return Database(engine, clock or DatabaseClock())
    if backend != "sqlite":
        raise InputError(f"the ledger runs on SQLite or PostgreSQL, not on {backend}", code="invalid_url")
    if parsed.database and parsed.database != ":memory:":
        try:
            Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LedgerError(f"the ledger's folder cannot be made: {error.strerror}") from error
    engine = sa.create_engine(parsed.set(drivername="sqlite"))
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return Database(engine, clock or DatabaseClock())


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    # The driver's own transaction handling would begin late and commit early; SQLAlchemy's events do it instead.
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN" if connection.info.get("read_only") else "BEGIN IMMEDIATE")


@contextmanager
def _ledger_errors() -> Iterator[None]:
    try:
        yield
    except OperationalError as error:
        raise LedgerError(f"the ledger cannot be used: {_first_line(error)}") from error
    except UnicodeError:
        # A driver encodes parameters itself, and its error quotes the text.
        raise LedgerError("a text that is not valid Unicode cannot be stored", code="ledger_refused") from None
    except SQLAlchemyError as error:
        raise LedgerError(f"the ledger refused a statement: {_first_line(error)}", code="ledger_refused") from error


def _first_line(error: SQLAlchemyError) -> str:
    # A driver's message may go on with the statement and its parameters, which hold specification text.
    original = error.orig if isinstance(error, DBAPIError) else error
    return (
        f"{type(original).__name__}: {str(original).splitlines()[0][:200]}" if str(original) else type(error).__name__
    )
