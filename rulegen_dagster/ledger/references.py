"""References: which stored files a row of the ledger names."""

from collections.abc import Collection
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rulegen_dagster.domain.retention import ContentKind
from rulegen_dagster.ledger.retention import ended, is_removed
from rulegen_dagster.ledger.schema import action, job, submission

BLOB_COLUMNS: Final = (submission.c.input_digest, job.c.spec_digest, job.c.canonical_digest)
"""Every column that names a blob; a test finds a digest column that is missing here."""

_KIND_OF: Final = {
    submission.c.input_digest: ContentKind.UPLOAD,
    job.c.spec_digest: ContentKind.UPLOAD,
    job.c.canonical_digest: ContentKind.CANONICAL_TEXT,
}
_LOCK_TIMEOUT = "2s"


def hold_blob_names(connection: Connection) -> None:
    """Let no other transaction name a blob until this one ends; what it reads from now on is all there is.

    SQLite's write transaction does so by itself. On PostgreSQL a wait of more than two seconds gives up, because
    whoever writes queues behind it. Raises `LedgerError` then, through the transaction.
    """
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
        # In the order in which a submission writes them, so that neither waits for the other in a circle. The mode also
        # keeps a second collection out.
        connection.exec_driver_sql("LOCK TABLE submission, job IN SHARE ROW EXCLUSIVE MODE")


def named_blobs(connection: Connection, digests: Collection[str], *, ended_before: int | None = None) -> frozenset[str]:
    """Return which of the digests a row names whose content is not marked as removed.

    With `ended_before` (ms), as if the content of jobs that ended before then were marked too.
    """
    found: set[str] = set()
    wanted = sorted(digests)
    # Both databases limit the parameters of one statement; 500 stays far below either limit.
    for start in range(0, len(wanted), 500):
        part = wanted[start : start + 500]
        for column in BLOB_COLUMNS:
            gone = is_removed(_KIND_OF[column])
            if ended_before is not None:
                gone = sa.or_(gone, ended(ended_before))
            query = sa.select(column).where(column.in_(part), ~gone).distinct()
            if column.table is submission:
                # A submission's upload is its job's.
                query = query.join(
                    job,
                    sa.and_(job.c.tenant == submission.c.tenant, job.c.submission_key == submission.c.submission_key),
                )
            found.update(connection.execute(query).scalars())
    return frozenset(found)


def publishing_tokens(connection: Connection) -> frozenset[str]:
    """Return the tokens of the publishers that hold an action, or were lost with it."""
    return frozenset(connection.execute(sa.select(action.c.token).where(action.c.token.is_not(None))).scalars())
