"""Traces: where a submission, and each attempt, stands in a trace. Retention: what content of a job was removed."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

TRACEPARENT = "length(traceparent) = 55 AND traceparent LIKE '00-%'"
KINDS = ("upload", "canonical_text", "prompts")


def upgrade() -> None:
    serial = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.create_table(
        "job_trace",
        sa.Column("job_id", serial, autoincrement=False, nullable=False),
        sa.Column("traceparent", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_job_trace")),
        sa.ForeignKeyConstraint(["job_id"], ["job.job_id"], name=op.f("fk_job_trace_job_id")),
        sa.CheckConstraint(TRACEPARENT, name=op.f("ck_job_trace_traceparent")),
    )
    op.create_table(
        "attempt_trace",
        sa.Column("token", sa.Text(), nullable=False),
        sa.Column("traceparent", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("token", name=op.f("pk_attempt_trace")),
        sa.ForeignKeyConstraint(["token"], ["attempt.token"], name=op.f("fk_attempt_trace_token")),
        sa.CheckConstraint(TRACEPARENT, name=op.f("ck_attempt_trace_traceparent")),
    )
    op.create_table(
        "removed_content",
        sa.Column("job_id", serial, autoincrement=False, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("removed_at", sa.BigInteger(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "kind", name=op.f("pk_removed_content")),
        sa.ForeignKeyConstraint(["job_id"], ["job.job_id"], name=op.f("fk_removed_content_job_id")),
        sa.CheckConstraint(
            "(" + " OR ".join(f"kind = '{kind}'" for kind in KINDS) + ")", name=op.f("ck_removed_content_kind")
        ),
    )
    _keep_tombstones()


def _keep_tombstones() -> None:
    """Content is removed for good, and only of a job that has ended; the rows that say so stay."""
    ended = "state = 'completed' OR state = 'failed' OR state = 'cancelled' OR state = 'expired'"
    of_ended = f"NOT EXISTS (SELECT 1 FROM job WHERE job.job_id = NEW.job_id AND ({ended}))"  # noqa: S608 (constants)
    if op.get_bind().dialect.name == "sqlite":
        for event in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER removed_content_is_kept_on_{event.lower()} BEFORE {event} ON removed_content"
                " BEGIN SELECT RAISE(ABORT, 'what says that content was removed is never changed or deleted'); END"
            )
        op.execute(
            f"CREATE TRIGGER removed_content_is_of_ended_jobs BEFORE INSERT ON removed_content WHEN {of_ended}"
            " BEGIN SELECT RAISE(ABORT, 'content is removed only of a job that has ended'); END"
        )
        return
    op.execute(
        "CREATE FUNCTION refuse_removed_content_change() RETURNS trigger LANGUAGE plpgsql AS $$"
        " BEGIN RAISE EXCEPTION 'what says that content was removed is never changed or deleted'"
        " USING ERRCODE = 'integrity_constraint_violation'; END $$"
    )
    op.execute(
        "CREATE TRIGGER removed_content_is_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON removed_content"
        " FOR EACH STATEMENT EXECUTE FUNCTION refuse_removed_content_change()"
    )
    op.execute(
        "CREATE FUNCTION check_removed_content() RETURNS trigger LANGUAGE plpgsql AS $$"
        f" BEGIN IF {of_ended} THEN RAISE EXCEPTION 'content is removed only of a job that has ended'"
        " USING ERRCODE = 'integrity_constraint_violation'; END IF; RETURN NEW; END $$"
    )
    op.execute(
        "CREATE TRIGGER removed_content_is_of_ended_jobs BEFORE INSERT ON removed_content"
        " FOR EACH ROW EXECUTE FUNCTION check_removed_content()"
    )


def downgrade() -> None:
    raise NotImplementedError("the ledger only moves forward; restore a backup to go back")
