"""Repairs: what an attempt was (the first, a retry, a repair), why its draft was refused, and what is to be mended."""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # SQLite checks an added column only where the constraint stands in the column itself.
    kinds = "(kind = 'first' OR kind = 'retry' OR kind = 'repair')"
    op.execute(
        f"ALTER TABLE attempt ADD COLUMN kind TEXT DEFAULT 'first' NOT NULL CONSTRAINT ck_attempt_kind CHECK {kinds}"
    )
    refused = "refusal IS NULL OR (outcome IS NOT NULL AND outcome = 'invalid_output')"
    op.execute(
        f"ALTER TABLE attempt ADD COLUMN refusal TEXT CONSTRAINT ck_attempt_refusal_of_a_draft CHECK ({refused})"
    )
    op.execute("UPDATE attempt SET kind = 'retry' WHERE attempt > 1")
    op.execute("ALTER TABLE work_item ADD COLUMN repair TEXT")


def downgrade() -> None:
    raise NotImplementedError("the ledger only moves forward; restore a backup to go back")
