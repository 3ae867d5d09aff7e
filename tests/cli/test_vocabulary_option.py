"""A job names the pack of facts that its rules may speak of."""

from pathlib import Path

import pytest

from tests.cli.conftest import Command, document

POLICY = "# Leave\n\nAnnual leave must be requested at least 14 days before the start of the leave.\n"


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "leave.md"
    path.write_text(POLICY, encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def ledger(ledger_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RULEGEN_DATABASE_URL", ledger_url)


def test_a_run_with_the_leave_pack_makes_a_rule_about_leave(rulegen: Command, policy: Path) -> None:
    with_expense = document(rulegen("submit", str(policy), "--key", "expense", "--json"))
    result = rulegen("run", str(policy), "--key", "leave", "--vocabulary", "leave", "--json")

    assert result.exit_code == 0
    assert document(result)["rules"] == 1
    assert with_expense["job"] != document(result)["job"]


def test_an_unknown_pack_is_refused_with_the_packs_that_there_are(rulegen: Command, policy: Path) -> None:
    result = rulegen("submit", str(policy), "--vocabulary", "nonesuch", "--json")

    assert result.exit_code != 0
    assert "available: expense, leave, travel" in result.output


def test_a_job_that_is_there_is_not_taken_for_one_with_another_pack(rulegen: Command, policy: Path) -> None:
    rulegen("submit", str(policy), "--vocabulary", "travel", "--json")

    same = rulegen("submit", str(policy), "--vocabulary", "travel", "--json")
    other = rulegen("submit", str(policy), "--vocabulary", "leave", "--json")

    assert document(same)["existing"] is True
    assert other.exit_code != 0
    assert "with the vocabulary travel, and keeps it" in " ".join(other.output.split())
