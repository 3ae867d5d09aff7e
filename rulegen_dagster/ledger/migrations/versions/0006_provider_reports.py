"""Provider reports: what an answer said of itself beside its tokens."""

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    pass


def downgrade() -> None:
    raise NotImplementedError("the ledger only moves forward; restore a backup to go back")
