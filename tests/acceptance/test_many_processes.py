"""Several worker processes on one job: each item is called for once, and never held by two of them."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rulegen_dagster.domain.identity import DEFAULT_TENANT
from rulegen_dagster.domain.retry import RetryPolicy
from rulegen_dagster.domain.states import AttemptOutcome, Stage, WorkState
from rulegen_dagster.ledger.audit import audit_job
from rulegen_dagster.ledger.store import Ledger, open_ledger
from rulegen_dagster.workflow.bench_job import open_bench_runtime, open_rule_stage
from tests.acceptance.processes import wait_until
from tests.conftest import DATABASES, ITEMS_VARIABLE, in_full_only

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]

ITEMS = int(os.environ.get(ITEMS_VARIABLE, "100"))
LATENCY_MS = 20
SLOTS = 8
LIMIT = 10
GIVE_UP_S = 300


@dataclass(frozen=True, kw_only=True)
class Drained:
    """What the processes and the ledger say of one job that was drained by all of them."""

    calls: list[list[str]]
    attempts: list[dict[str, Any]]
    accepted: int
    errors: str

    @property
    def makespan_s(self) -> float:
        """From the first claim to the last acceptance, on the ledger's clock."""
        began: int = min(row["started_at"] for row in self.attempts)
        ended: int = max(row["ended_at"] for row in self.attempts)
        return (ended - began) / 1000

    @property
    def most_in_flight(self) -> int:
        """The most attempts that were under way at one time."""
        changes = [(row["started_at"], 1) for row in self.attempts] + [(row["ended_at"], -1) for row in self.attempts]
        most = now = 0
        # An end is written before the claim that it makes room for, which may read the same millisecond.
        for _, change in sorted(changes):
            now += change
            most = max(most, now)
        return most


@pytest.fixture
def real_ledger(ledger_url: str) -> Iterator[Ledger]:
    """The ledger on the database's own clock, which the processes share."""
    opened = open_ledger(ledger_url, RetryPolicy())
    yield opened
    opened.close()


def _drain(ledger: Ledger, url: str, folder: Path, processes: int, **settings: str) -> Drained:
    """Let the processes begin at one time on `ITEMS` items, and wait until each has found nothing left to do."""
    runtime = open_bench_runtime(url, folder)
    job_id = open_rule_stage(runtime, ITEMS, "many")
    runtime.close()
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RULEGEN_")}
    environment = {
        **inherited,
        "RULEGEN_HOME": str(folder),
        "RULEGEN_DATABASE_URL": url,
        "RULEGEN_SLOTS": str(SLOTS),
        **settings,
    }
    journals = [folder / f"calls-{number}.log" for number in range(processes)]
    # A tenant that may have nothing in flight: they all stand ready until it may.
    ledger.tenants.set(DEFAULT_TENANT, limit=0)
    module = "rulegen_dagster.workflow.bench_worker"
    errors = folder / "stderr.log"
    with ExitStack() as stack:
        stderr = stack.enter_context(errors.open("ab"))
        workers = []
        for journal in journals:
            worker = subprocess.Popen(
                [sys.executable, "-m", module, str(journal), str(job_id), str(LATENCY_MS)],
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
            )
            stack.callback(_end, worker)
            workers.append(worker)
        wait_until(lambda: all(journal.exists() for journal in journals), "the workers to stand ready")
        ledger.tenants.set(DEFAULT_TENANT, no_limit=True)
        assert [worker.wait(timeout=GIVE_UP_S) for worker in workers] == [0] * processes, errors.read_text()
    counts = ledger.reads.stage_counts(job_id)[Stage.GENERATE_RULES]
    return Drained(
        calls=[[line.split()[0] for line in journal.read_text().splitlines()] for journal in journals],
        attempts=[row for row in audit_job(ledger.database, job_id)["attempt"] if row["stage"] == "generate_rules"],
        accepted=counts[WorkState.SUCCEEDED],
        errors=errors.read_text(),
    )


def _end(worker: subprocess.Popen[bytes]) -> None:
    worker.kill()
    worker.wait()


def _overlaps(attempts: list[dict[str, Any]]) -> list[str]:
    """Return the items of which two attempts were under way at one time."""
    by_item: dict[str, list[dict[str, Any]]] = {}
    for row in attempts:
        by_item.setdefault(row["item_key"], []).append(row)
    found = []
    for item, rows in by_item.items():
        rows.sort(key=lambda row: row["attempt"])
        if any(later["started_at"] < earlier["ended_at"] for earlier, later in pairwise(rows)):
            found.append(item)
    return found


@pytest.mark.parametrize("ledger_url", DATABASES, indirect=True)
@pytest.mark.parametrize("processes", [pytest.param(2, marks=in_full_only), 4])
def test_processes_that_share_a_ledger_call_for_each_item_once(
    real_ledger: Ledger, ledger_url: str, tmp_path: Path, processes: int
) -> None:
    drained = _drain(real_ledger, ledger_url, tmp_path / "home", processes)

    print(f"{ITEMS} items, {len(drained.calls)} processes, {ledger_url.partition(':')[0]}: {drained.makespan_s:.2f} s")
    called = Counter(item for calls in drained.calls for item in calls)
    assert (drained.accepted, called.total(), len(called)) == (ITEMS, ITEMS, ITEMS)
    assert sum(map(bool, drained.calls)) > 1
    assert _overlaps(drained.attempts) == []
    assert {row["outcome"] for row in drained.attempts} == {AttemptOutcome.ACCEPTED}
    assert len({row["worker"] for row in drained.attempts}) == sum(map(bool, drained.calls))
    assert "Error" not in drained.errors


def test_processes_that_are_given_one_limit_hold_it_together(
    real_ledger: Ledger, ledger_url: str, tmp_path: Path
) -> None:
    drained = _drain(real_ledger, ledger_url, tmp_path / "home", 4, RULEGEN_GENERATION_LIMIT=str(LIMIT))

    print(f"{ITEMS} items, {len(drained.calls)} processes, {ledger_url.partition(':')[0]}: {drained.makespan_s:.2f} s")
    assert (drained.accepted, sum(map(len, drained.calls))) == (ITEMS, ITEMS)
    # Four processes have 32 slots; they use what they may, and no more.
    assert drained.most_in_flight == LIMIT
    assert "Error" not in drained.errors
