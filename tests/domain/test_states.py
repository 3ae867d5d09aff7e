"""The states in the code and the states that the migrated databases admit are the same sets."""

import re
from enum import StrEnum

import pytest
import sqlalchemy as sa

from rulegen_dagster.domain.clause import ClauseKind, ClauseRole
from rulegen_dagster.domain.states import (
    JOB_STATE_OF_STAGE,
    STATE_DOCS,
    TERMINAL_JOB_STATES,
    ActionState,
    AttemptOutcome,
    JobState,
    Stage,
    Subject,
    WorkState,
)
from rulegen_dagster.domain.transitions import ALLOWED_TRANSITIONS, NO_STATE
from rulegen_dagster.ledger.schema import allowed_transition
from rulegen_dagster.ledger.store import Ledger

ENUM_OF_CONSTRAINT: dict[str, type[StrEnum]] = {
    "ck_job_state": JobState,
    "ck_work_item_stage": Stage,
    "ck_work_item_state": WorkState,
    "ck_attempt_outcome": AttemptOutcome,
    "ck_action_state": ActionState,
    "ck_clause_kind": ClauseKind,
    "ck_clause_role": ClauseRole,
    "ck_allowed_transition_subject": Subject,
}
STATES_OF_SUBJECT: dict[Subject, type[StrEnum]] = {
    Subject.JOB: JobState,
    Subject.WORK_ITEM: WorkState,
    Subject.ATTEMPT: AttemptOutcome,
    Subject.ACTION: ActionState,
}


def _constraints(ledger: Ledger) -> dict[str, str]:
    with ledger.database.read() as connection:
        if ledger.database.dialect == "postgresql":
            rows = connection.execute(
                sa.text("SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE contype = 'c'")
            )
            return dict(rows.tuples().all())
        tables = connection.execute(sa.text("SELECT sql FROM sqlite_master WHERE type = 'table'")).scalars().all()
    found = re.findall(r"CONSTRAINT (ck_\w+) CHECK (\(.*?\))(?=, *\n|\n)", "\n".join(map(str, tables)))
    return dict(found)


def test_the_databases_admit_exactly_the_states_of_the_code(ledger: Ledger) -> None:
    constraints = _constraints(ledger)

    admitted = {name: set(re.findall(r"'(\w+)'", constraints[name])) for name in ENUM_OF_CONSTRAINT}

    assert admitted == {name: {member.value for member in enum} for name, enum in ENUM_OF_CONSTRAINT.items()}


def test_documentation_code_constraints_and_transitions_speak_of_the_same_states(ledger: Ledger) -> None:
    constraints = _constraints(ledger)
    with ledger.database.read() as connection:
        rows = connection.execute(sa.select(allowed_transition)).all()

    for subject, enum in STATES_OF_SUBJECT.items():
        column = "outcome" if subject is Subject.ATTEMPT else "state"
        in_code = {member.value for member in enum}
        in_constraint = set(re.findall(r"'(\w+)'", constraints[f"ck_{subject}_{column}"]))
        listed = {state for row in rows if row.subject == subject for state in (row.from_state, row.to_state)}

        assert set(STATE_DOCS[subject]) == in_code == in_constraint == listed - {NO_STATE}
        assert list(STATE_DOCS[subject]) == list(enum)


@pytest.mark.parametrize("subject", Subject)
def test_a_state_is_documented_as_final_where_no_transition_leaves_it(subject: Subject) -> None:
    left = {before for before, _ in ALLOWED_TRANSITIONS[subject]}

    final = {state for state, doc in STATE_DOCS[subject].items() if doc.left.startswith("Never")}

    assert final == set(STATE_DOCS[subject]) - left


def test_every_state_says_how_it_is_entered_and_left_and_what_a_crash_leaves() -> None:
    texts = [
        text for docs in STATE_DOCS.values() for doc in docs.values() for text in (doc.entered, doc.left, doc.crash)
    ]

    assert all(text.strip() and text.endswith(".") for text in texts)


def test_a_job_that_ended_has_no_way_on() -> None:
    left = {before for before, _ in ALLOWED_TRANSITIONS[Subject.JOB]}

    assert TERMINAL_JOB_STATES.isdisjoint(left)


def test_each_stage_with_items_has_one_job_state_in_which_they_may_be_claimed() -> None:
    states = list(JOB_STATE_OF_STAGE.values())

    assert len(set(states)) == len(states)
    assert TERMINAL_JOB_STATES.isdisjoint(states)


@pytest.mark.parametrize("enum", ENUM_OF_CONSTRAINT.values())
def test_a_state_is_spelled_like_its_name(enum: type[StrEnum]) -> None:
    assert all(member.value == member.name.lower() for member in enum)
