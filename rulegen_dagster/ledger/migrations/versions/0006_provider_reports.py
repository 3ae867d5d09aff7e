"""Provider reports: what an answer said of itself beside its tokens."""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # SQLite checks an added column only where the constraint stands in the column itself.
    called = "CONSTRAINT ck_attempt_report_of_a_call CHECK (report IS NULL OR provider_called)"
    op.execute(f"ALTER TABLE attempt ADD COLUMN report TEXT {called}")
    _turn_the_unique_key_of_items()


def _turn_the_unique_key_of_items() -> None:
    """With the stage first, PostgreSQL took it for the way to an item by its key, past every item of the stage.

    It did so where it had no statistics yet: in each check that an attempt's item is there.
    """
    if op.get_bind().dialect.name == "postgresql":
        name = "uq_work_item_stage_partition_key"
        op.execute(f"ALTER TABLE work_item DROP CONSTRAINT {name}, ADD CONSTRAINT {name} UNIQUE (partition_key, stage)")


def downgrade() -> None:
    raise NotImplementedError("the ledger only moves forward; restore a backup to go back")
