"""Waivers: a named person's word that a clause needs no rule, kept as it was given."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    serial = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.create_table(
        "waiver",
        sa.Column("job_id", serial, nullable=False),
        sa.Column("clause_ordinal", sa.Integer(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "clause_ordinal", name=op.f("pk_waiver")),
        sa.ForeignKeyConstraint(
            ["job_id", "clause_ordinal"],
            ["clause.job_id", "clause.ordinal"],
            name=op.f("fk_waiver_job_id_clause_ordinal"),
        ),
        sa.CheckConstraint("actor <> '' AND reason <> ''", name=op.f("ck_waiver_somebody_says_why")),
    )
    if op.get_bind().dialect.name == "sqlite":
        for event in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER waiver_is_kept_on_{event.lower()} BEFORE {event} ON waiver"
                " BEGIN SELECT RAISE(ABORT, 'a waiver is never changed or deleted'); END"
            )
        return
    op.execute(
        "CREATE FUNCTION refuse_waiver_change() RETURNS trigger LANGUAGE plpgsql AS $$"
        " BEGIN RAISE EXCEPTION 'a waiver is never changed or deleted'"
        " USING ERRCODE = 'integrity_constraint_violation'; END $$"
    )
    op.execute(
        "CREATE TRIGGER waiver_is_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON waiver FOR EACH STATEMENT"
        " EXECUTE FUNCTION refuse_waiver_change()"
    )


def downgrade() -> None:
    raise NotImplementedError("the ledger only moves forward; restore a backup to go back")
