"""`rulegen parse` as a user meets it."""

from pathlib import Path

import pytest

from tests.cli.conftest import Command, document
from tests.conftest import SHARED

SPECS = sorted(path for path in (SHARED / "specs").rglob("*") if path.suffix != ".json" and path.is_file())


def test_one_file_is_shown_with_its_clauses_by_role(rulegen: Command, policy_file: Path) -> None:
    result = rulegen("parse", str(policy_file))

    assert result.exit_code == 0
    assert "Meals are limited to $50 per day." in result.stdout
    assert "normative (limit:limited to) line 1" in result.stdout


def test_several_files_are_counted_and_timed(rulegen: Command, policy_file: Path, tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("Coffee is warm. Tea is not.\n", encoding="utf-8")

    report = document(rulegen("parse", str(policy_file), str(other), "--json"))

    policy, notes = report["files"]
    assert (policy["format"], policy["clauses"], policy["roles"]["normative"]) == ("markdown", 2, 2)
    assert (notes["format"], notes["roles"]["normative"], notes["ms"] >= 0) == ("text", 0, True)
    assert [warning["code"] for warning in notes["warnings"]] == ["no_normative_clause"]
    assert "text" not in policy
    assert report["refused"] == 0


def test_a_refused_file_is_named_and_the_others_are_read(rulegen: Command, policy_file: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.pdf"
    broken.write_bytes(b"%PDF-1.7 nothing")

    result = rulegen("parse", str(broken), str(tmp_path / "gone.md"), str(policy_file), "--json", "--clauses")

    first, second, third = document(result)["files"]
    assert result.exit_code == 1
    assert (first["refused"]["code"], second["refused"]["code"]) == ("broken_file", "file_not_found")
    assert [clause["role"] for clause in third["text"]] == ["normative", "normative"]
    assert "gone.md" in rulegen("parse", str(tmp_path / "gone.md")).stdout


def test_nothing_of_a_file_steers_the_terminal(rulegen: Command, tmp_path: Path) -> None:
    path = tmp_path / "red.md"
    text = f"{12 * 'Meals must be warm and good. '}Meals \x1b[31m must [bold]be[/bold] cheap.\n"
    path.write_text(text, encoding="utf-8")

    shown = rulegen("parse", str(path)).stdout

    assert "\x1b" not in shown
    assert "[bold]be[/bold]" in shown


@pytest.mark.skipif(not SPECS, reason="the specifications lie beside the checkout (../shared/specs), and are not there")
def test_every_specification_is_parsed_by_one_command(rulegen: Command) -> None:
    result = rulegen("parse", *map(str, SPECS), "--json")

    report = document(result)
    assert (result.exit_code, report["refused"], len(report["files"])) == (0, 0, len(SPECS))
    assert all(found["clauses"] for found in report["files"])
