"""`rulegen diff` as a user meets it."""

from pathlib import Path

import pytest

from tests.cli.conftest import Command, document


@pytest.fixture
def revised(tmp_path: Path) -> Path:
    path = tmp_path / "revised.md"
    path.write_text("Meals are limited to $60 per day.\n\nCoffee must stay hot.\n", encoding="utf-8")
    return path


def test_diff_names_the_edited_clause_with_both_texts(rulegen: Command, policy_file: Path, revised: Path) -> None:
    result = rulegen("diff", str(policy_file), str(revised))

    assert result.exit_code == 0
    assert "1 equal, 1 edited" in result.stdout
    assert "was Meals are limited to $50 per day." in result.stdout
    assert "Meals are limited to $60 per day." in result.stdout
    assert "Coffee" not in result.stdout


def test_diff_takes_a_parsed_job_for_a_revision(rulegen: Command, policy_file: Path, revised: Path) -> None:
    assert rulegen("run", str(policy_file), "--key", "meals").exit_code == 0

    report = document(rulegen("diff", "meals", str(revised), "--json"))

    assert report["counts"]["edited"] == 1
    assert [change["kind"] for change in report["changes"]] == ["edited"]
    assert report["changes"][0]["old"]["text"] == "Meals are limited to $50 per day."
    assert report["changes"][0]["needs_validation"] is True


@pytest.mark.parametrize("named", ["nonesuch", "polcy.md", "no such/job name"])
def test_diff_says_what_it_cannot_find(rulegen: Command, policy_file: Path, named: str) -> None:
    result = rulegen("diff", str(policy_file), named, "--json")

    assert result.exit_code == 1
    assert document(result)["error"]["code"] == "revision_not_found"


def test_diff_refuses_a_job_that_is_not_parsed_yet(rulegen: Command, policy_file: Path) -> None:
    assert rulegen("submit", str(policy_file), "--key", "meals").exit_code == 0

    result = rulegen("diff", "meals", str(policy_file), "--json")

    assert document(result)["error"]["code"] == "not_parsed"
