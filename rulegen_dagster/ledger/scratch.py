"""Scratch ledgers: databases that a measurement makes for itself, fills, and always takes away again."""

import secrets
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy as sa
from psycopg import sql
from sqlalchemy.engine import Connection

from rulegen_dagster.domain.canonical import sha256_hex
from rulegen_dagster.domain.errors import InputError, LedgerError
from rulegen_dagster.domain.states import JobState, Stage, WorkState
from rulegen_dagster.ledger.database import Database
from rulegen_dagster.ledger.schema import job, submission, work_item

ITEMS_PER_JOB = 1_000
"""How many items each job of a filled ledger has."""

_SQLITE = "sqlite:///"


@contextmanager
def scratch_database(near: str | None, folder: Path) -> Iterator[str]:
    """Give the URL of an empty database of its own, and drop it at the end, whatever happens.

    Where `near` names a PostgreSQL database, the new one is made beside it; else it is a SQLite file in `folder`.
    Raises `LedgerError` (`no_scratch_database`) where the server refuses, `InputError` for any other URL.
    """
    if near is None or near.startswith(_SQLITE):
        with tempfile.TemporaryDirectory(prefix="ledger-", dir=folder) as made:
            yield f"{_SQLITE}{made}/ledger.sqlite3"
        return
    try:
        parsed = sa.make_url(near)
    except (sa.exc.ArgumentError, ValueError):
        raise InputError(
            "the database URL cannot be read; give sqlite:///path or postgresql://…", code="invalid_url"
        ) from None
    if parsed.get_backend_name() not in ("postgresql", "postgres"):
        raise InputError("the ledger runs on SQLite or PostgreSQL", code="invalid_url")
    server = parsed.set(drivername="postgresql")
    name = f"rulegen_scratch_{secrets.token_hex(6)}"
    _on_server(server, sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    try:
        yield server.set(database=name).render_as_string(hide_password=False)
    finally:
        _on_server(server, sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def folder_near(near: str | None) -> Path | None:
    """Return the folder of a SQLite URL's file, whose disk is the one to measure; None leaves it to the system."""
    if near is None or not near.startswith(_SQLITE):
        return None
    folder = Path(near.removeprefix(_SQLITE)).absolute().parent
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}", code="invalid_url")
    return folder


def fill(database: Database, template_job: int, items: int) -> None:
    """Grow a scratch ledger by `items` rule items, in copies of a job whose rule items are open.

    The older half of the copies has its items finished and is past their stage, the younger half has them open.
    """
    jobs = max(2, items // ITEMS_PER_JOB)
    copy, number = _series("copies", jobs), _series("numbers", items // jobs)
    suffix = sa.literal("-", sa.Text) + sa.cast(copy.c.n, sa.Text)
    key_suffix = suffix + sa.literal("-", sa.Text) + sa.cast(number.c.n, sa.Text)
    is_template = job.c.job_id == template_job
    of_template = sa.and_(job.c.tenant == submission.c.tenant, job.c.submission_key == submission.c.submission_key)
    renamed_item = {
        "job_id": sa.literal(template_job, sa.BigInteger) + copy.c.n,
        "item_key": work_item.c.item_key + key_suffix,
        "partition_key": work_item.c.partition_key + key_suffix,
        "ordinal": number.c.n,
        "clause_ordinal": sa.null(),
    }
    renamed_job = {
        "job_id": job.c.job_id + copy.c.n,
        "submission_key": job.c.submission_key + suffix,
        "partition_key": job.c.partition_key + suffix,
        "state": sa.literal(JobState.RECEIVED.value),
    }
    first_item = (
        sa.select(sa.func.min(work_item.c.ordinal))
        .where(work_item.c.job_id == template_job, work_item.c.stage == Stage.GENERATE_RULES.value)
        .scalar_subquery()
    )
    is_first_item = sa.and_(
        work_item.c.job_id == template_job,
        work_item.c.stage == Stage.GENERATE_RULES.value,
        work_item.c.ordinal == first_item,
    )
    with database.write() as connection:
        for table in ("job", "work_item"):
            # The copies begin in the middle of their way, which a real ledger refuses.
            of_table = "" if database.dialect == "sqlite" else f" ON {table}"
            connection.execute(sa.text(f"DROP TRIGGER {table}_beginning{of_table}"))
        connection.execute(
            _copies(
                submission,
                {"submission_key": submission.c.submission_key + suffix},
                submission.join(job, of_template).join(copy, sa.true()),
                is_template,
            )
        )
        connection.execute(_copies(job, renamed_job, job.join(copy, sa.true()), is_template))
        connection.execute(
            _copies(work_item, renamed_item, work_item.join(copy, sa.true()).join(number, sa.true()), is_first_item)
        )
        # The copies go the way that the ledger's triggers admit.
        for state in (JobState.AUTHORIZED, JobState.EXTRACTING, JobState.RETRIEVING, JobState.GENERATING_RULES):
            connection.execute(sa.update(job).where(job.c.job_id > template_job).values(state=state.value))
        _finish(connection, database.now, template_job, jobs // 2)
    with database.engine.connect() as connection:
        # The server would do so by itself, a minute later; until then claims walk over what the finished items left.
        if database.dialect == "postgresql":
            connection.execution_options(isolation_level="AUTOCOMMIT").execute(sa.text("VACUUM ANALYZE"))


def _finish(connection: Connection, now: sa.ColumnElement[int], template_job: int, jobs: int) -> None:
    older = sa.and_(work_item.c.job_id > template_job, work_item.c.job_id <= template_job + jobs)
    held = {"token": work_item.c.partition_key, "worker": "bench", "lease_until": now, "attempts": 1}
    freed = {"token": None, "worker": None, "lease_until": None, "output": "{}", "output_digest": sha256_hex("{}")}
    connection.execute(sa.update(work_item).where(older).values(state=WorkState.RUNNING.value, **held))
    connection.execute(sa.update(work_item).where(older).values(state=WorkState.SUCCEEDED.value, **freed))
    passed = sa.and_(job.c.job_id > template_job, job.c.job_id <= template_job + jobs)
    for state in (JobState.GENERATING_TESTS, JobState.VALIDATING):
        connection.execute(sa.update(job).where(passed).values(state=state.value))


def _series(name: str, count: int) -> sa.CTE:
    start = sa.select(sa.literal(1, sa.Integer).label("n")).cte(name, recursive=True)
    return start.union_all(sa.select(start.c.n + 1).where(start.c.n < count))


def _copies(
    table: sa.Table, changed: Mapping[str, sa.ColumnElement[Any]], source: sa.FromClause, where: sa.ColumnElement[bool]
) -> sa.Insert:
    names = [column.name for column in table.c]
    rows = sa.select(*(changed.get(name, table.c[name]) for name in names)).select_from(source).where(where)
    return sa.insert(table).from_select(names, rows)


def _on_server(server: sa.URL, statement: sql.Composed) -> None:
    try:
        with psycopg.connect(server.render_as_string(hide_password=False), autocommit=True) as connection:
            connection.execute(statement)
    except psycopg.Error as error:
        raise LedgerError(
            f"a scratch database cannot be made or dropped beside the given one ({type(error).__name__}); the server"
            " has to answer, and the role needs CREATEDB",
            code="no_scratch_database",
        ) from error
