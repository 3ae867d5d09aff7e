"""Quotas: requests, tokens and money of each scope, and what attempts have reserved of them."""

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    pass


def downgrade() -> None:
    raise NotImplementedError("the ledger only moves forward; restore a backup to go back")
