"""Deadlines of jobs, shares and limits of tenants, and the outbox that Dagster's event log is copied from."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

STAGES = "'parse', 'retrieve', 'generate_rules', 'generate_tests', 'validate', 'publish', 'notify'"


def upgrade() -> None:
    serial = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    _add_columns()
    running = sa.text("state = 'running'")
    op.create_index(
        "ix_work_item_running", "work_item", ["stage", "job_id"], sqlite_where=running, postgresql_where=running
    )
    op.create_table(
        "outbox",
        sa.Column("outbox_id", serial, autoincrement=True, nullable=False),
        sa.Column("job_id", serial, nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("item_key", sa.Text(), nullable=False),
        sa.Column("stage_version", sa.Integer(), nullable=False),
        sa.Column("dagster_run_id", sa.Text()),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("mirrored_at", sa.BigInteger()),
        sa.PrimaryKeyConstraint("outbox_id", name=op.f("pk_outbox")),
        sa.ForeignKeyConstraint(["job_id"], ["job.job_id"], name=op.f("fk_outbox_job_id")),
        sa.UniqueConstraint("job_id", "stage", "item_key", "stage_version", name=op.f("uq_outbox_job_id_stage_item_key_stage_version")),
        sa.CheckConstraint(f"stage IN ({STAGES})", name=op.f("ck_outbox_stage")),
    )
    unmirrored = sa.text("mirrored_at IS NULL")
    op.create_index(
        "ix_outbox_unmirrored", "outbox", ["outbox_id"], sqlite_where=unmirrored, postgresql_where=unmirrored
    )


def _add_columns() -> None:
    # SQLite checks an added column only where the constraint stands in the column itself.
    weight = "weight BETWEEN 1 AND 1000"
    limit = "claim_limit IS NULL OR claim_limit >= 0"
    op.execute(
        f"ALTER TABLE tenant ADD COLUMN weight INTEGER DEFAULT '1' NOT NULL CONSTRAINT ck_tenant_weight CHECK ({weight})"
    )
    op.execute(f"ALTER TABLE tenant ADD COLUMN claim_limit INTEGER CONSTRAINT ck_tenant_claim_limit CHECK ({limit})")
    op.add_column("job", sa.Column("deadline_at", sa.BigInteger()))


def downgrade() -> None:
    raise NotImplementedError("the ledger only moves forward; restore a backup to go back")
