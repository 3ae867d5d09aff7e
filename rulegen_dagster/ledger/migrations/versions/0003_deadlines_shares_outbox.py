"""Deadlines of jobs, shares and limits of tenants, and the outbox that Dagster's event log is copied from."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

STAGES = ("parse", "retrieve", "generate_rules", "generate_tests", "validate", "publish", "notify")


def upgrade() -> None:
    serial = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    _add_columns()
    # Plain comparisons: for a list of literals SQLite builds an index of its own, for each row that it writes.
    is_open = sa.text("(state = 'pending' OR state = 'running' OR state = 'waiting')")
    op.drop_index("ix_work_item_open", "work_item")
    op.create_index(
        "ix_work_item_open", "work_item", ["stage", "job_id", "ordinal"], sqlite_where=is_open, postgresql_where=is_open
    )
    running = sa.text("state = 'running'")
    op.create_index(
        "ix_work_item_running", "work_item", ["stage", "job_id"], sqlite_where=running, postgresql_where=running
    )
    op.create_index("ix_job_state_tenant_job_id", "job", ["state", "tenant", "job_id"])
    executing = sa.text("state = 'executing'")
    op.create_index("ix_action_executing", "action", ["job_id"], sqlite_where=executing, postgresql_where=executing)
    op.create_table(
        "outbox",
        sa.Column("outbox_id", serial, autoincrement=True, nullable=False),
        sa.Column("job_id", serial, nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("item_key", sa.Text(), nullable=False),
        sa.Column("stage_version", sa.Integer(), nullable=False),
        sa.Column("dagster_run_id", sa.Text()),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("lease_until", sa.BigInteger()),
        sa.Column("mirrored_at", sa.BigInteger()),
        sa.PrimaryKeyConstraint("outbox_id", name=op.f("pk_outbox")),
        sa.ForeignKeyConstraint(["job_id"], ["job.job_id"], name=op.f("fk_outbox_job_id")),
        sa.UniqueConstraint(
            "job_id", "stage", "item_key", "stage_version", name=op.f("uq_outbox_job_id_stage_item_key_stage_version")
        ),
        sa.CheckConstraint(
            "(" + " OR ".join(f"stage = '{stage}'" for stage in STAGES) + ")", name=op.f("ck_outbox_stage")
        ),
    )
    unmirrored = sa.text("mirrored_at IS NULL")
    op.create_index(
        "ix_outbox_unmirrored", "outbox", ["outbox_id"], sqlite_where=unmirrored, postgresql_where=unmirrored
    )
    _fill_outbox()
    _guard_outbox()


def _add_columns() -> None:
    # SQLite checks an added column only where the constraint stands in the column itself.
    weight = "weight BETWEEN 1 AND 1000"
    limit = "claim_limit IS NULL OR claim_limit >= 0"
    op.execute(
        f"ALTER TABLE tenant ADD COLUMN weight INTEGER DEFAULT '1' NOT NULL CONSTRAINT ck_tenant_weight CHECK ({weight})"
    )
    op.execute(f"ALTER TABLE tenant ADD COLUMN claim_limit INTEGER CONSTRAINT ck_tenant_claim_limit CHECK ({limit})")
    op.add_column("job", sa.Column("deadline_at", sa.BigInteger()))
    number = "INTEGER" if op.get_bind().dialect.name == "sqlite" else "BIGINT"
    inherited = "inherited_from IS NULL OR (outcome IS NOT NULL AND outcome = 'accepted' AND NOT provider_called)"
    op.execute(
        f"ALTER TABLE attempt ADD COLUMN inherited_from {number}"
        " CONSTRAINT fk_attempt_inherited_from REFERENCES job (job_id)"
        f" CONSTRAINT ck_attempt_inherited_is_accepted CHECK ({inherited})"
    )


def _fill_outbox() -> None:
    # Unmirrored: most of these events are in Dagster's log already and are found there, but what a crash lost is not.
    op.execute(
        "INSERT INTO outbox (job_id, stage, item_key, stage_version, dagster_run_id, created_at)"
        " SELECT job_id, stage, item_key, stage_version, dagster_run_id, ended_at FROM attempt"
        " WHERE outcome = 'accepted' ORDER BY ended_at, job_id, stage, item_key"
    )
    op.execute(
        "INSERT INTO outbox (job_id, stage, item_key, stage_version, created_at)"
        " SELECT job_id, 'publish', 'document', 1, updated_at FROM action"
        " WHERE kind = 'publish' AND state = 'done' ORDER BY updated_at, job_id"
    )


def _guard_outbox() -> None:
    """Rows stay for ever; of a row only the lease changes, and `mirrored_at` once, from null."""
    fixed = ("outbox_id", "job_id", "stage", "item_key", "stage_version", "dagster_run_id", "created_at")
    if op.get_bind().dialect.name == "sqlite":
        changed = " OR ".join(f"NEW.{column} IS NOT OLD.{column}" for column in fixed)
        op.execute(
            "CREATE TRIGGER outbox_is_kept BEFORE DELETE ON outbox"
            " BEGIN SELECT RAISE(ABORT, 'a row of the outbox is never deleted'); END"
        )
        op.execute(
            "CREATE TRIGGER outbox_is_mirrored_once BEFORE UPDATE ON outbox"
            f" WHEN {changed} OR (OLD.mirrored_at IS NOT NULL AND NEW.mirrored_at IS NOT OLD.mirrored_at)"
            " BEGIN SELECT RAISE(ABORT, 'a row of the outbox is mirrored once and not changed otherwise'); END"
        )
        return
    changed = " OR ".join(f"NEW.{column} IS DISTINCT FROM OLD.{column}" for column in fixed)
    op.execute(
        "CREATE FUNCTION refuse_outbox_change() RETURNS trigger LANGUAGE plpgsql AS $$"
        " BEGIN RAISE EXCEPTION '%', TG_ARGV[0] USING ERRCODE = 'integrity_constraint_violation'; END $$"
    )
    op.execute(
        "CREATE TRIGGER outbox_is_kept BEFORE DELETE OR TRUNCATE ON outbox FOR EACH STATEMENT"
        " EXECUTE FUNCTION refuse_outbox_change('a row of the outbox is never deleted')"
    )
    op.execute(
        "CREATE TRIGGER outbox_is_mirrored_once BEFORE UPDATE ON outbox FOR EACH ROW"
        f" WHEN ({changed} OR (OLD.mirrored_at IS NOT NULL AND NEW.mirrored_at IS DISTINCT FROM OLD.mirrored_at))"
        " EXECUTE FUNCTION refuse_outbox_change('a row of the outbox is mirrored once and not changed otherwise')"
    )


def downgrade() -> None:
    raise NotImplementedError("the ledger only moves forward; restore a backup to go back")
