"""Traces: where a submission, and each attempt, stands in a trace."""

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    pass


def downgrade() -> None:
    raise NotImplementedError("the ledger only moves forward; restore a backup to go back")
