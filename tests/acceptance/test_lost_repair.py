"""A repair whose process is killed: the next process asks for the same repair, told what the ledger kept."""

import os
import signal
from pathlib import Path

import pytest

from tests.acceptance.processes import Rulegen, ended, wait_until, write_script

pytestmark = pytest.mark.acceptance

UNGROUNDED = {
    "quote": "Meals are free.",
    "modality": "must",
    "subject": "meals",
    "decision": "flag",
    "applies_when": 'expense.category == "meals"',
}


def _told(home: Path) -> list[str]:
    """Return each call for the rules of the one clause: its attempt, and what it was told to mend."""
    path = home / "calls.log"
    lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    return [" ".join([words[3], *words[6:]]) for words in lines if words[1] == "generate_rules"]


def test_a_repair_that_dies_with_its_process_is_made_again(ledger_url: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    hanging = {"do": "ok", "delay_ms": 600_000}
    refused = {"do": "ok", "draft": {"rules": [UNGROUNDED]}}
    script = {"generate_rules/*": [refused, refused | {"repaired": hanging}, refused | {"repaired": "ok"}]}
    variables = write_script(home, script)
    policy = tmp_path / "policy.md"
    policy.write_text("Meals are limited to $50 per day.\n", encoding="utf-8")
    quick = {"RULEGEN_DATABASE_URL": ledger_url, "RULEGEN_FIRST_RETRY_MS": "0", "RULEGEN_LEASE_MS": "1000"}
    rulegen = Rulegen(home=home, variables={**variables, **quick})
    repair = "repair:quote_not_verbatim@$.rules[0].quote"

    first = rulegen.start("run", str(policy), "--key", "k", "--json")
    wait_until(lambda: len(_told(home)) == 2, "the repair to begin")
    os.kill(first.pid, signal.SIGKILL)
    ended(first)
    second = rulegen.run("run", str(policy), "--key", "k", "--json")

    assert second.exit_code == 0, second.stderr
    assert (second.document["state"], second.document["repairs"]) == (
        "awaiting_confirmation",
        {"made": 2, "accepted": 1},
    )
    assert _told(home) == ["1", f"2 {repair}", f"3 {repair}"]
