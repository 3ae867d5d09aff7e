"""The sandbox: rules are executed in a process of their own, and what meets a limit there ends that process alone."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from rulegen_dagster.domain.clause import Clause
from rulegen_dagster.domain.errors import RuleExecutionError
from rulegen_dagster.domain.vocabulary import Vocabulary
from rulegen_dagster.rules import sandbox
from rulegen_dagster.rules.clause_entries import ClauseEntry, entry_as_json, entry_from_json
from rulegen_dagster.rules.drafts import read_rules_draft, read_tests_draft
from rulegen_dagster.rules.policies import load_policy
from rulegen_dagster.rules.quality import Waiver, assess_ruleset
from rulegen_dagster.rules.sandbox import SandboxLimits, assess_in_sandbox

ClauseBuilder = Callable[..., Clause]
POLICY = load_policy("default")


@pytest.fixture
def meals(
    vocabulary: Vocabulary, make_clause: ClauseBuilder, meal_rule: dict[str, Any], meal_tests: list[dict[str, Any]]
) -> ClauseEntry:
    clause = make_clause("Meals are limited to $75 per day.", heading_path=("1 Meals",), lead="Limits:")
    return ClauseEntry(
        item_key="rule-01",
        clause=clause,
        rules=read_rules_draft(
            json.dumps({"rules": [meal_rule]}), clause=clause, item_key="rule-01", vocabulary=vocabulary
        ),
        suite=read_tests_draft(json.dumps({"tests": meal_tests}), vocabulary=vocabulary),
    )


def in_a_limited_process(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program under the sandbox's limits, as somebody whom the kernel holds to all of them."""
    limited = (
        "import os, subprocess; from rulegen_dagster.rules.sandboxed import limit_process;"
        "os.getuid() or (os.setgroups([]), os.setgid(65534), os.setuid(65534));"
        "limit_process(cpu_s=2, memory_bytes=2 * 1024**3)"
    )
    return subprocess.run(
        [sys.executable, "-c", f"{limited}\n{program}"], capture_output=True, text=True, timeout=60, check=False
    )


def test_the_sandbox_reports_exactly_what_this_process_would(meals: ClauseEntry, vocabulary: Vocabulary) -> None:
    waivers = [Waiver(clause_ordinal=7, actor="kim", reason="not needed")]

    report = assess_in_sandbox([meals], vocabulary, POLICY, waivers)

    assert report == assess_ruleset([meals], vocabulary, POLICY, waivers)
    assert report.passed
    assert report.mutation.mutants > 10


def test_an_entry_survives_the_way_into_the_other_process(meals: ClauseEntry) -> None:
    assert entry_from_json(json.loads(json.dumps(entry_as_json(meals)))) == meals


def test_a_ruleset_that_takes_too_long_gets_a_report_that_says_so(meals: ClauseEntry, vocabulary: Vocabulary) -> None:
    report = assess_in_sandbox([meals], vocabulary, POLICY, limits=SandboxLimits(cpu_s=0))

    assert not report.passed
    assert [(failure.code, failure.message) for failure in report.failures] == [
        ("execution_limit", "executing the rules and their tests took more than 0 s of CPU time")
    ]
    assert (report.rules, report.tests) == (1, 4)


def test_a_ruleset_that_needs_too_much_memory_gets_a_report_that_says_so(
    meals: ClauseEntry, vocabulary: Vocabulary
) -> None:
    report = assess_in_sandbox([meals] * 2_000, vocabulary, POLICY, limits=SandboxLimits(memory_bytes=40 * 1024**2))

    assert [failure.message for failure in report.failures] == [
        "executing the rules and their tests took more than 40 MiB of memory"
    ]


def test_any_other_end_is_an_error_that_quotes_nothing(
    meals: ClauseEntry, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "entry_as_json", lambda entry: {**asdict(entry.clause), "secret": "limited to $75"})

    with pytest.raises(RuleExecutionError) as refused:
        assess_in_sandbox([meals], vocabulary, POLICY)

    assert "limited to $75" not in str(refused.value)
    assert "ended with 1" in str(refused.value)


@pytest.mark.parametrize(
    ("program", "ends"),
    [
        ("while True: pass", "died of SIGXCPU"),
        ("x = bytearray(4 * 1024**3)", "MemoryError"),
        (
            "with open('/tmp/rulegen-sandbox-probe', 'w') as file: file.write('x' * 9)",
            "File too large|Permission|died of SIGXFSZ",
        ),
        ("subprocess.run(['true'])", "temporarily unavailable"),
        ("[os.open('/dev/null', os.O_RDONLY) for _ in range(99)]", "Too many open files"),
    ],
)
def test_the_kernel_enforces_each_limit(program: str, ends: str) -> None:
    ended = in_a_limited_process(program)

    died = f"died of {_signal(ended.returncode)}" if ended.returncode < 0 else ""
    assert re.search(ends, ended.stderr + died), (ended.returncode, ended.stderr)


def _signal(code: int) -> str:
    return signal.Signals(-code).name


def test_the_process_sees_no_secret_of_the_environment(
    meals: ClauseEntry, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, str]] = []
    real = subprocess.run

    def watched(*arguments: Any, **options: Any) -> Any:
        seen.append(options["env"])
        return real(*arguments, **options)

    monkeypatch.setenv("RULEGEN_API_KEY", "planted")
    monkeypatch.setattr(subprocess, "run", watched)

    assess_in_sandbox([meals], vocabulary, POLICY)

    assert "planted" in os.environ.values()
    assert "planted" not in seen[0].values()
