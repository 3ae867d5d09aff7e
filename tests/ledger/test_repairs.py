"""Repairs in the ledger: what the database keeps of a refused draft, and what it refuses to keep."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from sqlalchemy.engine import Connection

from rulegen_dagster.domain.errors import LedgerError
from rulegen_dagster.ledger import migrate as migrations
from rulegen_dagster.ledger.database import Database, open_database

JOB = """
    INSERT INTO behaviour (digest, content, created_at) VALUES ('b', '{}', 1);
    INSERT INTO submission (tenant, submission_key, input_digest, file_name, size_bytes, received_at)
        VALUES ('default', 'k', 'd', 'f.md', 1, 1);
    INSERT INTO job (job_id, tenant, submission_key, partition_key, ruleset, state, behaviour_digest, spec_digest,
        created_at, updated_at) VALUES (1, 'default', 'k', 'p', 'r', 'received', 'b', 'd', 1, 1);
    INSERT INTO work_item (job_id, stage, item_key, stage_version, ordinal, state, attempts, attempt_limit, created_at,
        updated_at) VALUES (1, 'generate_rules', 'rule-01', 1, 1, 'pending', 2, 3, 1, 1)
"""
ATTEMPT = """
    INSERT INTO attempt (job_id, stage, item_key, stage_version, attempt, token, worker, operation_key, started_at,
        ended_at, outcome, provider_called)
        VALUES (1, 'generate_rules', 'rule-01', 1, {number}, 't{number}', 'w', 'o', 1, 2, 'invalid_output', true)
"""
UNREFUSED = """
    INSERT INTO attempt (job_id, stage, item_key, stage_version, attempt, token, worker, operation_key, started_at,
        provider_called, refusal) VALUES (1, 'generate_rules', 'rule-01', 1, 3, 't3', 'w', 'o', 1, true, '[]')
"""


@pytest.fixture
def earlier(ledger_url: str) -> Iterator[Database]:
    """A ledger of the revision before, with an item that was attempted twice."""
    database = open_database(ledger_url + ".old" if ledger_url.startswith("sqlite") else ledger_url)
    with database.write() as connection:
        if database.dialect == "postgresql":
            connection.exec_driver_sql("DROP SCHEMA public CASCADE")
            connection.exec_driver_sql("CREATE SCHEMA public")
        _upgrade(connection, "0004")
        for statement in [*JOB.split(";"), ATTEMPT.format(number=1), ATTEMPT.format(number=2)]:
            connection.execute(sa.text(statement))
    yield database
    database.close()


def _upgrade(connection: Connection, revision: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def test_the_attempts_of_an_earlier_release_are_first_ones_and_retries(earlier: Database) -> None:
    migrations.migrate(earlier)

    with earlier.read() as connection:
        kept = connection.execute(sa.text("SELECT attempt, kind, refusal FROM attempt ORDER BY attempt")).all()
        waiting = connection.execute(sa.text("SELECT repair FROM work_item")).scalars().all()
    assert [tuple(row) for row in kept] == [(1, "first", None), (2, "retry", None)]
    assert waiting == [None]


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE attempt SET kind = 'guess'",
        "UPDATE attempt SET kind = NULL",
        UNREFUSED,
    ],
)
def test_the_database_refuses_another_kind_and_a_refusal_without_a_refused_draft(
    earlier: Database, change: str
) -> None:
    migrations.migrate(earlier)

    with pytest.raises(LedgerError), earlier.write() as connection:
        connection.execute(sa.text(change))
