"""The tables of behaviours: the texts they name, how a job came to another one, and the decisions that jobs need."""

import sqlalchemy as sa
from sqlalchemy import CheckConstraint, Column, ForeignKey, Index, Table, Text

from rulegen_dagster.domain.behaviour import Choice, PackKind, Part
from rulegen_dagster.domain.transitions import ACTIVE_JOB_STATES
from rulegen_dagster.ledger.schema import Millis, Serial, metadata, one_of, only_where

# The texts that behaviours name by digest. A prompt's text may be removed once every job that names it has ended
# (null); its digest stays. Triggers refuse any other change.
prompt = Table(
    "prompt",
    metadata,
    Column("digest", Text, primary_key=True),
    Column("content", Text),
    Column("created_at", Millis, nullable=False),
)

pack = Table(
    "pack",
    metadata,
    Column("digest", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("content", Text, nullable=False),
    Column("created_at", Millis, nullable=False),
    CheckConstraint(one_of("kind", PackKind), name="kind"),
)

behaviour_prompt = Table(
    "behaviour_prompt",
    metadata,
    Column("behaviour_digest", Text, ForeignKey("behaviour.digest"), primary_key=True),
    Column("task", Text, primary_key=True),
    Column("version", Text, nullable=False),
    Column("prompt_digest", Text, ForeignKey("prompt.digest"), nullable=False, index=True),
)

# One row for each change of a job's behaviour; a trigger on `job` refuses a change that has none.
job_behaviour = Table(
    "job_behaviour",
    metadata,
    Column("job_id", Serial, ForeignKey("job.job_id"), primary_key=True),
    Column("number", sa.Integer, primary_key=True),
    Column("from_digest", Text, ForeignKey("behaviour.digest"), nullable=False),
    Column("to_digest", Text, ForeignKey("behaviour.digest"), nullable=False),
    Column("actor", Text, nullable=False),
    Column("reason", Text),
    Column("at", Millis, nullable=False),
    CheckConstraint("from_digest <> to_digest", name="changes_something"),
)

# One row for each time that a job could not go on without a decision: why, from which state, and what became of it.
needed_decision = Table(
    "needed_decision",
    metadata,
    Column("job_id", Serial, ForeignKey("job.job_id"), primary_key=True),
    Column("number", sa.Integer, primary_key=True),
    Column("part", Text, nullable=False),
    Column("was", Text, nullable=False),
    Column("now", Text),
    Column("from_state", Text, nullable=False),
    Column("asked_by", Text, nullable=False),
    Column("asked_at", Millis, nullable=False),
    # The last word of a person, which for `retain` may stand for long before it is carried out (settled).
    Column("decision", Text),
    Column("decided_by", Text),
    Column("decided_at", Millis),
    Column("reason", Text),
    Column("settled_at", Millis),
    CheckConstraint(one_of("part", Part), name="part"),
    CheckConstraint(one_of("from_state", ACTIVE_JOB_STATES), name="from_state"),
    CheckConstraint(f"decision IS NULL OR {one_of('decision', Choice)}", name="decision"),
    CheckConstraint(
        "(decision IS NULL) = (decided_at IS NULL) AND (decision IS NULL) = (decided_by IS NULL)",
        name="somebody_decides",
    ),
    CheckConstraint("settled_at IS NULL OR decision IS NOT NULL", name="settled_by_a_decision"),
)
Index(
    "uq_needed_decision_unsettled",
    needed_decision.c.job_id,
    unique=True,
    info=only_where("settled_at IS NULL"),
)
