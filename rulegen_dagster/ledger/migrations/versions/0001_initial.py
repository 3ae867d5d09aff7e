"""The first schema: submissions, jobs, clauses, work items, attempts, actions, confirmations, transitions."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

FINAL = {
    "work_item": ("OLD.state = 'succeeded'", "an accepted output is final"),
    "job": ("OLD.state IN ('completed', 'failed', 'cancelled', 'expired')", "a job that ended is final"),
    "action": ("OLD.state = 'done'", "an action that is done is final"),
    "clause": ("OLD.job_id IS NOT NULL", "clauses are written once"),
    "behaviour": ("OLD.digest IS NOT NULL", "a behaviour is written once"),
    "submission": ("OLD.tenant IS NOT NULL", "a submission is written once"),
    "action_set": ("OLD.job_id IS NOT NULL", "an action set is written once"),
    "confirmation": ("OLD.job_id IS NOT NULL", "a decision is written once"),
    "transition": ("OLD.transition_id IS NOT NULL", "the log of transitions is append-only"),
}
"""Rows that nothing may change or delete: table, the condition, and the message of the refusal."""


def Serial() -> sa.types.TypeEngine[int]:  # noqa: N802 (reads as a type in the column lists below)
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "behaviour",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_behaviour")),
    )
    op.create_table(
        "tenant",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", name=op.f("pk_tenant")),
    )
    op.create_table(
        "submission",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("submission_key", sa.Text(), nullable=False),
        sa.Column("input_digest", sa.Text(), nullable=False),
        sa.Column("file_name", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("received_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["tenant"], ["tenant.tenant"], name=op.f("fk_submission_tenant")),
        sa.PrimaryKeyConstraint("tenant", "submission_key", name=op.f("pk_submission")),
    )
    op.create_table(
        "job",
        sa.Column("job_id", Serial(), autoincrement=True, nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("submission_key", sa.Text(), nullable=False),
        sa.Column("partition_key", sa.Text(), nullable=False),
        sa.Column("ruleset", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("behaviour_digest", sa.Text(), nullable=False),
        sa.Column("spec_digest", sa.Text(), nullable=False),
        sa.Column("canonical_digest", sa.Text(), nullable=True),
        sa.Column("spec_format", sa.Text(), nullable=True),
        sa.Column("validation_passed", sa.Boolean(), nullable=True),
        sa.Column("action_set_digest", sa.Text(), nullable=True),
        sa.Column("predecessor_job_id", Serial(), nullable=True),
        sa.Column("end_reason", sa.Text(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "(state = 'received' OR state = 'authorized' OR state = 'extracting' OR state = 'retrieving' OR state = 'generating_rules' OR state = 'generating_tests' OR state = 'validating' OR state = 'awaiting_confirmation' OR state = 'executing' OR state = 'completed' OR state = 'failed' OR state = 'cancelled' OR state = 'expired' OR state = 'needs_decision')",
            name=op.f("ck_job_state"),
        ),
        sa.CheckConstraint(
            "state NOT IN ('awaiting_confirmation', 'executing', 'completed') OR action_set_digest IS NOT NULL",
            name=op.f("ck_job_action_set_fixed"),
        ),
        sa.ForeignKeyConstraint(["behaviour_digest"], ["behaviour.digest"], name=op.f("fk_job_behaviour_digest")),
        sa.ForeignKeyConstraint(["predecessor_job_id"], ["job.job_id"], name=op.f("fk_job_predecessor_job_id")),
        sa.ForeignKeyConstraint(
            ["tenant", "submission_key"],
            ["submission.tenant", "submission.submission_key"],
            name=op.f("fk_job_tenant_submission_key"),
        ),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_job")),
        sa.UniqueConstraint("partition_key", name=op.f("uq_job_partition_key")),
        sa.UniqueConstraint("tenant", "submission_key", name=op.f("uq_job_tenant_submission_key")),
    )
    op.create_table(
        "action_set",
        sa.Column("job_id", Serial(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["job.job_id"], name=op.f("fk_action_set_job_id")),
        sa.PrimaryKeyConstraint("job_id", "digest", name=op.f("pk_action_set")),
    )
    op.create_table(
        "clause",
        sa.Column("job_id", Serial(), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("start", sa.Integer(), nullable=False),
        sa.Column("end", sa.Integer(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("heading_path", sa.Text(), nullable=False),
        sa.Column("label", sa.Text(), nullable=True),
        sa.Column("lead", sa.Text(), nullable=True),
        sa.Column("table_header", sa.Text(), nullable=False),
        sa.Column("content_hash", sa.Text(), nullable=False),
        sa.Column("context_hash", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("role_reason", sa.Text(), nullable=False),
        sa.CheckConstraint(
            "(kind = 'sentence' OR kind = 'list_item' OR kind = 'table_row')", name=op.f("ck_clause_kind")
        ),
        sa.CheckConstraint(
            "(role = 'normative' OR role = 'definition' OR role = 'informative')", name=op.f("ck_clause_role")
        ),
        sa.ForeignKeyConstraint(["job_id"], ["job.job_id"], name=op.f("fk_clause_job_id")),
        sa.PrimaryKeyConstraint("job_id", "ordinal", name=op.f("pk_clause")),
    )
    op.create_table(
        "transition",
        sa.Column("transition_id", Serial(), autoincrement=True, nullable=False),
        sa.Column("job_id", Serial(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("stage", sa.Text(), nullable=True),
        sa.Column("subject_key", sa.Text(), nullable=True),
        sa.Column("from_state", sa.Text(), nullable=True),
        sa.Column("to_state", sa.Text(), nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "(subject = 'job' OR subject = 'work_item' OR subject = 'action')", name=op.f("ck_transition_subject")
        ),
        sa.ForeignKeyConstraint(["job_id"], ["job.job_id"], name=op.f("fk_transition_job_id")),
        sa.PrimaryKeyConstraint("transition_id", name=op.f("pk_transition")),
    )
    op.create_index(op.f("ix_transition_job_id"), "transition", ["job_id"], unique=False)
    op.create_table(
        "action",
        sa.Column("action_key", sa.Text(), nullable=False),
        sa.Column("job_id", Serial(), nullable=False),
        sa.Column("action_set_digest", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("token", sa.Text(), nullable=True),
        sa.Column("lease_until", sa.BigInteger(), nullable=True),
        sa.Column("worker", sa.Text(), nullable=True),
        sa.Column("receipt", sa.Text(), nullable=True),
        sa.Column("error_code", sa.Text(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("(state = 'done') = (receipt IS NOT NULL)", name=op.f("ck_action_done_has_a_receipt")),
        sa.CheckConstraint(
            "(state = 'executing') = (token IS NOT NULL)", name=op.f("ck_action_executing_holds_a_lease")
        ),
        sa.CheckConstraint("kind IN ('publish', 'notify')", name=op.f("ck_action_kind")),
        sa.CheckConstraint(
            "(state = 'proposed' OR state = 'confirmed' OR state = 'executing' OR state = 'done' OR state = 'unknown' OR state = 'failed')",
            name=op.f("ck_action_state"),
        ),
        sa.ForeignKeyConstraint(
            ["job_id", "action_set_digest"],
            ["action_set.job_id", "action_set.digest"],
            name=op.f("fk_action_job_id_action_set_digest"),
        ),
        sa.PrimaryKeyConstraint("action_key", name=op.f("pk_action")),
    )
    op.create_table(
        "confirmation",
        sa.Column("job_id", Serial(), nullable=False),
        sa.Column("action_set_digest", sa.Text(), nullable=False),
        sa.Column("decision", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("decided_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("decision IN ('confirmed', 'rejected')", name=op.f("ck_confirmation_decision")),
        sa.ForeignKeyConstraint(
            ["job_id", "action_set_digest"],
            ["action_set.job_id", "action_set.digest"],
            name=op.f("fk_confirmation_job_id_action_set_digest"),
        ),
        sa.PrimaryKeyConstraint("job_id", "action_set_digest", name=op.f("pk_confirmation")),
    )
    op.create_table(
        "work_item",
        sa.Column("job_id", Serial(), nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("item_key", sa.Text(), nullable=False),
        sa.Column("stage_version", sa.Integer(), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("clause_ordinal", sa.Integer(), nullable=True),
        sa.Column("partition_key", sa.Text(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("attempt_limit", sa.Integer(), nullable=False),
        sa.Column("token", sa.Text(), nullable=True),
        sa.Column("lease_until", sa.BigInteger(), nullable=True),
        sa.Column("worker", sa.Text(), nullable=True),
        sa.Column("next_attempt_at", sa.BigInteger(), nullable=True),
        sa.Column("output", sa.Text(), nullable=True),
        sa.Column("output_digest", sa.Text(), nullable=True),
        sa.Column("error_code", sa.Text(), nullable=True),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "(state = 'running') = (token IS NOT NULL) AND (token IS NULL) = (lease_until IS NULL) AND (token IS NULL) = (worker IS NULL)",
            name=op.f("ck_work_item_running_holds_a_lease"),
        ),
        sa.CheckConstraint(
            "(state = 'succeeded') = (output IS NOT NULL) AND (output IS NULL) = (output_digest IS NULL)",
            name=op.f("ck_work_item_succeeded_has_an_output"),
        ),
        sa.CheckConstraint(
            "(state = 'waiting') = (next_attempt_at IS NOT NULL)", name=op.f("ck_work_item_waiting_has_a_due_time")
        ),
        sa.CheckConstraint(
            "(stage = 'parse' OR stage = 'retrieve' OR stage = 'generate_rules' OR stage = 'generate_tests' OR stage = 'validate' OR stage = 'publish' OR stage = 'notify')",
            name=op.f("ck_work_item_stage"),
        ),
        sa.CheckConstraint(
            "state <> 'failed' OR error_code IS NOT NULL", name=op.f("ck_work_item_failed_has_a_reason")
        ),
        sa.CheckConstraint(
            "(state = 'pending' OR state = 'running' OR state = 'waiting' OR state = 'succeeded' OR state = 'failed' OR state = 'cancelled')",
            name=op.f("ck_work_item_state"),
        ),
        sa.ForeignKeyConstraint(
            ["job_id", "clause_ordinal"],
            ["clause.job_id", "clause.ordinal"],
            name=op.f("fk_work_item_job_id_clause_ordinal"),
        ),
        sa.ForeignKeyConstraint(["job_id"], ["job.job_id"], name=op.f("fk_work_item_job_id")),
        sa.PrimaryKeyConstraint("job_id", "stage", "item_key", "stage_version", name=op.f("pk_work_item")),
        sa.UniqueConstraint("stage", "partition_key", name=op.f("uq_work_item_stage_partition_key")),
        sa.UniqueConstraint("token", name=op.f("uq_work_item_token")),
    )
    op.create_index(
        "ix_work_item_open",
        "work_item",
        ["stage", "job_id", "ordinal"],
        unique=False,
        sqlite_where=sa.text("state IN ('pending', 'running', 'waiting')"),
        postgresql_where=sa.text("state IN ('pending', 'running', 'waiting')"),
    )
    op.create_table(
        "attempt",
        sa.Column("job_id", Serial(), nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("item_key", sa.Text(), nullable=False),
        sa.Column("stage_version", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("token", sa.Text(), nullable=False),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("dagster_run_id", sa.Text(), nullable=True),
        sa.Column("operation_key", sa.Text(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("provider", sa.Text(), nullable=True),
        sa.Column("provider_called", sa.Boolean(), nullable=False),
        sa.Column("model_id", sa.Text(), nullable=True),
        sa.Column("provider_request_id", sa.Text(), nullable=True),
        sa.Column("tokens_in", sa.Integer(), nullable=True),
        sa.Column("tokens_out", sa.Integer(), nullable=True),
        sa.Column("cost_micros", sa.BigInteger(), nullable=True),
        sa.Column("output_digest", sa.Text(), nullable=True),
        sa.Column("error_code", sa.Text(), nullable=True),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "outcome IS NULL OR (outcome = 'accepted' OR outcome = 'invalid_output' OR outcome = 'retryable' OR outcome = 'rate_limited' OR outcome = 'ambiguous' OR outcome = 'permanent' OR outcome = 'crashed' OR outcome = 'cancelled' OR outcome = 'stale')",
            name=op.f("ck_attempt_outcome"),
        ),
        sa.CheckConstraint("(outcome IS NULL) = (ended_at IS NULL)", name=op.f("ck_attempt_ended_with_an_outcome")),
        sa.ForeignKeyConstraint(
            ["job_id", "stage", "item_key", "stage_version"],
            ["work_item.job_id", "work_item.stage", "work_item.item_key", "work_item.stage_version"],
            name=op.f("fk_attempt_job_id_stage_item_key_stage_version"),
        ),
        sa.PrimaryKeyConstraint("job_id", "stage", "item_key", "stage_version", "attempt", name=op.f("pk_attempt")),
        sa.UniqueConstraint("token", name=op.f("uq_attempt_token")),
    )
    op.create_index(
        "uq_attempt_accepted",
        "attempt",
        ["job_id", "stage", "item_key", "stage_version"],
        unique=True,
        sqlite_where=sa.text("outcome = 'accepted'"),
        postgresql_where=sa.text("outcome = 'accepted'"),
    )

    for table, (condition, message) in FINAL.items():
        _refuse_changes(table, condition, message)
    op.execute(
        sa.text("INSERT INTO tenant (tenant, created_at) VALUES ('default', :at)").bindparams(
            sa.bindparam("at", 0, sa.BigInteger)
        )
    )


def _refuse_changes(table: str, condition: str, message: str) -> None:
    if op.get_bind().dialect.name == "sqlite":
        for event in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER {table}_is_final_on_{event.lower()} BEFORE {event} ON {table}"
                f" WHEN {condition} BEGIN SELECT RAISE(ABORT, '{message}'); END"
            )
        return
    op.execute(
        f"CREATE FUNCTION {table}_is_final() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN RAISE EXCEPTION '{message}' USING ERRCODE = 'integrity_constraint_violation'; END $$"
    )
    op.execute(
        f"CREATE TRIGGER {table}_is_final BEFORE UPDATE OR DELETE ON {table}"
        f" FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION {table}_is_final()"
    )


def downgrade() -> None:
    raise NotImplementedError("the ledger only moves forward; restore a backup to go back")
