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


@pytest.mark.parametrize("command", ["run", "submit"])
def test_a_job_that_froze_something_else_than_the_environment_says_is_told_and_not_refused(
    rulegen: Command, policy: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    rulegen("run", str(policy), "--vocabulary", "leave")
    quiet = rulegen(command, str(policy), "--vocabulary", "leave")
    monkeypatch.setenv("RULEGEN_POLICY", "strict")

    told = rulegen(command, str(policy))
    read = document(rulegen(command, str(policy), "--json"))

    line = (
        "this job was frozen with policy default, vocabulary leave; you asked for policy strict, vocabulary expense:"
        " a new --key makes another job of the file"
    )
    assert (told.exit_code, quiet.exit_code) == (0, 0)
    assert line in told.stdout
    assert "you asked for" not in quiet.stdout
    assert read["frozen_otherwise"] == [
        {"what": "policy", "frozen": "default", "asked": "strict"},
        {"what": "vocabulary", "frozen": "leave", "asked": "expense"},
    ]
