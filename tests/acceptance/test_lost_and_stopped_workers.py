"""Real processes: one that is killed is taken over at once, one that is told to stop gives back what it cannot finish.

The leases outlast every test, so nothing here can pass by waiting for one.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rulegen_dagster.domain.identity import JobName
from rulegen_dagster.domain.states import AttemptOutcome, WorkState
from rulegen_dagster.ledger.audit import Rows, audit_job
from rulegen_dagster.ledger.recoveries import Freed
from rulegen_dagster.settings import Settings
from rulegen_dagster.workflow.recover import free_lost_work
from rulegen_dagster.workflow.runtime import Runtime, open_runtime
from tests.acceptance.processes import Rulegen, calls, ended, wait_until, write_script

pytestmark = pytest.mark.acceptance

CLAUSES = 6
POLICY = "\n".join(f"Meals are limited to ${50 + number} per day." for number in range(CLAUSES))
LEASE_MS = 600_000
NEVER = {"do": "ok", "delay_ms": LEASE_MS}
SLOTS = 2


@pytest.fixture
def rulegen(ledger_url: str, tmp_path: Path) -> Rulegen:
    (tmp_path / "policy.md").write_text(POLICY, encoding="utf-8")
    variables = {
        **write_script(tmp_path / "home", {}),
        "RULEGEN_DATABASE_URL": ledger_url,
        "RULEGEN_SLOTS": str(SLOTS),
        "RULEGEN_LEASE_MS": str(LEASE_MS),
        "RULEGEN_CALL_TIMEOUT_MS": str(LEASE_MS),
        "RULEGEN_GRACE_MS": "400",
    }
    return Rulegen(home=tmp_path / "home", variables=variables)


@pytest.fixture
def looking(rulegen: Rulegen, ledger_url: str) -> Iterator[Runtime]:
    """Another worker of the same home, on the database's own clock."""
    opened = open_runtime(Settings(home=rulegen.home, database_url=ledger_url))
    yield opened
    opened.close()


def _run(home: Path) -> tuple[str, ...]:
    return ("run", str(home.parent / "policy.md"), "--key", "k", "--json")


def _rows(runtime: Runtime) -> Rows:
    job = runtime.ledger.reads.job(JobName(tenant="default", submission_key="k"))
    return audit_job(runtime.ledger.database, job.job_id)


def _rules(rows: Rows, table: str) -> list[dict[str, Any]]:
    found = [row for row in rows[table] if row["stage"] == "generate_rules"]
    return sorted(found, key=lambda row: (row["item_key"], row.get("attempt", 0)))


def _stuck(rulegen: Rulegen, hanging: str = "generate_rules/rule-0[34]") -> None:
    """Let the calls for two rules hang for ever; the rules before them are accepted."""
    write_script(rulegen.home, {hanging: [NEVER]})


def _in_flight(rulegen: Rulegen) -> bool:
    return {"generate_rules/rule-03", "generate_rules/rule-04"} <= set(calls(rulegen.home))


def test_after_a_kill_the_next_process_takes_over_at_once(rulegen: Rulegen, looking: Runtime) -> None:
    _stuck(rulegen)
    killed = rulegen.start(*_run(rulegen.home))
    wait_until(lambda: _in_flight(rulegen), "both calls to hang")
    killed.kill()
    ended(killed)
    held = [row for row in _rules(_rows(looking), "work_item") if row["state"] == WorkState.RUNNING]
    told = rulegen.run("why", "k", "--json").document
    write_script(rulegen.home, {})

    resumed = rulegen.run(*_run(rulegen.home))

    attempts = _rules(_rows(looking), "attempt")
    lost = [row for row in attempts if row["outcome"] == AttemptOutcome.CRASHED]
    made = calls(rulegen.home)
    assert [row["item_key"] for row in held] == ["rule-03", "rule-04"]
    assert min(row["lease_until"] for row in held) > looking.ledger.reads.now()
    assert told["reason_code"] in {"worker_lost", "ready"}
    assert resumed.document["stages"]["generate_tests"]["succeeded"] == CLAUSES, resumed.stderr
    assert [(row["item_key"], row["attempt"], row["error_code"]) for row in lost] == [
        ("rule-03", 1, "worker_lost"),
        ("rule-04", 1, "worker_lost"),
    ]
    assert len(made) == 2 * CLAUSES + 2
    assert {made.count(f"generate_rules/rule-0{n}") for n in (1, 2, 5, 6)} == {1}
    assert sorted(path.name for path in (rulegen.home / "workers").iterdir()) == []


def test_a_process_that_stands_still_is_not_taken_over(rulegen: Rulegen, looking: Runtime) -> None:
    _stuck(rulegen)
    paused = rulegen.start(*_run(rulegen.home))
    wait_until(lambda: _in_flight(rulegen), "both calls to hang")
    os.kill(paused.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, paused.pid, os.WSTOPPED | os.WNOWAIT)

    while_stopped = free_lost_work(looking)
    paused.kill()
    ended(paused)
    once_dead = free_lost_work(looking)

    assert (while_stopped, once_dead) == (Freed(), Freed(waiting=2))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_process_that_is_told_to_stop_gives_back_what_hangs(
    rulegen: Rulegen, looking: Runtime, number: signal.Signals
) -> None:
    _stuck(rulegen)
    stopped = rulegen.start(*_run(rulegen.home))
    wait_until(lambda: _in_flight(rulegen), "both calls to hang")
    stopped.send_signal(number)
    end = ended(stopped)
    before = _rows(looking)
    write_script(rulegen.home, {})

    resumed = rulegen.run(*_run(rulegen.home))

    items, tries = _rules(before, "work_item"), _rules(before, "attempt")
    given_back = [row for row in tries if row["outcome"] == AttemptOutcome.CANCELLED]
    assert (end.exit_code, end.document["error"]["code"]) == (1, "stopped"), end.stderr
    assert "generating_rules" in end.document["error"]["message"]
    assert [row["state"] for row in items] == ["succeeded"] * 2 + ["waiting"] * 2 + ["pending"] * 2
    assert [(row["item_key"], row["error_code"]) for row in given_back] == [
        ("rule-03", "worker_stopped"),
        ("rule-04", "worker_stopped"),
    ]
    assert [row["attempt_limit"] - row["attempts"] for row in items[2:4]] == [3, 3]
    assert resumed.document["stages"]["generate_tests"]["succeeded"] == CLAUSES, resumed.stderr
    assert resumed.document["unused_calls_total"] == 2


def test_calls_that_end_soon_are_finished_and_nothing_more_is_begun(rulegen: Rulegen, looking: Runtime) -> None:
    patient = Rulegen(home=rulegen.home, variables={**rulegen.variables, "RULEGEN_GRACE_MS": str(LEASE_MS)})
    write_script(rulegen.home, {"generate_rules/rule-0[34]": [{"do": "ok", "delay_ms": 3_000}]})
    stopped = patient.start(*_run(rulegen.home))
    wait_until(lambda: _in_flight(rulegen), "both calls to begin")
    stopped.terminate()
    end = ended(stopped)

    assert (end.exit_code, end.document["error"]["code"]) == (1, "stopped"), end.stderr
    items = _rules(_rows(looking), "work_item")
    assert [row["state"] for row in items] == ["succeeded"] * 4 + ["pending"] * 2
    assert looking.ledger.recoveries.holders() == frozenset()


def test_a_second_signal_ends_the_process_at_once(rulegen: Rulegen, looking: Runtime) -> None:
    patient = Rulegen(home=rulegen.home, variables={**rulegen.variables, "RULEGEN_GRACE_MS": str(LEASE_MS)})
    _stuck(rulegen)
    stopped = patient.start(*_run(rulegen.home))
    wait_until(lambda: _in_flight(rulegen), "both calls to hang")
    assert stopped.stderr is not None
    stopped.terminate()
    while "ends at once" not in stopped.stderr.readline():
        pass
    stopped.terminate()
    end = ended(stopped)

    assert end.exit_code == -signal.SIGTERM
    assert free_lost_work(looking) == Freed(waiting=2)
