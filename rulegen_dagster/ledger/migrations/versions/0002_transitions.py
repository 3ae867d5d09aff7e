"""Allowed transitions: a table that lists them, and triggers that refuse every other one."""

from collections.abc import Iterator

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

TRANSITIONS = {
    "job": {
        "none": "received",
        "received": "authorized failed cancelled expired needs_decision",
        "authorized": "extracting failed cancelled expired needs_decision",
        "extracting": "retrieving failed cancelled expired needs_decision",
        "retrieving": "generating_rules failed cancelled expired needs_decision",
        "generating_rules": "generating_tests failed cancelled expired needs_decision",
        "generating_tests": "validating failed cancelled expired needs_decision",
        "validating": "awaiting_confirmation failed cancelled expired needs_decision",
        "awaiting_confirmation": "executing failed cancelled expired needs_decision",
        "executing": "completed failed cancelled expired needs_decision",
        "needs_decision": "received authorized extracting retrieving generating_rules generating_tests validating awaiting_confirmation executing failed cancelled expired",
    },
    "work_item": {
        "none": "pending",
        "pending": "running failed cancelled",
        "running": "waiting succeeded failed cancelled",
        "waiting": "running failed cancelled",
        "failed": "pending",
    },
    "attempt": {
        "none": "accepted invalid_output retryable rate_limited ambiguous permanent crashed cancelled stale",
        "crashed": "invalid_output retryable rate_limited ambiguous permanent stale",
        "cancelled": "invalid_output retryable rate_limited ambiguous permanent stale",
    },
    "action": {
        "none": "proposed",
        "proposed": "confirmed failed",
        "confirmed": "executing failed",
        "executing": "done unknown failed",
        "unknown": "executing done",
    },
}
"""Subject, from state, the states that may follow; `none` stands before the first. Frozen: a change is a new migration."""

STATES = {
    subject: sorted({*table, *(after for listed in table.values() for after in listed.split())} - {"none"})
    for subject, table in TRANSITIONS.items()
}


def upgrade() -> None:
    allowed_transition = op.create_table(
        "allowed_transition",
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("from_state", sa.Text(), nullable=False),
        sa.Column("to_state", sa.Text(), nullable=False),
        sa.CheckConstraint(
            "subject IN ('job', 'work_item', 'attempt', 'action')", name=op.f("ck_allowed_transition_subject")
        ),
        sa.PrimaryKeyConstraint("subject", "from_state", "to_state", name=op.f("pk_allowed_transition")),
    )
    op.bulk_insert(
        allowed_transition,
        [
            {"subject": subject, "from_state": before, "to_state": after}
            for subject in TRANSITIONS
            for before, after in _pairs(subject)
        ],
    )
    # The pairs are compiled into the triggers, so that the hot path reads no further table.
    if op.get_bind().dialect.name == "sqlite":
        _guard_sqlite()
    else:
        _guard_postgresql()


def _pairs(subject: str) -> Iterator[tuple[str, str]]:
    for before, listed in TRANSITIONS[subject].items():
        for after in listed.split():
            yield before, after


def _column(subject: str) -> str:
    return "outcome" if subject == "attempt" else "state"


def _state(subject: str, row: str) -> str:
    # An attempt in flight has no outcome yet.
    return f"COALESCE({row}.outcome, 'none')" if subject == "attempt" else f"{row}.state"


def _is_refused(subject: str) -> str:
    before, after = _state(subject, "OLD"), _state(subject, "NEW")
    # Plain comparisons: SQLite would build an index for each list of literals, in each row.
    ways = " ".join(
        f"WHEN '{was}' THEN " + " AND ".join(f"{after} <> '{now}'" for now in listed.split())
        for was, listed in TRANSITIONS[subject].items()
        if was != "none" or subject == "attempt"
    )
    return f"{before} <> {after} AND CASE {before} {ways} ELSE 1 = 1 END"


def _is_no_beginning(subject: str) -> str:
    allowed = ", ".join(f"'{after}'" for before, after in _pairs(subject) if before == "none")
    return f"NEW.state NOT IN ({allowed})"


def _message(subject: str, before: str, after: str) -> str:
    if subject == "work_item" and before == "succeeded":
        return f"an accepted output is final: no work_item goes from {before} to {after}"
    final = "" if before in TRANSITIONS[subject] else f"{before} is final: "
    return f"{final}no {subject} goes from {before} to {after}"


def _guard_sqlite() -> None:
    for subject, states in STATES.items():
        before, after = _state(subject, "OLD"), _state(subject, "NEW")
        # RAISE takes no expression before SQLite 3.47, so each refusal is spelled out.
        pairs = set(_pairs(subject))
        refusals = " ".join(
            f"WHEN '{was}>{now}' THEN RAISE(ABORT, '{_message(subject, was, now)}')"
            for was in (["none", *states] if subject == "attempt" else states)
            for now in (["none", *states] if subject == "attempt" else states)
            if was != now and (was, now) not in pairs
        )
        op.execute(
            f"CREATE TRIGGER {subject}_transition BEFORE UPDATE OF {_column(subject)} ON {subject}"
            f" WHEN {_is_refused(subject)}"
            f" BEGIN SELECT CASE {before} || '>' || {after} {refusals}"
            f" ELSE RAISE(ABORT, 'no {subject} goes to a state that does not exist') END; END"
        )
        if subject != "attempt":
            op.execute(
                f"CREATE TRIGGER {subject}_beginning BEFORE INSERT ON {subject} WHEN {_is_no_beginning(subject)}"
                f" BEGIN SELECT RAISE(ABORT, 'no {subject} begins in any state but"
                f" {TRANSITIONS[subject]['none']}'); END"
            )
    for event in ("INSERT", "UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER allowed_transition_is_final_on_{event.lower()} BEFORE {event} ON allowed_transition"
            " BEGIN SELECT RAISE(ABORT, 'the table of allowed transitions is changed by migrations alone'); END"
        )


def _guard_postgresql() -> None:
    op.execute(
        "CREATE FUNCTION refuse_transition() RETURNS trigger LANGUAGE plpgsql AS $$"
        " DECLARE was text := COALESCE(to_jsonb(OLD) ->> TG_ARGV[0], 'none');"
        " BEGIN RAISE EXCEPTION 'no % goes from % to %',"
        " TG_TABLE_NAME, was, COALESCE(to_jsonb(NEW) ->> TG_ARGV[0], 'none')"
        " USING ERRCODE = 'integrity_constraint_violation'; END $$"
    )
    op.execute(
        "CREATE FUNCTION refuse_beginning() RETURNS trigger LANGUAGE plpgsql AS $$"
        " BEGIN RAISE EXCEPTION 'no % begins in any state but %', TG_TABLE_NAME, TG_ARGV[0]"
        " USING ERRCODE = 'integrity_constraint_violation'; END $$"
    )
    for subject in TRANSITIONS:
        column = _column(subject)
        op.execute(
            f"CREATE TRIGGER {subject}_transition BEFORE UPDATE OF {column} ON {subject}"
            f" FOR EACH ROW WHEN ({_is_refused(subject)}) EXECUTE FUNCTION refuse_transition('{column}')"
        )
        if subject != "attempt":
            op.execute(
                f"CREATE TRIGGER {subject}_beginning BEFORE INSERT ON {subject} FOR EACH ROW"
                f" WHEN ({_is_no_beginning(subject)})"
                f" EXECUTE FUNCTION refuse_beginning('{TRANSITIONS[subject]['none']}')"
            )
    op.execute(
        "CREATE FUNCTION allowed_transition_is_final() RETURNS trigger LANGUAGE plpgsql AS $$"
        " BEGIN RAISE EXCEPTION 'the table of allowed transitions is changed by migrations alone'"
        " USING ERRCODE = 'integrity_constraint_violation'; END $$"
    )
    op.execute(
        "CREATE TRIGGER allowed_transition_is_final BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE"
        " ON allowed_transition FOR EACH STATEMENT EXECUTE FUNCTION allowed_transition_is_final()"
    )


def downgrade() -> None:
    raise NotImplementedError("the ledger only moves forward; restore a backup to go back")
