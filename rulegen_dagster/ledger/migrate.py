"""Migrations: bring a ledger's schema to the release that is running."""

from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rulegen_dagster.domain.errors import LedgerError
from rulegen_dagster.ledger.database import Database

HEAD = "0010"
"""The newest revision of `migrations/versions`; a test compares the two."""

VERSION_TABLE = "rulegen_revision"
"""Where the ledger keeps its revision."""

# Any two processes that migrate one PostgreSQL ledger take this lock in turn.
_ADVISORY_LOCK = 0x52554C45


def revision(database: Database) -> str | None:
    """Return the ledger's revision, or None where no ledger was made yet."""
    with database.read() as connection:
        return _revision(connection)


def migrate(database: Database) -> tuple[str | None, str]:
    """Bring the schema to `HEAD` in one transaction; return the revisions before and after.

    Safe to call from several processes at once. Raises `LedgerError` where the ledger is newer than this release.
    """
    with database.write() as connection:
        if database.dialect == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_ADVISORY_LOCK)))
        before = _revision(connection)
        if before != HEAD:
            _upgrade(connection)
        return before, HEAD


def ensure_current(database: Database) -> None:
    """Make a missing schema; refuse one that is not this release's.

    Raises `LedgerError` with the command that mends it.
    """
    found = revision(database)
    if found is None:
        migrate(database)
    elif found > HEAD:
        raise LedgerError(
            f"the ledger is at revision {found}, made by a newer release than this one, which knows {HEAD}; use that"
            " release",
            code="ledger_revision",
        )
    elif found != HEAD:
        raise LedgerError(
            f"the ledger is at revision {found}, this release needs {HEAD}; run 'rulegen migrate'",
            code="ledger_revision",
        )


def _revision(connection: Connection) -> str | None:
    if not sa.inspect(connection).has_table(VERSION_TABLE):
        return None
    found = sa.table(VERSION_TABLE, sa.column("version_num", sa.Text))
    return connection.execute(sa.select(found.c.version_num)).scalar_one_or_none()


def _upgrade(connection: Connection) -> None:
    # Alembic takes a third of a second to import, and almost every start finds the schema current.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415
    from alembic.util import CommandError  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise LedgerError(
            f"the ledger's revision is unknown to this release: {error}", code="ledger_revision"
        ) from error
