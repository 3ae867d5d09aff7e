"""Faults: what a database's own error codes mean for the ledger, as data, and the errors that tell people of them."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from rulegen_dagster.domain.errors import LedgerError, LedgerFault

SQLITE_FAULTS = {
    sqlite3.SQLITE_BUSY: LedgerFault.LOCKED,
    sqlite3.SQLITE_LOCKED: LedgerFault.LOCKED,
    sqlite3.SQLITE_PROTOCOL: LedgerFault.LOCKED,
    sqlite3.SQLITE_FULL: LedgerFault.FULL,
    sqlite3.SQLITE_READONLY: LedgerFault.READ_ONLY,
    sqlite3.SQLITE_IOERR: LedgerFault.IO,
    sqlite3.SQLITE_CANTOPEN: LedgerFault.UNAVAILABLE,
    sqlite3.SQLITE_NOMEM: LedgerFault.UNAVAILABLE,
    sqlite3.SQLITE_PERM: LedgerFault.DENIED,
    sqlite3.SQLITE_AUTH: LedgerFault.DENIED,
    sqlite3.SQLITE_CORRUPT: LedgerFault.CORRUPT,
    sqlite3.SQLITE_NOTADB: LedgerFault.CORRUPT,
}
"""SQLite's primary result codes; whatever is missing is a refusal."""

SQLSTATE_FAULTS = {
    "08": LedgerFault.UNAVAILABLE,  # connection exceptions
    "25006": LedgerFault.READ_ONLY,  # a write in a read-only transaction: a standby, or a server set so
    "25P03": LedgerFault.UNAVAILABLE,  # the session was ended for being idle
    "28": LedgerFault.DENIED,  # authentication
    "3D000": LedgerFault.DENIED,  # no such database
    "40001": LedgerFault.CONFLICT,  # serialization failure
    "40P01": LedgerFault.CONFLICT,  # deadlock
    "42501": LedgerFault.DENIED,  # no privilege
    "53": LedgerFault.UNAVAILABLE,  # out of memory or connections
    "53100": LedgerFault.FULL,  # disk full
    "55P03": LedgerFault.LOCKED,  # lock timeout
    "57014": LedgerFault.LOCKED,  # statement timeout
    "57P": LedgerFault.UNAVAILABLE,  # shutdown, crash, starting up, session ended
    "58": LedgerFault.IO,  # the server's disk
    "XX001": LedgerFault.CORRUPT,  # a damaged table
    "XX002": LedgerFault.CORRUPT,  # a damaged index
}
"""PostgreSQL's SQLSTATEs by their beginning, of which the longest holds; whatever is missing is a refusal."""

_TOLD = {
    LedgerFault.UNAVAILABLE: (
        "the ledger cannot be used",
        "see that the server runs and can be reached, and try again",
    ),
    LedgerFault.LOCKED: (
        "the ledger is locked",
        "another process holds it longer than a writer waits; try again, or find and end that process",
    ),
    LedgerFault.CONFLICT: ("the ledger broke a transaction off for the sake of another", "try again"),
    LedgerFault.FULL: ("the disk of the ledger is full", "free space there and try again; what is committed is kept"),
    LedgerFault.READ_ONLY: (
        "the ledger takes no writes",
        "make the file and its folder writable, or point RULEGEN_DATABASE_URL at the server that takes writes",
    ),
    LedgerFault.IO: (
        "the ledger's disk could not be read or written",
        "look at that disk and its free space, then try again",
    ),
    LedgerFault.CORRUPT: (
        "the ledger is damaged, or is no database",
        "stop every process that uses it, keep a copy, and restore a backup",
    ),
    LedgerFault.DENIED: (
        "the ledger refuses this account",
        "check user, password, database name and rights in RULEGEN_DATABASE_URL",
    ),
}

_FILE_REMEDY = "see that its folder exists, can be entered and takes writes (a read-only disk does not), and try again"


@contextmanager
def ledger_errors(url: URL) -> Iterator[None]:
    """Turn whatever the database behind the URL reports into a `LedgerError` of its kind."""
    try:
        yield
    except UnicodeError:
        # A driver encodes parameters itself, and its error quotes the text.
        raise LedgerError("a text that is not valid Unicode cannot be stored", code=LedgerFault.REFUSED) from None
    except SQLAlchemyError as error:
        fault = fault_of(error)
        raise LedgerError(_message(fault, error, url), code=fault.value) from error


def fault_of(error: SQLAlchemyError) -> LedgerFault:
    """Return what kind of fault a database's error is, by its code."""
    if isinstance(error, PoolTimeoutError):
        return LedgerFault.UNAVAILABLE
    if not isinstance(error, DBAPIError):
        return LedgerFault.REFUSED
    original: Any = error.orig
    result_code, sqlstate = getattr(original, "sqlite_errorcode", None), getattr(original, "sqlstate", None)
    if result_code is not None:
        # The low byte is the primary code; the rest says more of the same.
        return SQLITE_FAULTS.get(result_code & 0xFF, LedgerFault.REFUSED)
    if sqlstate is not None:
        known = [start for start in SQLSTATE_FAULTS if sqlstate.startswith(start)]
        return SQLSTATE_FAULTS[max(known, key=len)] if known else LedgerFault.REFUSED
    # No server is there to give a code where none could be reached, or the connection broke.
    unreached = error.connection_invalidated or isinstance(error, OperationalError)
    return LedgerFault.UNAVAILABLE if unreached else LedgerFault.REFUSED


def _message(fault: LedgerFault, error: SQLAlchemyError, url: URL) -> str:
    cause = _first_line(error)
    if fault is LedgerFault.REFUSED:
        return f"the ledger refused a statement: {cause}"
    what, remedy = _TOLD[fault]
    if fault is LedgerFault.UNAVAILABLE and _is_file(url):
        remedy = _FILE_REMEDY
    return f"{what} ({_place(url)}): {cause}; {remedy}"


def _place(url: URL) -> str:
    """Name the database without its password."""
    if _is_file(url):
        return str(url.database)
    host = url.host or url.query.get("host") or "the default host"
    return f"PostgreSQL database {url.database} at {host}" + (f":{url.port}" if url.port else "")


def _is_file(url: URL) -> bool:
    return url.get_backend_name() == "sqlite"


def _first_line(error: SQLAlchemyError) -> str:
    # A driver's message may go on with the statement and its parameters, which hold specification text.
    original = error.orig if isinstance(error, DBAPIError) else error
    return (
        f"{type(original).__name__}: {str(original).splitlines()[0][:200]}" if str(original) else type(error).__name__
    )
