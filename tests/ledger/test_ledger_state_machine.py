"""The ledger under a state machine: whatever workers, people and the clock do, it stays what the model says.

`RULEGEN_STATE_MACHINE_STEPS=10000` asks for a long run.
"""

import os
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase
from hypothesis.stateful import run_state_machine_as_test

from rulegen_dagster.domain.errors import LedgerError
from rulegen_dagster.domain.states import AttemptOutcome, Stage
from rulegen_dagster.ledger import cancellations, completions, redrives, store
from rulegen_dagster.ledger.database import ManualClock
from rulegen_dagster.ledger.store import Ledger, open_ledger
from tests.conftest import POLICY
from tests.ledger.ledger_machine import HAPPENINGS, LEASE_MS, STAGES, LedgerMachine, Tally

STEPS_VARIABLE = "RULEGEN_STATE_MACHINE_STEPS"
STEPS_OF_AN_EXAMPLE = 60
FEW_STEPS = {"sqlite": 1_000, "postgresql": 800}

Story = tuple[tuple[str, dict[str, Any]], ...]

pytestmark = pytest.mark.timeout(3_600 if STEPS_VARIABLE in os.environ else 240)


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """A condition that is taken out of the ledger's source, and a short story in which that shows.

    A random search may need long to come across it; the story needs no luck.
    """

    module: ModuleType
    class_name: str
    condition: str
    story: Story
    instead: str = ""

    def __str__(self) -> str:
        return f"{self.class_name} without {self.condition.partition(', ')[0].strip(',')}"

    def mutated(self) -> object:
        path = Path(str(self.module.__file__))
        source = path.read_text(encoding="utf-8")
        assert source.count(self.condition) == 1, f"{path.name} spells the condition in another way now"
        namespace = {"__name__": self.module.__name__}
        exec(compile(source.replace(self.condition, self.instead), path, "exec"), namespace)  # noqa: S102 (the mutation)
        return namespace[self.class_name]


CLAIM = ("claim", {"worker": 0, "stages": STAGES, "slots": 2, "within": "any", "number": 0})
FORGE = ("complete_under_a_token_that_nobody_gave_out", {"number": -1, "fails": False})
WAIT = ("time_passes", {"ms": LEASE_MS})
COMPLETE_THE_LAST = ("complete_anything", {"numbers": [0], "worker": 0, "passes": True})
FAIL_FOR_GOOD = ("fail", {"number": 0, "outcome": AttemptOutcome.PERMANENT, "jitter": 0.0, "retry_after_ms": None})
CANCEL = ("cancel", {"number": 0, "meant": 0})
END_BY_HAND = ("a_job_ends_and_its_items_stay", {"number": 0})
REDRIVE = ("redrive", {"number": 0, "stage": Stage.GENERATE_RULES})

TOKEN_IS_EQUAL = 'work_item.c.token == row["token"]'
# What follows it in the statement that completes, and not in the one that fails.
THEN_ACCEPT = f""", *_guard(now))
{" " * 16}.values(
{" " * 20}state=WorkState.SUCCEEDED"""

MUTATIONS = (
    Mutation(
        module=completions,
        class_name="Completions",
        condition=f"{TOKEN_IS_EQUAL}{THEN_ACCEPT}",
        # Always true; without any condition on both, SQLAlchemy itself complains.
        instead=f'work_item.c.item_key != row["token"]{THEN_ACCEPT}',
        story=(CLAIM, FORGE),
    ),
    Mutation(
        module=completions,
        class_name="Completions",
        condition="work_item.c.lease_until > now,",
        story=(CLAIM, WAIT, COMPLETE_THE_LAST),
    ),
    Mutation(
        module=completions,
        class_name="Completions",
        condition="not_terminal(work_item.c.job_id),",
        story=(CLAIM, END_BY_HAND),
    ),
    Mutation(
        module=redrives,
        class_name="Redrives",
        condition="not_terminal(work_item.c.job_id),",
        story=(CLAIM, FAIL_FOR_GOOD, CANCEL, REDRIVE),
    ),
    Mutation(
        module=cancellations,
        class_name="Cancellations",
        condition="if state in TERMINAL_JOB_STATES:",
        instead="if False:",
        story=(CLAIM, CANCEL, CANCEL),
    ),
)


def _play(ledger: Ledger, clock: ManualClock, steps: int) -> Tally:
    """Run examples until so many steps were made; raises what the first broken one raised."""
    tally = Tally()
    turn = 0
    while tally.steps < steps:
        turn += 1
        make = hypothesis.seed(turn)(lambda: LedgerMachine(ledger, clock, tally))
        run_state_machine_as_test(
            make,  # type: ignore[arg-type]  # whatever makes a machine will do
            settings=hypothesis.settings(
                max_examples=-((tally.steps - steps) // STEPS_OF_AN_EXAMPLE),
                stateful_step_count=STEPS_OF_AN_EXAMPLE,
                suppress_health_check=list(HealthCheck),
                report_multiple_bugs=False,
                database=None,
                phases=(Phase.generate, Phase.shrink),
            ),
        )
    return tally


def test_the_ledger_is_always_as_the_model_says(ledger: Ledger, clock: ManualClock) -> None:
    steps = int(os.environ.get(STEPS_VARIABLE, FEW_STEPS[ledger.database.dialect]))

    tally = _play(ledger, clock, steps)

    print(tally.steps, "steps in", tally.examples, "examples")
    print(dict(tally.rules.most_common()), dict(sorted(tally.results.items())), sep="\n")
    assert {happening.name for happening in HAPPENINGS} == tally.rules.keys()


def _tell(ledger: Ledger, clock: ManualClock, story: Story) -> None:
    """Let a story happen to a job with two rules, and compare after each step like the machine does."""
    machine = LedgerMachine(ledger, clock, Tally())
    machine.begin_with_some_jobs([2], 2, None)
    for what in story:
        machine.something_happens(what)
        machine.the_ledger_is_as_the_model_says()


@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_a_ledger_that_lacks_a_condition_is_found(
    mutation: Mutation, ledger_url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(open_ledger(ledger_url, POLICY, clock)) as intact:
        _tell(intact, clock, mutation.story)
    monkeypatch.setattr(store, mutation.class_name, mutation.mutated())

    with (
        closing(open_ledger(ledger_url, POLICY, clock)) as mutated,
        pytest.raises((AssertionError, LedgerError, pytest.fail.Exception)),
    ):
        _tell(mutated, clock, mutation.story)
