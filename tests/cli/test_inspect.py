import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Command, document

LONG_AGO_S = 1_000


def _submit(rulegen: Command, policy_file: Path) -> None:
    assert rulegen("submit", str(policy_file), "--key", "meals").exit_code == 0


def _lines(stdout: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in stdout.splitlines()]


def test_why_gives_one_reason_with_evidence_as_json(rulegen: Command, policy_file: Path) -> None:
    _submit(rulegen, policy_file)

    report = document(rulegen("why", "meals", "--json"))

    assert list(report) == [
        "job",
        "item",
        "state",
        "reason_code",
        "reason",
        "evidence",
        "next_at_ms",
        "recovery",
    ]
    assert (report["job"], report["state"], report["reason_code"]) == ("default/meals", "extracting", "ready")


def test_why_tells_people_the_reason_the_evidence_and_the_way_on(rulegen: Command, policy_file: Path) -> None:
    assert rulegen("run", str(policy_file), "--key", "meals").exit_code == 0

    told = rulegen("why", "meals", "publish").stdout

    assert "default/meals  publish" in told
    assert "state: proposed" in told
    assert "awaiting_confirmation: a person has to confirm" in told
    assert "UTC" in told
    assert "How long does the proposal stay valid? Until the job ends" in told


@pytest.mark.parametrize(
    ("arguments", "code"), [(("meals", "rule-77"), "item_not_found"), (("nonesuch",), "job_not_found")]
)
def test_why_names_what_it_cannot_find(
    rulegen: Command, policy_file: Path, arguments: tuple[str, ...], code: str
) -> None:
    _submit(rulegen, policy_file)

    result = rulegen("why", *arguments, "--json")

    assert (result.exit_code, document(result)["error"]["code"]) == (1, code)


def test_a_status_says_in_one_line_what_can_be_done_about_a_failure(rulegen: Command, policy_file: Path) -> None:
    _submit(rulegen, policy_file)

    told = rulegen("status", "meals").stdout.splitlines()

    (line,) = [line for line in told if "Can the file be replaced?" in line]
    assert line.startswith("  Can the file be replaced? No. ")


def test_events_are_lines_of_json(rulegen: Command, policy_file: Path) -> None:
    assert rulegen("run", str(policy_file), "--key", "meals").exit_code == 0

    events = _lines(rulegen("events", "meals", "--json").stdout)

    assert (events[0]["from"], events[0]["to"]) == (None, "received")
    assert events[-1]["to"] == "awaiting_confirmation"
    assert _lines(rulegen("events", "meals", "--since", str(events[3]["id"]), "--json").stdout) == events[4:]


def test_events_for_people_are_a_line_each(rulegen: Command, policy_file: Path) -> None:
    _submit(rulegen, policy_file)

    told = rulegen("events", "meals").stdout.splitlines()

    assert "job: new → received" in told[0]
    assert "UTC" in told[0]


def test_following_an_ended_job_ends(rulegen: Command, policy_file: Path) -> None:
    assert rulegen("run", str(policy_file), "--key", "meals", "--confirm").exit_code == 0

    result = rulegen("events", "meals", "--follow", "--json")

    assert result.exit_code == 0
    assert _lines(result.stdout)[-1]["to"] == "completed"


def test_following_ends_on_an_interrupt_with_its_own_exit_code(rulegen: Command, policy_file: Path) -> None:
    _submit(rulegen, policy_file)

    with subprocess.Popen(
        [str(Path(sys.executable).with_name("rulegen")), "events", "meals", "--follow", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as follower:
        assert follower.stdout is not None
        assert json.loads(follower.stdout.readline())["to"] == "received"
        follower.send_signal(signal.SIGINT)
        _rest, complaints = follower.communicate(timeout=30)

    assert (follower.returncode, complaints) == (130, "")


@pytest.mark.parametrize("since", ["-1", "x", "9223372036854775808"])
def test_a_number_that_is_none_is_wrong_usage(rulegen: Command, since: str) -> None:
    assert rulegen("events", "meals", "--since", since).exit_code == 2


def test_gc_tells_and_removes_orphans_past_their_grace(rulegen: Command, policy_file: Path, home: Path) -> None:
    _submit(rulegen, policy_file)
    digest = "ab" * 32
    orphan = home / "blobs" / "ab" / digest
    orphan.parent.mkdir(exist_ok=True)
    orphan.write_bytes(b"12345")

    fresh = document(rulegen("gc", "--json"))
    os.utime(orphan, (LONG_AGO_S, LONG_AGO_S))
    told = document(rulegen("gc", "--dry-run", "--json"))
    removed = document(rulegen("gc", "--json"))

    entry = {"kind": "blob", "name": f"ab/{digest}", "bytes": 5}
    assert (fresh["count"], fresh["grace_ms"]) == (0, 24 * 3_600_000)
    assert (told["dry_run"], told["removed"], told["bytes"]) == (True, [entry], 5)
    assert (removed["dry_run"], removed["removed"], removed["count"]) == (False, [entry], 1)
    assert not orphan.exists()
    assert rulegen("run", str(policy_file), "--key", "meals").exit_code == 0


def test_gc_tells_people_what_and_how_much(rulegen: Command, home: Path) -> None:
    folder = home / "blobs" / "ab"
    folder.mkdir(parents=True)
    (folder / ("ab" * 32)).write_bytes(b"x" * 1_500)

    told = rulegen("gc", "--grace", "0").stdout.splitlines()

    assert told[0].split()[:3] == ["blob", "1,500", "bytes"]
    assert told[-1] == "1 removed, 1,500 bytes"


@pytest.mark.parametrize("grace", ["-1", "nan", "inf", "soon"])
def test_a_grace_period_that_is_none_is_wrong_usage(rulegen: Command, grace: str) -> None:
    assert rulegen("gc", "--grace", grace).exit_code == 2


def test_gc_removes_content_of_jobs_that_ended_longer_ago_than_it_is_told(rulegen: Command, policy_file: Path) -> None:
    rulegen("submit", str(policy_file), "--key", "k")
    rulegen("cancel", "k", "--reason", "not wanted")

    young = document(rulegen("gc", "--grace", "0", "--content-older-than", "1d", "--json"))
    wrong = rulegen("gc", "--content-older-than", "soon")
    status = document(rulegen("status", "k", "--json"))

    assert (young["removed"], status["removed_content"]) == ([], {})
    assert wrong.exit_code == 2
