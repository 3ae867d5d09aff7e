"""Alembic's history of the ledger's schema."""
