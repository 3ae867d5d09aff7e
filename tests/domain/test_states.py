"""The states in the code and the states that the migrated databases admit are the same sets."""

import re
from enum import StrEnum

import pytest
import sqlalchemy as sa

from rulegen_dagster.domain.clause import ClauseKind, ClauseRole
from rulegen_dagster.domain.states import (
    JOB_STATE_OF_STAGE,
    TERMINAL_JOB_STATES,
    ActionState,
    AttemptOutcome,
    JobState,
    Stage,
    WorkState,
)
from rulegen_dagster.ledger.store import Ledger

ENUM_OF_CONSTRAINT: dict[str, type[StrEnum]] = {
    "ck_job_state": JobState,
    "ck_work_item_stage": Stage,
    "ck_work_item_state": WorkState,
    "ck_attempt_outcome": AttemptOutcome,
    "ck_action_state": ActionState,
    "ck_clause_kind": ClauseKind,
    "ck_clause_role": ClauseRole,
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


def test_each_stage_with_items_has_one_job_state_in_which_they_may_be_claimed() -> None:
    states = list(JOB_STATE_OF_STAGE.values())

    assert len(set(states)) == len(states)
    assert TERMINAL_JOB_STATES.isdisjoint(states)


@pytest.mark.parametrize("enum", ENUM_OF_CONSTRAINT.values())
def test_a_state_is_spelled_like_its_name(enum: type[StrEnum]) -> None:
    assert all(member.value == member.name.lower() for member in enum)
