import re
import time
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from rulegen_dagster.domain.errors import InputError, LedgerError
from rulegen_dagster.ledger import migrate as migrations
from rulegen_dagster.ledger.database import DatabaseClock, open_database
from rulegen_dagster.ledger.schema import metadata, submission, tenant
from rulegen_dagster.ledger.store import Ledger


def test_the_release_names_the_newest_revision() -> None:
    folder = Path(migrations.__file__).parent / "migrations"

    assert ScriptDirectory(str(folder)).get_heads() == [migrations.HEAD]


def test_the_migrated_schema_is_the_one_that_the_statements_are_built_for(ledger: Ledger) -> None:
    with ledger.database.read() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": migrations.VERSION_TABLE})
        difference = compare_metadata(context, metadata)

    assert difference == []


def test_an_index_of_some_rows_holds_those_that_the_schema_says(ledger: Ledger) -> None:
    column = "sql FROM sqlite_master" if ledger.database.dialect == "sqlite" else "indexdef FROM pg_indexes"
    with ledger.database.read() as connection:
        made = " ".join(
            _words(text) for (text,) in connection.exec_driver_sql(f"SELECT {column}") if text and " WHERE " in text
        )

    said = {
        str(index.name): index.info["where"]
        for table in metadata.tables.values()
        for index in table.indexes
        if index.info
    }
    assert len(said) >= 5
    for name, condition in said.items():
        (definition,) = re.findall(rf"index {name} on [^;]*? where (.*?)(?= create |$)", made)
        assert definition == _words(condition)


def _words(definition: str) -> str:
    """Return a definition without what each database adds or leaves out in its own way."""
    return " ".join(re.sub(r"[()]|::text", " ", definition).lower().split())


def test_a_check_that_an_attempts_item_is_there_has_one_index_to_take(ledger: Ledger) -> None:
    if ledger.database.dialect == "sqlite":
        pytest.skip("SQLite takes the index of the key that is referred to, always")
    with ledger.database.read() as connection:
        found = connection.exec_driver_sql(
            "SELECT indexdef FROM pg_indexes WHERE tablename = 'work_item' AND indexdef NOT LIKE '%% WHERE %%'"
        ).scalars()
        first = {re.findall(r"\((\w+)", definition)[0] for definition in found}

    # Without statistics, any index that begins with a column of the key looks as good as the key's own.
    assert first == {"job_id", "partition_key", "token"}


def test_the_databases_clock_is_in_milliseconds_of_now(ledger_url: str) -> None:
    database = open_database(ledger_url, DatabaseClock())
    with database.read() as connection:
        now = int(connection.execute(sa.select(database.now)).scalar_one())
    database.close()

    assert abs(now - time.time() * 1_000) < 60_000


def test_a_transaction_sees_what_was_committed_before_each_statement_whatever_the_servers_default_is(
    ledger_url: str,
) -> None:
    """A barrier is passed by the last completion of a stage: it has to see the others', which it waited for."""
    if ledger_url.startswith("sqlite"):
        pytest.skip("SQLite has one writer at a time")
    database = open_database(f"{ledger_url}?options=-c default_transaction_isolation=serializable")
    with database.write() as connection:
        isolation = connection.execute(sa.text("SHOW transaction_isolation")).scalar_one()
    database.close()

    assert isolation == "read committed"


def test_a_newer_ledger_asks_for_the_release_that_made_it(ledger: Ledger) -> None:
    with ledger.database.write() as connection:
        connection.execute(sa.text("UPDATE rulegen_revision SET version_num = '9999'"))

    with pytest.raises(LedgerError, match="newer release") as refused:
        migrations.ensure_current(ledger.database)

    assert refused.value.code == "ledger_revision"


def test_a_migration_that_is_repeated_changes_nothing(ledger: Ledger) -> None:
    assert migrations.migrate(ledger.database) == (migrations.HEAD, migrations.HEAD)
    assert migrations.revision(ledger.database) == migrations.HEAD


def test_a_refused_statement_tells_no_parameters(ledger: Ledger) -> None:
    row = {"tenant": "nobody", "submission_key": "CANARY-KEY", "input_digest": "CANARY-DIGEST"}

    with pytest.raises(LedgerError) as caught, ledger.database.write() as connection:
        connection.execute(sa.insert(submission).values(**row, file_name="CANARY.md", size_bytes=1, received_at=1))

    assert caught.value.code == "ledger_refused"
    assert "CANARY" not in caught.value.message


def test_a_text_that_is_not_unicode_is_refused_without_being_repeated(ledger: Ledger) -> None:
    with pytest.raises(LedgerError) as caught, ledger.database.write() as connection:
        connection.execute(sa.insert(tenant).values(tenant="CANARY\udcff", created_at=1))

    assert caught.value.code == "ledger_refused"
    assert "CANARY" not in caught.value.message


def test_a_transaction_that_fails_leaves_nothing(ledger: Ledger) -> None:
    twice = [{"tenant": "acme", "created_at": 1}, {"tenant": "acme", "created_at": 2}]

    with pytest.raises(LedgerError), ledger.database.write() as connection:
        connection.execute(sa.insert(tenant), twice)

    assert ledger.submissions.tenants() == ("default",)


@pytest.mark.parametrize("url", ["not a url", "mysql://root@localhost/x", "oracle://x"], ids=str)
def test_a_url_of_another_database_is_refused(url: str) -> None:
    with pytest.raises(InputError) as caught:
        open_database(url)

    assert caught.value.code == "invalid_url"


def test_a_url_that_cannot_be_read_is_not_repeated() -> None:
    with pytest.raises(InputError) as caught:
        open_database("postgresql//user:hunter2@host")

    assert "hunter2" not in caught.value.message


def test_a_server_that_does_not_answer_is_an_error_of_the_ledger() -> None:
    database = open_database("postgresql://nobody:hunter2@127.0.0.1:1/none")

    with pytest.raises(LedgerError) as caught, database.read():
        pass
    database.close()

    assert caught.value.code == "ledger_unavailable"
    assert "hunter2" not in caught.value.message


@pytest.mark.parametrize("name", ["a b", "q?x=1", "p%41", "h#y", "ü規"])
def test_a_ledger_lies_where_its_path_says_whatever_is_in_it(tmp_path: Path, name: str) -> None:
    database = open_database(f"sqlite:///{tmp_path / name / 'ledger.sqlite3'}")
    migrations.migrate(database)
    database.close()

    assert (tmp_path / name / "ledger.sqlite3").is_file()
    assert [path.name for path in tmp_path.iterdir()] == [name]
