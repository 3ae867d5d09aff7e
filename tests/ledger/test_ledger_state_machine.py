"""The ledger under a state machine: whatever workers, people and the clock do, it stays what the model says.

`RULEGEN_STATE_MACHINE_STEPS=10000` asks for a long run.
"""

import os
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase
from hypothesis.stateful import run_state_machine_as_test

from rulegen_dagster.domain.errors import LedgerError
from rulegen_dagster.domain.states import AttemptOutcome, Stage
from rulegen_dagster.ledger import cancellations, completions, decisions, quotas, redrives, reservations, stages, store
from rulegen_dagster.ledger.database import ManualClock
from rulegen_dagster.ledger.store import Ledger, open_ledger
from tests.conftest import POLICY
from tests.ledger.ledger_machine import HAPPENINGS, LEASE_MS, REASONS, STAGES, LedgerMachine, Tally

STEPS_VARIABLE = "RULEGEN_STATE_MACHINE_STEPS"
STEPS_OF_AN_EXAMPLE = 60
FEW_STEPS = {"sqlite": 240, "postgresql": 120}
ENOUGH_STEPS = 800
"""In so many steps everything happens that may."""

Story = tuple[tuple[str, dict[str, Any]], ...]

pytestmark = pytest.mark.timeout(3_600 if STEPS_VARIABLE in os.environ else 600)


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
    behind: int = 2
    """Where on its way the story's job begins (see `LedgerMachine`)."""

    def __str__(self) -> str:
        return f"{self.class_name} without {self.condition.partition(', ')[0].strip(',')}"

    def mutated(self) -> object:
        path = Path(str(self.module.__file__))
        source = path.read_text(encoding="utf-8")
        assert source.count(self.condition) == 1, f"{path.name} spells the condition in another way now"
        namespace: dict[str, Any] = {"__name__": self.module.__name__}
        exec(compile(source.replace(self.condition, self.instead), path, "exec"), namespace)  # noqa: S102 (the mutation)
        mutated: object = namespace[self.class_name]
        # What it answers with are the classes that the model knows; others would differ whatever they hold.
        namespace |= {name: one for name, one in vars(self.module).items() if isinstance(one, type)}
        return mutated


CLAIM = ("claim", {"worker": 0, "stages": STAGES, "slots": 2, "within": "any", "number": 0})
FORGE = ("complete_under_a_token_that_nobody_gave_out", {"number": -1, "fails": False})
WAIT = ("time_passes", {"ms": LEASE_MS})
COMPLETE_THE_LAST = ("complete_anything", {"numbers": [0], "worker": 0, "passes": True})
COMPLETE_BOTH = ("complete_anything", {"numbers": [0, 1], "worker": 0, "passes": True})
FAIL_FOR_GOOD = ("fail", {"number": 0, "outcome": AttemptOutcome.PERMANENT, "jitter": 0.0, "retry_after_ms": None})
CANCEL = ("cancel", {"number": 0, "meant": 0})
END_BY_HAND = ("a_job_ends_and_its_items_stay", {"number": 0})
LIMIT = ("set_a_quota", {"kind": "provider", "number": 0, "changes": {"budget_micros": 25}})
NEED_A_DECISION = ("ask_for_a_decision", {"number": 0, "reason": REASONS[0], "whoever_works": True})
STOP = ("stop_where_a_budget_is_spent", {"number": 0})
MIGRATE = ("migrate", {"number": 0, "other": 1, "unreadable": ()})
RETAIN = ("retain", {"number": 0, "resume": True})
REDRIVE = ("redrive", {"number": 0, "stage": Stage.GENERATE_RULES})

TOKEN_IS_EQUAL = 'work_item.c.token == row["token"]'
# What follows it in the statement that completes, and not in the one that fails.
THEN_ACCEPT = f""", *_guard(now))
{" " * 16}.values(
{" " * 20}state=WorkState.SUCCEEDED"""

MUTATIONS = (
    Mutation(
        module=reservations,
        class_name="QuotaTurn",
        condition="reserved or ",
        story=(
            ("set_a_quota", {"kind": "provider", "number": 0, "changes": {"requests_per_minute": 600}}),
            ("set_a_quota", {"kind": "other provider", "number": 0, "changes": {"requests_per_minute": 600}}),
            ("claim", {"worker": 0, "stages": STAGES, "slots": 1, "within": "any", "number": 0}),
            ("time_passes", {"ms": LEASE_MS}),
            ("ask_for_a_decision", {"number": 0, "reason": REASONS[0], "whoever_works": False}),
            ("migrate", {"number": 0, "other": 1, "unreadable": ()}),
            ("fail_anything", {"numbers": [0], "worker": 0, "outcome": AttemptOutcome.RATE_LIMITED}),
        ),
    ),
    Mutation(
        module=stages,
        class_name="Stages",
        condition=".values(canonical_digest=sha256_hex(parsed.canonical_text), spec_format=parsed.format)",
        instead=".values(updated_at=self._now)",
        behind=0,
        story=(
            ("claim", {"worker": 0, "stages": STAGES, "slots": 1, "within": "any", "number": 0}),
            ("ask_for_a_decision", {"number": 0, "reason": REASONS[0], "whoever_works": True}),
            ("complete_what_is_held", {"number": 0, "passes": True, "clauses": 2}),
            ("stop", {"number": 0}),
            ("fork", {"number": 0, "key": "successor"}),
        ),
    ),
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
    Mutation(
        module=reservations,
        class_name="QuotaTurn",
        condition="if waits or need is None:",
        instead="if need is None:",
        story=(LIMIT, CLAIM),
    ),
    Mutation(
        module=quotas,
        class_name="Quotas",
        condition=" or not hold.is_for_good",
        story=(LIMIT, CLAIM, STOP),
    ),
    Mutation(
        module=decisions,
        class_name="Decisions",
        condition="if self._last_lease(connection, job_id) is not None:",
        instead="if False:",
        story=(CLAIM, NEED_A_DECISION, MIGRATE),
    ),
    Mutation(
        module=decisions,
        class_name="Decisions",
        condition="self._stages.advance(connection, job_id, actor)",
        instead="pass",
        story=(CLAIM, NEED_A_DECISION, COMPLETE_BOTH, RETAIN),
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
    assert steps < ENOUGH_STEPS or {happening.name for happening in HAPPENINGS} == tally.rules.keys()


def _tell(ledger: Ledger, clock: ManualClock, mutation: Mutation, example: int) -> None:
    """Let a story happen to a job with two rules, and compare after each step like the machine does.

    Each example has tenants of its own: a second one under the same number would find what the first has left.
    """
    machine = LedgerMachine(ledger, clock, Tally(examples=example))
    machine.begin_with_some_jobs([mutation.behind], 2, None)
    for what in mutation.story:
        machine.something_happens(what)
        machine.the_ledger_is_as_the_model_says()


@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_a_ledger_that_lacks_a_condition_is_found(
    mutation: Mutation, ledger_url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Taken out and put back: it is the condition that is missed, and not the way in which it is taken out.
    put_back = replace(mutation, instead=mutation.condition)
    monkeypatch.setattr(store, mutation.class_name, put_back.mutated())
    with closing(open_ledger(ledger_url, POLICY, clock)) as intact:
        _tell(intact, clock, mutation, 0)
    monkeypatch.setattr(store, mutation.class_name, mutation.mutated())

    with (
        closing(open_ledger(ledger_url, POLICY, clock)) as mutated,
        pytest.raises((AssertionError, LedgerError, pytest.fail.Exception)),
    ):
        _tell(mutated, clock, mutation, 1)
