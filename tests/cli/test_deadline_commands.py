from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command, document


@pytest.fixture
def expired(rulegen: Command, policy_file: Path) -> dict[str, Any]:
    """The status of a job that had no time for anything."""
    result = rulegen("run", str(policy_file), "--key", "k", "--deadline", "1s", "--json")
    assert result.exit_code == 1
    return document(result)


def deadline_of(rulegen: Command, job: str) -> int:
    return int(document(rulegen("status", job, "--json"))["deadline_ms"])


@pytest.mark.parametrize("command", ["run", "submit", "extend", "fork"])
@pytest.mark.parametrize("text", ["2", "soon", "-2h", "0s", "99999d"])
def test_a_duration_that_cannot_be_read_is_wrong_usage(
    rulegen: Command, policy_file: Path, command: str, text: str
) -> None:
    arguments = {
        "run": [str(policy_file), "--deadline", text],
        "submit": [str(policy_file), "--deadline", text],
        "extend": ["k", "--reason", "r", "--by", text],
        "fork": ["k", "--key", "next", "--deadline", text],
    }[command]

    result = rulegen(command, *arguments)

    assert result.exit_code == 2
    assert "90s, 30m, 2h or 7d" in " ".join(result.stderr.replace("│", " ").split())
    assert document(rulegen("list", "--json"))["jobs"] == []


def test_a_job_gets_the_deadline_that_it_is_given_and_keeps_it(rulegen: Command, policy_file: Path) -> None:
    usual = document(rulegen("submit", str(policy_file), "--json"))
    hurried = document(rulegen("submit", str(policy_file), "--key", "k", "--deadline", "2h", "--json"))
    again = document(rulegen("submit", str(policy_file), "--key", "k", "--deadline", "9h", "--json"))
    shown = rulegen("status", "k").stdout

    days = (usual["deadline_ms"] - hurried["deadline_ms"]) / 86_400_000
    assert 6.8 < days < 7.0
    assert again["deadline_ms"] == hurried["deadline_ms"]
    assert "deadline: 20" in shown


def test_a_job_without_time_for_a_call_ends_as_expired_and_says_how_to_go_on(
    rulegen: Command, expired: dict[str, Any]
) -> None:
    why = document(rulegen("why", "k", "--json"))
    shown = rulegen("why", "k").stdout

    assert (expired["state"], expired["reason_code"], expired["provider_calls"]) == ("expired", "deadline", 0)
    assert "rulegen extend default/k --reason" in expired["reason"]
    assert (why["reason_code"], why["evidence"]["margin"], why["evidence"]["left"]) == ("deadline", "2s", "0s")
    assert "deadline_ms: 20" in shown


def test_an_extension_moves_the_deadline_of_a_job_that_goes_on(rulegen: Command, policy_file: Path) -> None:
    rulegen("submit", str(policy_file), "--key", "k", "--deadline", "1h")
    before = deadline_of(rulegen, "k")

    result = rulegen("extend", "k", "--by", "2h", "--reason", "the provider was down", "--json")
    shown = rulegen("extend", "k", "--by", "1h", "--reason", "still down")
    events = rulegen("events", "k").stdout

    report = document(result)
    assert (result.exit_code, report["extended"], report["successor_of"]) == (0, True, None)
    assert report["deadline_ms"] == before + 7_200_000
    assert deadline_of(rulegen, "k") == before + 3 * 3_600_000
    assert "default/k has until 20" in shown.stdout
    assert "(extended by 2h: the provider was down, cli:" in events


def test_an_extension_of_an_expired_job_opens_a_successor_that_can_be_run(
    rulegen: Command, expired: dict[str, Any], policy_file: Path
) -> None:
    shown = rulegen("extend", "k", "--reason", "one more day", "--by", "1d")
    again = document(rulegen("extend", "k", "--reason", "one more day", "--json"))
    run = document(rulegen("run", str(policy_file), "--key", "k~2", "--json"))

    assert shown.exit_code == 0
    assert "default/k has expired and never changes" in shown.stdout
    assert "--key k~2" in shown.stdout
    assert (again["job"], again["successor_of"], again["predecessor"]) == ("default/k~2", "default/k", "default/k")
    assert (run["state"], run["existing"]) == ("awaiting_confirmation", True)
    assert document(rulegen("status", "k", "--json"))["state"] == "expired"


def test_a_fork_takes_over_what_was_accepted_and_is_made_once(rulegen: Command, policy_file: Path) -> None:
    rulegen("run", str(policy_file), "--key", "k")
    rulegen("cancel", "k", "--reason", "too early")

    first = rulegen("fork", "k", "--key", "next", "--json")
    again = document(rulegen("fork", "k", "--key", "next", "--json"))
    shown = rulegen("fork", "k", "--key", "third", "--deadline", "2d")
    run = document(rulegen("run", str(policy_file), "--key", "next", "--json"))

    report = document(first)
    assert (first.exit_code, report["job"], report["state"]) == (0, "default/next", "validating")
    assert (report["inherited"], report["provider_calls"], report["existing"]) == (6, 0, False)
    assert (again["job"], again["existing"]) == ("default/next", True)
    assert "default/third has taken over 6 accepted outputs" in shown.stdout
    assert (run["state"], run["provider_calls"]) == ("awaiting_confirmation", 0)


def test_only_an_ended_job_has_a_successor_and_only_an_unended_one_more_time(
    rulegen: Command, policy_file: Path
) -> None:
    rulegen("submit", str(policy_file), "--key", "k")
    early = rulegen("fork", "k", "--key", "next", "--json")
    rulegen("cancel", "k", "--reason", "r")
    late = rulegen("extend", "k", "--reason", "r", "--json")
    bad = rulegen("fork", "k", "--key", "no key", "--json")
    taken = rulegen("fork", "k", "--key", "k", "--json")

    codes = [document(result)["error"]["code"] for result in (early, late, bad, taken)]
    assert codes == ["wrong_state", "wrong_state", "invalid_submission_key", "submission_conflict"]
    assert {result.exit_code for result in (early, late, bad, taken)} == {1}


def test_both_need_their_reason_or_key_and_show_an_example(rulegen: Command) -> None:
    wrong = [rulegen("extend", "k"), rulegen("extend", "k", "--reason", " "), rulegen("fork", "k")]
    helps = [rulegen("extend", "--help").stdout, rulegen("fork", "--help").stdout]

    assert [result.exit_code for result in wrong] == [2, 2, 2]
    assert "rulegen extend travel-2027 --reason" in helps[0]
    assert "rulegen fork travel-2027 --key travel-2027-b" in helps[1]
