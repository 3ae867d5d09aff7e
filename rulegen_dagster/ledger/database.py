"""The database behind the ledger: engine, clock, transactions, and errors in their own domain."""

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError, InvalidatePoolError
from sqlalchemy.pool import ConnectionPoolEntry

from rulegen_dagster.domain.errors import InputError, LedgerError, LedgerFault
from rulegen_dagster.domain.failpoints import Commit, reach_after, reach_before
from rulegen_dagster.ledger.faults import ledger_errors

_SQLITE = "sqlite:///"

BUSY_TIMEOUT_MS = 10_000
"""How long SQLite waits for another writer before it reports a lock."""

CONFLICT_TRIES = 4
"""How often a transaction is begun that the database breaks off for another's sake."""

# A server that does not answer is an outage after seconds, not after the kernel's quarter of an hour; whoever needs
# other values gives them in the URL.
_POSTGRES_OPTIONS = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}

_TRUSTED_S = 1.0
"""How long a pooled connection that worked counts as working."""

_P = ParamSpec("_P")
_R = TypeVar("_R")


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
            # SQLite runs in this process and would ask the same clock, but reckon the time from a day's fraction again
            # in each row, which is a tenth of what a turn costs.
            return sa.bindparam("ledger_now", callable_=_now_ms, type_=sa.BigInteger)
        return sa.literal_column("CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)", sa.BigInteger)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


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
        with ledger_errors(self.engine.url), self.engine.begin() as connection:
            yield connection
            reach_before(commits)
        reach_after(commits)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Open a transaction that only reads. Raises `LedgerError`."""
        with ledger_errors(self.engine.url), self.engine.connect() as connection:
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


def again_after_conflicts(transaction: Callable[_P, _R]) -> Callable[_P, _R]:
    """Begin a function that is one transaction again where the database broke it off for another's sake.

    Safe for every transaction, whatever it does: the database has said that nothing of it happened. Any other fault is
    the caller's to judge, for a commit whose answer was lost may have landed.
    """

    @wraps(transaction)
    def repeated(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        for _ in range(CONFLICT_TRIES - 1):
            try:
                return transaction(*args, **kwargs)
            except LedgerError as error:
                if error.fault is not LedgerFault.CONFLICT:
                    raise
        return transaction(*args, **kwargs)

    return repeated


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
        options = {name: value for name, value in _POSTGRES_OPTIONS.items() if name not in parsed.query}
        # The look that passes a barrier has to see what others committed before it got the job's lock, whatever the
        # server's default is.
        engine = sa.create_engine(
            parsed.set(drivername="postgresql+psycopg"),
            pool_size=4,
            connect_args=options,
            isolation_level="READ COMMITTED",
        )
        _ask_idle_connections(engine)
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


def _ask_idle_connections(engine: Engine) -> None:
    """Ask a pooled connection whether it still works before it is lent, unless it worked a moment ago.

    The pool's own ping would ask each time, which is a wait in every turn. A connection that breaks within that moment
    is found by its first statement, like one that breaks in the middle of a transaction.
    """

    @event.listens_for(engine, "checkin")
    def note(_connection: Any, record: ConnectionPoolEntry) -> None:
        record.info["used_s"] = time.monotonic()

    @event.listens_for(engine, "checkout")
    def ask(connection: Any, record: ConnectionPoolEntry, _proxy: Any) -> None:
        used_s = record.info.get("used_s")
        if used_s is None or time.monotonic() - used_s < _TRUSTED_S:
            return
        try:
            engine.dialect.do_ping(connection)
        except engine.dialect.loaded_dbapi.Error as error:
            raise InvalidatePoolError from error


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    # The driver's own transaction handling would begin late and commit early; SQLAlchemy's events do it instead.
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN" if connection.info.get("read_only") else "BEGIN IMMEDIATE")
