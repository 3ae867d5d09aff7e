"""`rulegen behaviours` and `rulegen decide`."""

from pathlib import Path

import pytest

from tests.cli.conftest import Command, document


@pytest.fixture
def other_release(rulegen: Command, policy_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Submit a job, and make what runs from then on a release with another output schema."""
    rulegen("submit", str(policy_file), "--key", "k")
    for module in ("frozen", "behaviours"):
        monkeypatch.setattr(f"rulegen_dagster.workflow.{module}.OUTPUT_SCHEMA_VERSION", "rules-and-tests-v9")


def test_a_job_that_this_release_cannot_go_on_with_is_decided_about(
    rulegen: Command, policy_file: Path, other_release: None
) -> None:
    stopped = rulegen("run", str(policy_file), "--key", "k", "--json")
    listed = document(rulegen("list", "--json"))["jobs"]
    why = rulegen("why", "k").stdout
    doctor = {check["name"]: check["detail"] for check in document(rulegen("doctor", "--json"))["checks"]}
    retained = rulegen("decide", "k", "retain", "--reason", "release 1 does it", "--json")
    again = document(rulegen("decide", "k", "retain", "--json"))
    migrated = rulegen("decide", "k", "migrate", "--reason", "it may as well be new")
    status = rulegen("status", "k").stdout
    late = rulegen("decide", "k", "stop", "--json")
    finished = rulegen("run", str(policy_file), "--key", "k", "--json")

    assert (stopped.exit_code, document(stopped)["state"]) == (1, "needs_decision")
    assert "rulegen decide default/k retain|migrate|stop" in listed[0]["reason"]
    assert "needs_decision: " in why
    assert "part: output_schema" in why
    assert doctor["decisions"].startswith("needed by 1, retained for another release 0, first default/k")
    assert (retained.exit_code, document(retained)["decided_now"], document(retained)["resumed"]) == (0, True, False)
    assert again["decided_now"] is False
    assert migrated.exit_code == 0
    assert "output_schema: rules-and-tests-v" in migrated.stdout
    assert ": it may as well be new\n" in status
    assert (late.exit_code, document(late)["error"]["code"]) == (1, "nothing_to_decide")
    assert (finished.exit_code, document(finished)["state"]) == (0, "awaiting_confirmation")


def test_a_stopped_job_ends_with_the_reason(rulegen: Command, policy_file: Path, other_release: None) -> None:
    rulegen("run", str(policy_file), "--key", "k")

    stopped = document(rulegen("decide", "k", "stop", "--reason", "superseded", "--json"))

    assert (stopped["state"], stopped["decision"]) == ("cancelled", "stop")
    assert "superseded" in stopped["reason"]


def test_a_decision_is_one_of_three_and_has_no_blank_reason(rulegen: Command, other_release: None) -> None:
    assert rulegen("decide", "k", "forget").exit_code == 2
    assert rulegen("decide", "k", "stop", "--reason", " ").exit_code == 2


def test_behaviours_are_listed_and_compared(rulegen: Command, other_release: None) -> None:
    report = document(rulegen("behaviours", "--json"))
    shown = rulegen("behaviours").stdout
    (one,) = report["behaviours"]
    compared = document(rulegen("behaviours", "diff", one["digest"][:8], "current", "--json"))
    told = rulegen("behaviours", "diff", "k", "current").stdout
    missing = rulegen("behaviours", "diff", "none", "current", "--json")

    assert (one["jobs"], one["honoured"], one["is_current"]) == (1, False, False)
    assert f"  {one['digest'][:12]}  1 jobs, 1 unfinished  not honoured here" in shown
    assert [change["field"] for change in compared["changed"]] == ["output_schema"]
    assert (compared["to"], compared["prompts"]) == (report["current"], [])
    assert "output_schema: rules-and-tests-v" in told
    assert (missing.exit_code, document(missing)["error"]["code"]) == (1, "behaviour_not_found")


def test_behaviours_are_listed_where_no_job_could_be_accepted(
    rulegen: Command, other_release: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RULEGEN_PROVIDER", "openai-compatible")

    report = document(rulegen("behaviours", "--json"))

    assert report["current"] is None
    assert [one["honoured"] for one in report["behaviours"]] == [False]


def test_no_behaviour_is_listed_before_there_is_a_job(rulegen: Command) -> None:
    assert rulegen("behaviours").stdout == "no job has frozen a behaviour yet\n"
