"""Alembic's entry: runs the migrations on the connection that `ledger.migrate` hands over."""

from alembic import context

from rulegen_dagster.ledger.migrate import VERSION_TABLE
from rulegen_dagster.ledger.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=True,
    # Dagster keeps its revision in alembic_version, and may share the database.
    version_table=VERSION_TABLE,
    # SQLite cannot alter most of a table in place.
    render_as_batch=True,
)
context.run_migrations()
