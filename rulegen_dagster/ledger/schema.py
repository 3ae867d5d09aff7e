"""The ledger's tables. Times are ms since 1970 (UTC) on the database's clock; digests are SHA-256 in hex."""

from collections.abc import Iterable
from enum import StrEnum

import sqlalchemy as sa
from sqlalchemy import CheckConstraint, Column, ForeignKey, ForeignKeyConstraint, Index, MetaData, Table, Text

from rulegen_dagster.domain.clause import ClauseKind, ClauseRole
from rulegen_dagster.domain.retention import ContentKind
from rulegen_dagster.domain.states import ActionState, AttemptOutcome, JobState, Stage, Subject, WorkState
from rulegen_dagster.domain.work import AttemptKind

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# SQLite numbers rows by itself only in a column that is called INTEGER.
Serial = sa.BigInteger().with_variant(sa.Integer, "sqlite")
Millis = sa.BigInteger


OPEN_WORK_STATES = (WorkState.PENDING, WorkState.RUNNING, WorkState.WAITING)
"""The states of a work item that is unfinished."""


def only_where(condition: str) -> dict[str, str]:
    """Return the note that an index holds only the rows of a condition, in the words of the migration that makes it.

    A note and no option of the index: those would load both databases' parts of SQLAlchemy whenever a process starts.
    """
    return {"where": condition}


def one_of(column: str, values: Iterable[StrEnum]) -> str:
    """Return the condition that a column holds one of the values, for a CHECK."""
    # Plain comparisons: SQLite would build an index for a list of literals, for each row that it checks.
    return "(" + " OR ".join(f"{column} = '{value.value}'" for value in values) + ")"


tenant = Table(
    "tenant",
    metadata,
    Column("tenant", Text, primary_key=True),
    # Its share of the slots beside other tenants, and how many items it may have in flight at once (null: no limit).
    Column("weight", sa.Integer, nullable=False, server_default="1"),
    Column("claim_limit", sa.Integer),
    Column("created_at", Millis, nullable=False),
    CheckConstraint("weight BETWEEN 1 AND 1000", name="weight"),
    CheckConstraint("claim_limit IS NULL OR claim_limit >= 0", name="claim_limit"),
)

behaviour = Table(
    "behaviour",
    metadata,
    Column("digest", Text, primary_key=True),
    Column("content", Text, nullable=False),
    Column("created_at", Millis, nullable=False),
)

submission = Table(
    "submission",
    metadata,
    Column("tenant", Text, ForeignKey("tenant.tenant"), primary_key=True),
    Column("submission_key", Text, primary_key=True),
    Column("input_digest", Text, nullable=False),
    Column("file_name", Text, nullable=False),
    Column("size_bytes", sa.BigInteger, nullable=False),
    Column("received_at", Millis, nullable=False),
)

job = Table(
    "job",
    metadata,
    Column("job_id", Serial, primary_key=True, autoincrement=True),
    Column("tenant", Text, nullable=False),
    Column("submission_key", Text, nullable=False),
    Column("partition_key", Text, nullable=False, unique=True),
    Column("ruleset", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("behaviour_digest", Text, ForeignKey("behaviour.digest"), nullable=False),
    Column("spec_digest", Text, nullable=False),
    Column("canonical_digest", Text),
    Column("spec_format", Text),
    Column("validation_passed", sa.Boolean),
    Column("action_set_digest", Text),
    Column("predecessor_job_id", Serial, ForeignKey("job.job_id")),
    Column("end_reason", Text),
    # End to end, from submission to publication; null for a job of a release that knew no deadlines.
    Column("deadline_at", Millis),
    Column("created_at", Millis, nullable=False),
    Column("updated_at", Millis, nullable=False),
    ForeignKeyConstraint(["tenant", "submission_key"], ["submission.tenant", "submission.submission_key"]),
    sa.UniqueConstraint("tenant", "submission_key"),
    CheckConstraint(one_of("state", JobState), name="state"),
    CheckConstraint(
        "state NOT IN ('awaiting_confirmation', 'executing', 'completed') OR action_set_digest IS NOT NULL",
        name="action_set_fixed",
    ),
)
# Claims find the tenants that have jobs in a state, and a tenant's oldest, without reading the others.
Index("ix_job_state_tenant_job_id", job.c.state, job.c.tenant, job.c.job_id)

clause = Table(
    "clause",
    metadata,
    Column("job_id", Serial, ForeignKey("job.job_id"), primary_key=True),
    Column("ordinal", sa.Integer, primary_key=True),
    Column("start", sa.Integer, nullable=False),
    Column("end", sa.Integer, nullable=False),
    Column("text", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("heading_path", Text, nullable=False),
    Column("label", Text),
    Column("lead", Text),
    Column("table_header", Text, nullable=False),
    Column("content_hash", Text, nullable=False),
    Column("context_hash", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("role_reason", Text, nullable=False),
    CheckConstraint(one_of("kind", ClauseKind), name="kind"),
    CheckConstraint(one_of("role", ClauseRole), name="role"),
)

work_item = Table(
    "work_item",
    metadata,
    Column("job_id", Serial, ForeignKey("job.job_id"), primary_key=True),
    Column("stage", Text, primary_key=True),
    Column("item_key", Text, primary_key=True),
    Column("stage_version", sa.Integer, primary_key=True),
    Column("ordinal", sa.Integer, nullable=False),
    Column("clause_ordinal", sa.Integer),
    Column("partition_key", Text),
    Column("state", Text, nullable=False),
    Column("attempts", sa.Integer, nullable=False, server_default="0"),
    Column("attempt_limit", sa.Integer, nullable=False),
    Column("token", Text, unique=True),
    Column("lease_until", Millis),
    Column("worker", Text),
    Column("next_attempt_at", Millis),
    Column("output", Text),
    Column("output_digest", Text),
    Column("error_code", Text),
    Column("error_message", Text),
    # Why the last draft was refused, as codes and places, where the next attempt is to mend that.
    Column("repair", Text),
    Column("created_at", Millis, nullable=False),
    Column("updated_at", Millis, nullable=False),
    ForeignKeyConstraint(["job_id", "clause_ordinal"], ["clause.job_id", "clause.ordinal"]),
    # On PostgreSQL in the other order: see migration 0006.
    sa.UniqueConstraint("stage", "partition_key"),
    CheckConstraint(one_of("stage", Stage), name="stage"),
    CheckConstraint(one_of("state", WorkState), name="state"),
    CheckConstraint(
        "(state = 'running') = (token IS NOT NULL) AND (token IS NULL) = (lease_until IS NULL)"
        " AND (token IS NULL) = (worker IS NULL)",
        name="running_holds_a_lease",
    ),
    CheckConstraint(
        "(state = 'succeeded') = (output IS NOT NULL) AND (output IS NULL) = (output_digest IS NULL)",
        name="succeeded_has_an_output",
    ),
    CheckConstraint("(state = 'waiting') = (next_attempt_at IS NOT NULL)", name="waiting_has_a_due_time"),
    CheckConstraint("state <> 'failed' OR error_code IS NOT NULL", name="failed_has_a_reason"),
)

# A claim walks only the open items, however many finished ones the ledger holds.
Index(
    "ix_work_item_open",
    work_item.c.stage,
    work_item.c.job_id,
    work_item.c.ordinal,
    info=only_where(one_of("state", OPEN_WORK_STATES)),
)

# Limits count what is in flight, however many items wait.
Index(
    "ix_work_item_running",
    work_item.c.stage,
    work_item.c.job_id,
    info=only_where("state = 'running'"),
)

attempt = Table(
    "attempt",
    metadata,
    Column("job_id", Serial, primary_key=True),
    Column("stage", Text, primary_key=True),
    Column("item_key", Text, primary_key=True),
    Column("stage_version", sa.Integer, primary_key=True),
    Column("attempt", sa.Integer, primary_key=True),
    Column("kind", Text, nullable=False, server_default=AttemptKind.FIRST.value),
    Column("token", Text, nullable=False, unique=True),
    Column("worker", Text, nullable=False),
    Column("dagster_run_id", Text),
    Column("operation_key", Text, nullable=False),
    Column("started_at", Millis, nullable=False),
    Column("ended_at", Millis),
    Column("outcome", Text),
    Column("provider", Text),
    Column("provider_called", sa.Boolean, nullable=False),
    Column("model_id", Text),
    Column("provider_request_id", Text),
    Column("tokens_in", sa.Integer),
    Column("tokens_out", sa.Integer),
    Column("cost_micros", sa.BigInteger),
    Column("output_digest", Text),
    Column("error_code", Text),
    Column("error_message", Text),
    # Why its draft was refused, as codes and places.
    Column("refusal", Text),
    # What else its provider said of itself, as JSON: names and numbers, no content.
    Column("report", Text),
    # The job whose accepted output this one took over, called for and paid for there.
    Column("inherited_from", Serial, ForeignKey("job.job_id")),
    ForeignKeyConstraint(
        ["job_id", "stage", "item_key", "stage_version"],
        ["work_item.job_id", "work_item.stage", "work_item.item_key", "work_item.stage_version"],
    ),
    CheckConstraint(f"outcome IS NULL OR {one_of('outcome', AttemptOutcome)}", name="outcome"),
    CheckConstraint(one_of("kind", AttemptKind), name="kind"),
    CheckConstraint(
        "refusal IS NULL OR (outcome IS NOT NULL AND outcome = 'invalid_output')", name="refusal_of_a_draft"
    ),
    CheckConstraint("report IS NULL OR provider_called", name="report_of_a_call"),
    CheckConstraint("(outcome IS NULL) = (ended_at IS NULL)", name="ended_with_an_outcome"),
    CheckConstraint(
        "inherited_from IS NULL OR (outcome IS NOT NULL AND outcome = 'accepted' AND NOT provider_called)",
        name="inherited_is_accepted",
    ),
)
# The database's own answer to "at most one accepted output per work item".
Index(
    "uq_attempt_accepted",
    attempt.c.job_id,
    attempt.c.stage,
    attempt.c.item_key,
    attempt.c.stage_version,
    unique=True,
    info=only_where("outcome = 'accepted'"),
)

# A named person's word that a clause needs no rule. Triggers refuse any change.
waiver = Table(
    "waiver",
    metadata,
    Column("job_id", Serial, primary_key=True),
    Column("clause_ordinal", sa.Integer, primary_key=True),
    Column("actor", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("created_at", Millis, nullable=False),
    ForeignKeyConstraint(["job_id", "clause_ordinal"], ["clause.job_id", "clause.ordinal"]),
    CheckConstraint("actor <> '' AND reason <> ''", name="somebody_says_why"),
)

action_set = Table(
    "action_set",
    metadata,
    Column("job_id", Serial, ForeignKey("job.job_id"), primary_key=True),
    Column("digest", Text, primary_key=True),
    Column("content", Text, nullable=False),
    Column("created_at", Millis, nullable=False),
)

confirmation = Table(
    "confirmation",
    metadata,
    Column("job_id", Serial, primary_key=True),
    Column("action_set_digest", Text, primary_key=True),
    Column("decision", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("reason", Text),
    Column("decided_at", Millis, nullable=False),
    ForeignKeyConstraint(["job_id", "action_set_digest"], ["action_set.job_id", "action_set.digest"]),
    CheckConstraint("decision IN ('confirmed', 'rejected')", name="decision"),
)

action = Table(
    "action",
    metadata,
    Column("action_key", Text, primary_key=True),
    Column("job_id", Serial, nullable=False),
    Column("action_set_digest", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("token", Text),
    Column("lease_until", Millis),
    Column("worker", Text),
    Column("receipt", Text),
    Column("error_code", Text),
    Column("created_at", Millis, nullable=False),
    Column("updated_at", Millis, nullable=False),
    ForeignKeyConstraint(["job_id", "action_set_digest"], ["action_set.job_id", "action_set.digest"]),
    CheckConstraint("kind IN ('publish', 'notify')", name="kind"),
    CheckConstraint(one_of("state", ActionState), name="state"),
    CheckConstraint("(state = 'executing') = (token IS NOT NULL)", name="executing_holds_a_lease"),
    CheckConstraint("(state = 'done') = (receipt IS NOT NULL)", name="done_has_a_receipt"),
)
Index("ix_action_executing", action.c.job_id, info=only_where("state = 'executing'"))

transition = Table(
    "transition",
    metadata,
    Column("transition_id", Serial, primary_key=True, autoincrement=True),
    Column("job_id", Serial, ForeignKey("job.job_id"), nullable=False, index=True),
    Column("subject", Text, nullable=False),
    Column("stage", Text),
    Column("subject_key", Text),
    Column("from_state", Text),
    Column("to_state", Text, nullable=False),
    Column("cause", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("at", Millis, nullable=False),
    CheckConstraint("(subject = 'job' OR subject = 'work_item' OR subject = 'action')", name="subject"),
)

# One row for each acceptance, written in its transaction; Dagster's event log is a copy that is made from it later.
outbox = Table(
    "outbox",
    metadata,
    Column("outbox_id", Serial, primary_key=True, autoincrement=True),
    Column("job_id", Serial, ForeignKey("job.job_id"), nullable=False),
    Column("stage", Text, nullable=False),
    Column("item_key", Text, nullable=False),
    Column("stage_version", sa.Integer, nullable=False),
    # The Dagster run that accepted it, if it was one; while that run lives, the event is its to write.
    Column("dagster_run_id", Text),
    Column("created_at", Millis, nullable=False),
    # Until when one mirroring process has the row to itself.
    Column("lease_until", Millis),
    Column("mirrored_at", Millis),
    sa.UniqueConstraint("job_id", "stage", "item_key", "stage_version"),
    CheckConstraint(one_of("stage", Stage), name="stage"),
)
Index("ix_outbox_unmirrored", outbox.c.outbox_id, info=only_where("mirrored_at IS NULL"))

# What the triggers admit, as data: each change of a state that is not listed here is refused. Written by migrations.
allowed_transition = Table(
    "allowed_transition",
    metadata,
    Column("subject", Text, primary_key=True),
    Column("from_state", Text, primary_key=True),
    Column("to_state", Text, primary_key=True),
    CheckConstraint(one_of("subject", Subject), name="subject"),
)

_TRACEPARENT = "length(traceparent) = 55 AND traceparent LIKE '00-%'"

# Where a job's submission stands in a trace (W3C `traceparent`); only of jobs that were submitted while traced.
job_trace = Table(
    "job_trace",
    metadata,
    Column("job_id", Serial, ForeignKey("job.job_id"), primary_key=True, autoincrement=False),
    Column("traceparent", Text, nullable=False),
    Column("at", Millis, nullable=False),
    CheckConstraint(_TRACEPARENT, name="traceparent"),
)

# Where an attempt stands in a trace, written before its call, so that whoever goes on after a crash can point to it.
attempt_trace = Table(
    "attempt_trace",
    metadata,
    Column("token", Text, ForeignKey("attempt.token"), primary_key=True),
    Column("traceparent", Text, nullable=False),
    CheckConstraint(_TRACEPARENT, name="traceparent"),
)

# What of a job's content was removed, long after its end; its digest stays where it was. Written once.
removed_content = Table(
    "removed_content",
    metadata,
    Column("job_id", Serial, ForeignKey("job.job_id"), primary_key=True, autoincrement=False),
    Column("kind", Text, primary_key=True),
    Column("removed_at", Millis, nullable=False),
    Column("actor", Text, nullable=False),
    CheckConstraint(one_of("kind", ContentKind), name="kind"),
)
