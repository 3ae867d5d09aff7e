"""`waive` and `export` with real commands: from below the policy to the publication, and the ruleset as a file."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.conftest import Command, document


@pytest.fixture
def below(rulegen: Command, policy_file: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The status of a job that is below its policy."""
    monkeypatch.setenv("RULEGEN_POLICY", "strict")
    rulegen("run", str(policy_file), "--key", "k", "--json")
    return document(rulegen("status", "k", "--json"))


def test_a_strict_job_is_waived_validated_confirmed_and_published(
    rulegen: Command, below: dict[str, Any], policy_file: Path
) -> None:
    refused = rulegen("confirm", "k", "--action-set", "0" * 64, "--json")
    waived = rulegen("waive", "k", "rule-02", "--reason", "guidance", "--json")
    run = document(rulegen("run", str(policy_file), "--key", "k", "--json"))
    published = rulegen("confirm", "k", "--action-set", str(run["action_set"]), "--publish", "--json")

    assert (below["state"], below["reason_code"]) == ("validating", "below_policy")
    assert [lack["code"] for lack in below["missing"]] == ["coverage"]
    assert (refused.exit_code, document(refused)["error"]["code"]) == (1, "wrong_state")
    assert "a rule or a waiver is missing for rule-02" in document(refused)["error"]["message"]
    report = document(waived)
    assert (waived.exit_code, report["waived_now"], report["validates_again"]) == (0, True, True)
    assert (run["state"], run["calls_this_run"], run["waived"]) == ("awaiting_confirmation", 0, 1)
    assert (published.exit_code, document(published)["state"]) == (0, "completed")
    sources = json.loads((Path(document(published)["published"]) / "sources.json").read_bytes())
    assert sources["clauses"][1]["waiver"]["reason"] == "guidance"
    assert sources["clauses"][1]["waiver"]["actor"].startswith("cli:")


def test_a_job_below_its_policy_tells_people_what_is_missing(rulegen: Command, below: dict[str, Any]) -> None:
    status, why, review = rulegen("status", "k"), rulegen("why", "k"), rulegen("review", "k")
    listed = document(rulegen("why", "k", "--json"))

    assert below["failure_count"] == 0
    assert "✗ coverage: 50 % of the clauses have an end" in status.stdout
    assert "below_policy: every test passes, and strict@1 asks for more" in why.stdout
    assert "✗ coverage: 50 % of the clauses have an end" in review.stdout
    assert "strict@1: mutation score 100 %" in review.stdout
    assert listed["evidence"]["missing"] == below["missing"]


def test_a_review_names_the_place_the_waiver_and_what_it_leaves_out(
    rulegen: Command, below: dict[str, Any], policy_file: Path
) -> None:
    rulegen("waive", "k", "1", "--reason", "guidance")
    rulegen("waive", "k", "rule-01", "--reason", "the desk decides")
    shown = rulegen("review", "k").stdout
    report = document(rulegen("review", "k", "--json"))

    assert below["rules"] == 1
    assert "rule-01  line 1" in shown
    assert "waived by cli:" in shown
    assert "left out by the waiver: rule-01: meals: reimbursed up to a cap" in shown
    assert [clause["location"] for clause in report["clauses"]] == ["line 1", "line 3"]
    assert [waiver["reason"] for waiver in report["waivers"]] == ["the desk decides", "guidance"]
    # Nothing is left that could be published.
    run = document(rulegen("run", str(policy_file), "--key", "k", "--json"))
    assert (run["state"], run["reason_code"]) == ("validating", "nothing_to_publish")


def test_a_failed_clause_is_waived_and_the_job_goes_on(
    rulegen: Command, home: Path, policy_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = {"items": {"generate_rules/rule-02": [{"do": "error", "kind": "permanent"}]}}
    (home / "script.yaml").write_text(yaml.safe_dump(script), encoding="utf-8")
    monkeypatch.setenv("RULEGEN_PROVIDER", "rulegen-scripted")
    monkeypatch.setenv("RULEGEN_SCRIPT", str(home / "script.yaml"))
    rulegen("run", str(policy_file), "--key", "k", "--json")
    blocked = document(rulegen("status", "k", "--json"))

    shown = rulegen("waive", "k", "rule-02", "--reason", "nobody can read it")
    again = rulegen("waive", "k", "rule-02", "--reason", "nobody can read it")
    run = document(rulegen("run", str(policy_file), "--key", "k", "--json"))

    assert blocked["reason_code"] == "blocked"
    assert "default/k rule-02 is waived" in shown.stdout
    assert "generate_rules/rule-02 ended" in shown.stdout
    assert "default/k rule-02 was waived before" in again.stdout
    assert (run["state"], run["abstained"]) == ("awaiting_confirmation", {"waived": 1})


def test_a_job_that_waits_for_a_confirmation_takes_no_waiver(rulegen: Command, policy_file: Path) -> None:
    rulegen("run", str(policy_file), "--key", "k")

    result = rulegen("waive", "k", "rule-02", "--reason", "r", "--json")

    assert (result.exit_code, document(result)["error"]["code"]) == (1, "wrong_state")


def test_a_waiver_needs_a_clause_of_the_job_and_a_reason(rulegen: Command, below: dict[str, Any]) -> None:
    unknown = rulegen("waive", "k", "rule-99", "--reason", "r", "--json")
    nowhere = rulegen("waive", "nope", "rule-01", "--reason", "r", "--json")
    blank = rulegen("waive", "k", "rule-02", "--reason", "  ")
    silent = rulegen("waive", "k", "rule-02")

    assert below["state"] == "validating"
    assert (unknown.exit_code, document(unknown)["error"]["code"]) == (1, "clause_not_found")
    assert (nowhere.exit_code, document(nowhere)["error"]["code"]) == (1, "job_not_found")
    assert (blank.exit_code, silent.exit_code) == (2, 2)


def test_a_ruleset_is_exported_to_the_screen_and_to_a_file(rulegen: Command, policy_file: Path, tmp_path: Path) -> None:
    rulegen("run", str(policy_file), "--key", "k")
    target = tmp_path / "ruleset.md"

    shown = rulegen("export", "k")
    written = rulegen("export", "k", "--output", str(target))
    refused = rulegen("export", "k", "--output", str(target), "--json")
    kept = target.read_text(encoding="utf-8")
    forced = rulegen("export", "k", "--format", "json", "--output", str(target), "--force", "--json")

    assert shown.stdout.startswith("# Ruleset of default/k\n")
    assert kept == shown.stdout
    assert f"is written to {target}" in written.stdout.replace("\n", "")
    assert (refused.exit_code, document(refused)["error"]["code"]) == (1, "file_exists")
    assert (forced.exit_code, document(forced)["format"]) == (0, "json")
    content = json.loads(target.read_bytes())
    assert (content["format"], content["is_published"]) == ("rulegen-export/1", False)
    assert document(forced)["bytes"] == target.stat().st_size


def test_an_export_for_machines_is_one_document(rulegen: Command, policy_file: Path) -> None:
    rulegen("run", str(policy_file), "--key", "k")

    by_format = document(rulegen("export", "k", "--format", "json"))
    by_flag = document(rulegen("export", "k", "--json"))

    assert by_format == by_flag
    assert by_format["validation_report"]["passed"] is True


@pytest.mark.parametrize("form", ["markdown", "json"])
def test_nothing_in_an_export_steers_a_terminal(rulegen: Command, tmp_path: Path, form: str) -> None:
    policy = tmp_path / "hostile.md"
    policy.write_text("Meals \x1b[31m are \u202e limited to $50 per day and must be <b>booked</b>.\n", encoding="utf-8")
    rulegen("run", str(policy), "--key", "k")

    shown = rulegen("export", "k", "--format", form).stdout

    assert all(character.isprintable() or character == "\n" for character in shown)


def test_an_unknown_format_is_wrong_usage(rulegen: Command, policy_file: Path) -> None:
    rulegen("submit", str(policy_file), "--key", "k")

    assert rulegen("export", "k", "--format", "html").exit_code == 2


def test_a_dash_is_standard_output(rulegen: Command, policy_file: Path, tmp_path: Path) -> None:
    rulegen("run", str(policy_file), "--key", "k")

    assert rulegen("export", "k", "-o", "-").stdout == rulegen("export", "k").stdout
    assert document(rulegen("export", "k", "-o", "-", "--json")) == document(rulegen("export", "k", "--json"))
    assert not (tmp_path / "-").exists()


def test_a_review_counts_clauses_without_a_rule_before_there_is_a_validation_report(
    rulegen: Command, below: dict[str, Any]
) -> None:
    rulegen("waive", "k", "rule-02", "--reason", "guidance")
    status, report = document(rulegen("status", "k", "--json")), document(rulegen("review", "k", "--json"))
    shown = rulegen("review", "k").stdout

    assert sum(below["abstained"].values()) == 1
    assert report["passed"] is None
    assert report["abstained"] == status["abstained"] == below["abstained"]
    assert " tests, 1 clauses without a rule" in shown


def test_a_review_says_what_the_clauses_come_to_and_why_one_has_no_rule(
    rulegen: Command, home: Path, policy_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = {"rules": [], "no_rule": {"reason": "undefined_term", "detail": "stay hot"}}
    script = {"items": {"generate_rules/rule-02": [{"do": "ok", "draft": draft}]}}
    (home / "script.yaml").write_text(yaml.safe_dump(script), encoding="utf-8")
    monkeypatch.setenv("RULEGEN_PROVIDER", "rulegen-scripted")
    monkeypatch.setenv("RULEGEN_SCRIPT", str(home / "script.yaml"))
    rulegen("run", str(policy_file), "--key", "k")
    no_rule = document(rulegen("review", "k", "--json"))["clauses"][1]["no_rule"]
    shown = rulegen("review", "k").stdout

    assert no_rule["detail"]
    assert f"no rule: {no_rule['reason']} ({no_rule['detail']})" in shown
    assert "every clause has an accepted end: 2 of 2 (1 with rules, 1 without, 0 of them waived)" in shown
    assert "coverage" not in shown


def test_a_review_does_not_say_every_clause_where_one_waits_for_its_end(
    rulegen: Command, below: dict[str, Any]
) -> None:
    assert below["reason_code"] == "below_policy"
    assert (
        "not every clause has an accepted end: 1 of 2 (1 with rules, 1 without, 0 of them waived)"
        in rulegen("review", "k").stdout
    )
