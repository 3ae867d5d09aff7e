"""Behaviours: the texts that a job froze, kept by hash; what a job waits to be decided; how its behaviour changed."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

PARTS = (
    "(part = 'pipeline_revision' OR part = 'retrieval_index' OR part = 'output_schema' OR part = 'provider'"
    " OR part = 'model_id' OR part = 'provider_settings' OR part = 'prompt_versions' OR part = 'vocabulary'"
    " OR part = 'validation_policy' OR part = 'reported_model')"
)
ACTIVE = (
    "(from_state = 'received' OR from_state = 'authorized' OR from_state = 'extracting' OR from_state = 'retrieving'"
    " OR from_state = 'generating_rules' OR from_state = 'generating_tests' OR from_state = 'validating'"
    " OR from_state = 'awaiting_confirmation' OR from_state = 'executing')"
)
IN_USE = (
    "EXISTS (SELECT 1 FROM behaviour_prompt JOIN job ON job.behaviour_digest = behaviour_prompt.behaviour_digest"
    " WHERE behaviour_prompt.prompt_digest = OLD.digest"
    " AND job.state NOT IN ('completed', 'failed', 'cancelled', 'expired'))"
)
OTHER_PROMPT = (
    "NEW.digest <> OLD.digest OR NEW.created_at <> OLD.created_at"
    f" OR (OLD.content IS NOT NULL AND (NEW.content IS NOT NULL OR {IN_USE}))"
)
UNRECORDED = (
    "NEW.behaviour_digest <> OLD.behaviour_digest AND NOT EXISTS (SELECT 1 FROM job_behaviour"
    " WHERE job_behaviour.job_id = OLD.job_id AND job_behaviour.from_digest = OLD.behaviour_digest"
    " AND job_behaviour.to_digest = NEW.behaviour_digest)"
)
REFUSALS = (
    # Removing the text of a prompt that nobody needs any more is the one change; its digest stays, and a later
    # submission may bring the text again.
    (
        "prompt",
        "UPDATE",
        OTHER_PROMPT,
        "a prompt stays as it is while a job may need it",
    ),
    ("prompt", "DELETE", "OLD.digest IS NOT NULL", "the digest of a prompt is never deleted"),
    ("pack", "UPDATE", "OLD.digest IS NOT NULL", "a pack is written once"),
    ("pack", "DELETE", "OLD.digest IS NOT NULL", "a pack is never deleted"),
    ("behaviour_prompt", "UPDATE", "OLD.task IS NOT NULL", "what a behaviour names is written once"),
    ("behaviour_prompt", "DELETE", "OLD.task IS NOT NULL", "what a behaviour names is never deleted"),
    ("job_behaviour", "UPDATE", "OLD.job_id IS NOT NULL", "a change of behaviour is written once"),
    ("job_behaviour", "DELETE", "OLD.job_id IS NOT NULL", "a change of behaviour is never deleted"),
    ("needed_decision", "UPDATE", "OLD.settled_at IS NOT NULL", "a decision that was carried out is final"),
    ("needed_decision", "DELETE", "OLD.job_id IS NOT NULL", "a needed decision is never deleted"),
    # Never silently: the change is on record before it is made.
    (
        "job",
        "UPDATE OF behaviour_digest",
        UNRECORDED,
        "a job changes its behaviour by a recorded migration alone",
    ),
)


def upgrade() -> None:
    serial = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.create_table(
        "prompt",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("content", sa.Text(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_prompt")),
    )
    op.create_table(
        "pack",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("(kind = 'vocabulary' OR kind = 'validation_policy')", name=op.f("ck_pack_kind")),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_pack")),
    )
    op.create_table(
        "behaviour_prompt",
        sa.Column("behaviour_digest", sa.Text(), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("prompt_digest", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["behaviour_digest"], ["behaviour.digest"], name=op.f("fk_behaviour_prompt_behaviour_digest")
        ),
        sa.ForeignKeyConstraint(["prompt_digest"], ["prompt.digest"], name=op.f("fk_behaviour_prompt_prompt_digest")),
        sa.PrimaryKeyConstraint("behaviour_digest", "task", name=op.f("pk_behaviour_prompt")),
    )
    op.create_index(op.f("ix_behaviour_prompt_prompt_digest"), "behaviour_prompt", ["prompt_digest"])
    op.create_table(
        "job_behaviour",
        sa.Column("job_id", serial, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("from_digest", sa.Text(), nullable=False),
        sa.Column("to_digest", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("from_digest <> to_digest", name=op.f("ck_job_behaviour_changes_something")),
        sa.ForeignKeyConstraint(["job_id"], ["job.job_id"], name=op.f("fk_job_behaviour_job_id")),
        sa.ForeignKeyConstraint(["from_digest"], ["behaviour.digest"], name=op.f("fk_job_behaviour_from_digest")),
        sa.ForeignKeyConstraint(["to_digest"], ["behaviour.digest"], name=op.f("fk_job_behaviour_to_digest")),
        sa.PrimaryKeyConstraint("job_id", "number", name=op.f("pk_job_behaviour")),
    )
    op.create_table(
        "needed_decision",
        sa.Column("job_id", serial, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("part", sa.Text(), nullable=False),
        sa.Column("was", sa.Text(), nullable=False),
        sa.Column("now", sa.Text(), nullable=True),
        sa.Column("from_state", sa.Text(), nullable=False),
        sa.Column("asked_by", sa.Text(), nullable=False),
        sa.Column("asked_at", sa.BigInteger(), nullable=False),
        sa.Column("decision", sa.Text(), nullable=True),
        sa.Column("decided_by", sa.Text(), nullable=True),
        sa.Column("decided_at", sa.BigInteger(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("settled_at", sa.BigInteger(), nullable=True),
        sa.CheckConstraint(PARTS, name=op.f("ck_needed_decision_part")),
        sa.CheckConstraint(ACTIVE, name=op.f("ck_needed_decision_from_state")),
        sa.CheckConstraint(
            "decision IS NULL OR (decision = 'retain' OR decision = 'migrate' OR decision = 'stop')",
            name=op.f("ck_needed_decision_decision"),
        ),
        sa.CheckConstraint(
            "(decision IS NULL) = (decided_at IS NULL) AND (decision IS NULL) = (decided_by IS NULL)",
            name=op.f("ck_needed_decision_somebody_decides"),
        ),
        sa.CheckConstraint(
            "settled_at IS NULL OR decision IS NOT NULL", name=op.f("ck_needed_decision_settled_by_a_decision")
        ),
        sa.ForeignKeyConstraint(["job_id"], ["job.job_id"], name=op.f("fk_needed_decision_job_id")),
        sa.PrimaryKeyConstraint("job_id", "number", name=op.f("pk_needed_decision")),
    )
    unsettled = sa.text("settled_at IS NULL")
    op.create_index(
        "uq_needed_decision_unsettled",
        "needed_decision",
        ["job_id"],
        unique=True,
        sqlite_where=unsettled,
        postgresql_where=unsettled,
    )
    for table, event, condition, message in REFUSALS:
        _refuse(table, event, condition, message)


def _refuse(table: str, event: str, condition: str, message: str) -> None:
    name = f"{table}_is_kept_on_{event.split(maxsplit=1)[0].lower()}"
    if table == "job":
        name = "job_behaviour_is_recorded"
    if op.get_bind().dialect.name == "sqlite":
        op.execute(
            f"CREATE TRIGGER {name} BEFORE {event} ON {table} WHEN {condition}"
            f" BEGIN SELECT RAISE(ABORT, '{message}'); END"
        )
        return
    # A trigger's WHEN can't hold a subquery on PostgreSQL, so the function asks.
    op.execute(
        f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN IF {condition} THEN RAISE EXCEPTION '{message}' USING ERRCODE = 'integrity_constraint_violation';"
        f" END IF; RETURN {'OLD' if event == 'DELETE' else 'NEW'}; END $$"
    )
    op.execute(f"CREATE TRIGGER {name} BEFORE {event} ON {table} FOR EACH ROW EXECUTE FUNCTION {name}()")


def downgrade() -> None:
    raise NotImplementedError("the ledger only moves forward; restore a backup to go back")
