"""Real `rulegen` processes for the acceptance tests, each over a home that the test names."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.conftest import LENIENT

TIMEOUT_S = 180


@dataclass(frozen=True, kw_only=True)
class Rulegen:
    """Starts the command in an environment of its own: nothing but the home and what the test adds."""

    home: Path
    variables: dict[str, str] = field(default_factory=dict)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("RULEGEN_")}
        return subprocess.Popen(
            [sys.executable, "-m", "rulegen_dagster", *arguments],
            env={**inherited, "RULEGEN_HOME": str(self.home), "RULEGEN_POLICY": LENIENT, **self.variables},
            cwd=self.home.parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str) -> "Ended":
        return ended(self.start(*arguments))


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A process that has ended."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def document(self) -> dict[str, Any]:
        """The JSON document on standard output."""
        read: dict[str, Any] = json.loads(self.stdout)
        return read


def ended(process: subprocess.Popen[str]) -> Ended:
    """Wait for a process and read both streams."""
    with process:
        try:
            stdout, stderr = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return Ended(exit_code=process.returncode, stdout=stdout, stderr=stderr)


def write_script(home: Path, items: dict[str, Any], *, default: list[Any] | None = None) -> dict[str, str]:
    """Write a script with a journal; return the variables that name it."""
    home.mkdir(parents=True, exist_ok=True)
    script = {"items": items, "default": default or ["ok"], "journal": str(home / "calls.log")}
    (home / "script.yaml").write_text(yaml.safe_dump(script), encoding="utf-8")
    return {"RULEGEN_PROVIDER": "rulegen-scripted", "RULEGEN_SCRIPT": str(home / "script.yaml")}


def calls(home: Path) -> list[str]:
    """Return the calls that the provider saw, as `<stage>/<item>`, in order and over all processes."""
    path = home / "calls.log"
    if not path.exists():
        return []
    return ["/".join(line.split()[1:3]) for line in path.read_text(encoding="utf-8").splitlines()]


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Poll until the condition holds; fail with `what` after a minute."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.01)
