"""The command as a process: its streams are in another encoding, full or closed, its folder or a variable is wrong."""

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.cli.conftest import Command

FULL = Path("/dev/full")
PROGRAM = "from rulegen_dagster.cli.main import main; main()"
QUOTED = "Meals “of guests” – 規則 \U0001f37d – are limited to $50 per day."


def _run(
    *arguments: str, stdout: int | None = None, program: str = PROGRAM, **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE if stdout is None else stdout,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize("arguments", [["review", "k", "--json"], ["export", "k", "--format", "json"]], ids=" ".join)
def test_json_is_json_whatever_the_streams_encoding(
    rulegen: Command, tmp_path: Path, encoding: str, arguments: list[str]
) -> None:
    policy = tmp_path / "policy.txt"
    policy.write_text(QUOTED, encoding="utf-8")
    rulegen("run", str(policy), "--key", "k")

    answer = _run(*arguments, PYTHONIOENCODING=encoding)

    assert answer.returncode == 0
    assert json.loads(answer.stdout)["clauses"][0]["text"] == QUOTED
    assert answer.stdout.isascii() == (encoding != "utf-8")


def test_an_events_line_is_json_whatever_the_streams_encoding(rulegen: Command, tmp_path: Path) -> None:
    policy = tmp_path / "policy.txt"
    policy.write_text(QUOTED, encoding="utf-8")
    rulegen("submit", str(policy), "--key", "k")
    rulegen("cancel", "k", "--reason", "“規則”")

    lines = _run("events", "k", "--json", PYTHONIOENCODING="latin-1").stdout.splitlines()

    assert all(json.loads(line) for line in lines)


@pytest.mark.usefixtures("home")
def test_a_failpoint_that_cannot_be_read_is_a_clear_error() -> None:
    shown, as_json = _run("list", RULEGEN_FAILPOINT="nowhere"), _run("list", "--json", RULEGEN_FAILPOINT="nowhere")

    assert (shown.returncode, shown.stdout) == (1, "")
    assert shown.stderr.startswith("error: RULEGEN_FAILPOINT cannot be read; give NAME")
    assert shown.stderr.endswith("[invalid_failpoint]\n")
    assert (as_json.returncode, as_json.stderr) == (1, "")
    assert json.loads(as_json.stdout)["error"]["code"] == "invalid_failpoint"


@pytest.mark.skipif(not FULL.is_char_device(), reason="no device that is always full")
@pytest.mark.parametrize(
    "arguments", [["list"], ["list", "--json"], ["export", "k"], ["--help"], ["--version"]], ids=" ".join
)
def test_a_full_disk_under_standard_output_is_a_clear_error(
    rulegen: Command, policy_file: Path, arguments: list[str]
) -> None:
    rulegen("submit", str(policy_file), "--key", "k")
    full = os.open(FULL, os.O_WRONLY)
    try:
        answer = _run(*arguments, stdout=full)
    finally:
        os.close(full)

    assert answer.returncode == 1
    assert answer.stderr.startswith("error: standard output cannot be written: No space left on device; ")
    assert answer.stderr.endswith(" [output_not_writable]\n")
    assert answer.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [["list"], ["export", "k"]], ids=" ".join)
def test_a_closed_pipe_is_no_word(rulegen: Command, policy_file: Path, arguments: list[str]) -> None:
    rulegen("submit", str(policy_file), "--key", "k")
    reading, writing = os.pipe()
    os.close(reading)
    try:
        answer = _run(*arguments, stdout=writing)
    finally:
        os.close(writing)

    assert (answer.returncode, answer.stderr) == (1, "")


@pytest.mark.parametrize("as_json", [[], ["--json"]], ids=["for people", "as JSON"])
def test_a_current_folder_that_is_gone_is_a_clear_error(tmp_path: Path, as_json: list[str]) -> None:
    gone = tmp_path / "gone"
    program = f"import os; os.mkdir({str(gone)!r}); os.chdir({str(gone)!r}); os.rmdir({str(gone)!r}); {PROGRAM}"

    answer = _run("list", *as_json, program=program)

    assert answer.returncode == 1
    assert "no_current_folder" in (answer.stdout if as_json else answer.stderr)
    assert "Traceback" not in answer.stderr
    if as_json:
        assert json.loads(answer.stdout)["error"]["code"] == "no_current_folder"


def test_the_version_is_the_packages(rulegen: Command) -> None:
    result = rulegen("--version")

    assert (result.exit_code, result.stdout) == (0, f"rulegen {version('rulegen-dagster')}\n")
