"""The command line in this process, over a home of its own."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from rulegen_dagster.cli.main import app

Command = Callable[..., Result]


@pytest.fixture(autouse=True)
def _rules_in_process(rules_in_process: None) -> None:
    """Each test here; those that start real processes use the sandbox."""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sqlite_template: Path) -> Path:
    """A home with an empty ledger, named by the environment."""
    folder = tmp_path / "home"
    folder.mkdir()
    shutil.copyfile(sqlite_template, folder / "ledger.sqlite3")
    monkeypatch.setenv("RULEGEN_HOME", str(folder))
    monkeypatch.chdir(tmp_path)
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def rulegen(home: Path) -> Command:
    """Run one command; its exit code and both streams are in the result."""
    assert home.is_dir()
    runner = CliRunner()

    def run(*arguments: str) -> Result:
        result = runner.invoke(app, list(arguments))
        unexpected = result.exception
        if unexpected is not None and not isinstance(unexpected, SystemExit):
            raise unexpected
        return result

    return run


@pytest.fixture
def policy_file(tmp_path: Path) -> Path:
    path = tmp_path / "policy.md"
    path.write_text("Meals are limited to $50 per day.\n\nCoffee must stay hot.\n", encoding="utf-8")
    return path


def document(result: Result) -> dict[str, Any]:
    """Return the one JSON document on standard output."""
    read: dict[str, Any] = json.loads(result.stdout)
    return read
