"""Behaviours: prompt texts by hash, and what a job waits to be decided."""

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    pass


def downgrade() -> None:
    raise NotImplementedError("the ledger only moves forward; restore a backup to go back")
