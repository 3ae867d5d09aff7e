"""Longer answers: what a call may use on top where its answer was cut off, and is asked for again with more room."""

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Whoever loads a job tells its estimates anew before the next claim. SQLite checks an added column only where the
    # constraint stands in the column itself.
    for name in ("longer_tokens", "longer_micros"):
        check = f"CONSTRAINT ck_call_estimate_{name} CHECK ({name} >= 0)"
        op.execute(f"ALTER TABLE call_estimate ADD COLUMN {name} BIGINT DEFAULT 0 NOT NULL {check}")


def downgrade() -> None:
    raise NotImplementedError("the ledger only moves forward; restore a backup to go back")
