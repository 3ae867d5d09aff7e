"""Audit: everything that the ledger holds of one job, as plain rows, for whoever checks the invariants from outside."""

from typing import Any

import sqlalchemy as sa

from rulegen_dagster.ledger.database import Database
from rulegen_dagster.ledger.schema import behaviour, job, metadata, submission

Rows = dict[str, list[dict[str, Any]]]
"""Table name to rows in the order of their keys; every value is one that JSON can hold."""


def audit_job(database: Database, job_id: int) -> Rows:
    """Return every row of a job, its submission and its behaviour.

    Each table with a column `job_id` is included, so that a new table cannot be forgotten here.
    """
    with database.read() as connection:
        rows = {
            table.name: _rows(connection, sa.select(table).where(table.c.job_id == job_id), table)
            for table in metadata.sorted_tables
            if "job_id" in table.c
        }
        of_job = sa.select(job).where(job.c.job_id == job_id).subquery()
        rows[submission.name] = _rows(
            connection,
            sa.select(submission).join(
                of_job,
                sa.and_(submission.c.tenant == of_job.c.tenant, submission.c.submission_key == of_job.c.submission_key),
            ),
            submission,
        )
        rows[behaviour.name] = _rows(
            connection,
            sa.select(behaviour).join(of_job, behaviour.c.digest == of_job.c.behaviour_digest),
            behaviour,
        )
    return rows


def _rows(connection: sa.Connection, query: sa.Select[Any], table: sa.Table) -> list[dict[str, Any]]:
    ordered = query.order_by(*table.primary_key.columns)
    return [dict(row) for row in connection.execute(ordered).mappings()]
