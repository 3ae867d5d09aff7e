"""A job that ran out of time, gone on with by real processes: what it had accepted is never called for again."""

from collections import Counter
from pathlib import Path

import pytest

from tests.acceptance.processes import Rulegen, calls, write_script

pytestmark = pytest.mark.acceptance

POLICY = (
    "Meals are limited to $50 per day.\nHotels are limited to $200 per night.\nTaxis are limited to $40 per trip.\n"
)


def test_a_successor_calls_for_nothing_that_its_predecessor_got_accepted(tmp_path: Path) -> None:
    home, policy = tmp_path / "home", tmp_path / "policy.md"
    policy.write_text(POLICY, encoding="utf-8")
    # It answers last, and asks for a wait that no deadline of this job allows.
    busy = {"do": "error", "kind": "rate_limited", "delay_ms": 1_500, "retry_after_ms": 3_600_000}
    rulegen = Rulegen(home=home, variables=write_script(home, {"rule-02": [busy]}))

    first = rulegen.run("run", str(policy), "--key", "k", "--deadline", "10m", "--json")
    paid = calls(home)
    write_script(home, {})
    extended = rulegen.run("extend", "k", "--reason", "the provider has room again", "--json")
    forked = rulegen.run("fork", "k", "--key", "mine", "--json")
    run = rulegen.run("run", str(policy), "--key", "mine", "--json")

    later = Counter(calls(home)[len(paid) :])
    assert (first.exit_code, first.document["state"]) == (1, "expired")
    assert "after a wait of 1h" in first.document["reason"]
    assert sorted(paid) == [f"generate_rules/rule-0{number}" for number in (1, 2, 3)]
    assert extended.document["job"] == "default/k~2"
    # Parsing, the context, and two of three rules.
    assert (forked.exit_code, forked.document["inherited"], forked.document["provider_calls"]) == (0, 4, 0)
    assert (run.exit_code, run.document["state"]) == (0, "awaiting_confirmation")
    assert run.document["provider_calls"] == run.document["calls_this_run"] == 4
    assert later == Counter(["generate_rules/rule-02", *(f"generate_tests/rule-0{number}" for number in (1, 2, 3))])
