"""A process that dies between a model's answer and its commit: who goes on asks again under the same key, and once."""

from collections import Counter
from pathlib import Path

import pytest

from rulegen_dagster.domain.states import AttemptOutcome, Stage
from rulegen_dagster.ledger.database import DatabaseClock
from rulegen_dagster.settings import Settings
from rulegen_dagster.workflow.runtime import open_runtime
from tests.acceptance.processes import Rulegen
from tests.providers.model_server import ModelServer
from tests.workflow.conftest import policy
from tests.workflow.model_jobs import PLANTED_KEY, Drafter

pytestmark = pytest.mark.acceptance


def test_a_crash_after_the_answer_is_asked_again_under_its_key_and_accepted_once(tmp_path: Path) -> None:
    data = policy(2)
    (tmp_path / "policy.md").write_bytes(data)
    with ModelServer(Drafter(data)) as server:
        rulegen = Rulegen(
            home=tmp_path / "home",
            variables={
                "RULEGEN_PROVIDER": "openai-compatible",
                "RULEGEN_MODEL": "small-model",
                "RULEGEN_BASE_URL": server.url,
                "RULEGEN_API_KEY": PLANTED_KEY,
                "RULEGEN_PRICE_IN": "250000",
                "RULEGEN_PRICE_OUT": "2000000",
                "RULEGEN_SLOTS": "1",
            },
        )
        dying = Rulegen(home=rulegen.home, variables=rulegen.variables | {"RULEGEN_FAILPOINT": "provider.after_answer"})

        crashed = dying.run("run", "policy.md", "--key", "policy", "--json")
        resumed = rulegen.run("run", "policy.md", "--key", "policy", "--json")

        asked = Counter(heard.operation_key for heard in server.heard)

    first = "default/policy/generate_rules/rule-01/v1"
    assert crashed.exit_code == -9
    assert (resumed.exit_code, resumed.document["state"]) == (0, "awaiting_confirmation"), resumed.stderr
    assert asked[first] == 2
    assert sum(asked.values()) == len(asked) + 1 == 5
    opened = open_runtime(Settings(home=rulegen.home), clock=DatabaseClock())
    try:
        job = opened.ledger.reads.jobs()[0]
        made = [
            attempt
            for attempt in opened.ledger.reads.attempts(job.job_id)
            if attempt.key.stage is Stage.GENERATE_RULES and attempt.key.item_key == "rule-01"
        ]
        unused = opened.ledger.reads.unused_calls(job.job_id, limit=5)
    finally:
        opened.close()
    assert [(attempt.outcome, attempt.provider_called) for attempt in made] == [
        (AttemptOutcome.CRASHED, True),
        (AttemptOutcome.ACCEPTED, True),
    ]
    assert {attempt.operation_key for attempt in made} == {first}
    assert (unused.total, unused.latest[0].outcome) == (1, AttemptOutcome.CRASHED)
    # The call that nobody heard the end of stays charged with the most that it may have cost; the others are settled.
    charges = resumed.document["charges"]
    assert {state: charge["calls"] for state, charge in charges.items()} == {"kept": 1, "settled": 4}
    assert charges["kept"]["cost_micros"] > charges["settled"]["cost_micros"] / 4 > 0
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert written
    assert not [path for path in written if PLANTED_KEY.encode() in path.read_bytes()]
    assert PLANTED_KEY not in crashed.stdout + crashed.stderr + resumed.stdout + resumed.stderr
