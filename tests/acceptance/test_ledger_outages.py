"""The ledger taken away from real workers while they work: servers stopped, files locked, disks without space."""

import os
import resource
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest

from rulegen_dagster.definitions import defs as load_definitions
from rulegen_dagster.defs.sensors import due_work
from rulegen_dagster.domain.errors import LedgerError
from rulegen_dagster.domain.identity import JobName
from rulegen_dagster.domain.retry import RetryPolicy
from rulegen_dagster.domain.states import AttemptOutcome, JobState, Stage
from rulegen_dagster.ledger.attempts import AttemptRecord
from rulegen_dagster.ledger.claims import Claimant
from rulegen_dagster.ledger.store import open_ledger
from rulegen_dagster.resources.runtime import RuntimeResource
from rulegen_dagster.settings import Settings
from rulegen_dagster.workflow.runtime import open_runtime
from tests.acceptance.own_postgres import OwnPostgres, own_postgres
from tests.acceptance.processes import Rulegen, calls, ended, wait_until, write_script
from tests.conftest import ITEMS_VARIABLE, LENIENT
from tests.workflow.conftest import claim_items, open_rules, policy

pytestmark = pytest.mark.acceptance

SLOTS = 8
OUTAGE_S = 1.5
BUSY_TIMEOUT_MS = 200
# The command with a shorter patience for locks than SQLite's usual one here.
SOON_LOCKED_OUT = (
    "from rulegen_dagster.ledger import database;"
    f"database.BUSY_TIMEOUT_MS = {BUSY_TIMEOUT_MS};"
    "from rulegen_dagster.cli.main import app;"
    "app()"
)


@pytest.fixture(scope="module")
def server() -> Iterator[OwnPostgres]:
    with own_postgres() as started:
        yield started


@pytest.fixture
def rulegen(tmp_path: Path) -> Rulegen:
    """The command with a scripted provider whose calls take a while; the test names the ledger."""
    home = tmp_path / "home"
    variables = write_script(home, {}, default=[{"do": "ok", "delay_ms": 100}])
    return Rulegen(home=home, variables={**variables, "RULEGEN_SLOTS": str(SLOTS), "RULEGEN_LEASE_MS": "12000"})


def _on(rulegen: Rulegen, url: str, **variables: str) -> Rulegen:
    return replace(rulegen, variables={**rulegen.variables, "RULEGEN_DATABASE_URL": url, **variables})


def _run(rulegen: Rulegen, clauses: int) -> tuple[str, ...]:
    path = rulegen.home.parent / "policy.md"
    path.write_bytes(policy(clauses))
    return ("run", str(path), "--key", "k", "--json")


def _restart(server: OwnPostgres, mode: str) -> None:
    """Stop the server and start it again after a while: the worker meets the outage in whatever it does then."""
    server.stop(mode)
    time.sleep(OUTAGE_S)
    server.start()


def _attempts(url: str) -> list[AttemptRecord]:
    """The attempts that called the provider."""
    ledger = open_ledger(url, RetryPolicy())
    try:
        job = ledger.reads.job(JobName(tenant="default", submission_key="k"))
        stages = (Stage.GENERATE_RULES, Stage.GENERATE_TESTS)
        return [attempt for attempt in ledger.reads.attempts(job.job_id) if attempt.key.stage in stages]
    finally:
        ledger.close()


def _outcomes(url: str) -> Counter[AttemptOutcome | None]:
    return Counter(attempt.outcome for attempt in _attempts(url))


def test_a_server_that_is_stopped_and_started_during_a_run_costs_time_and_nothing_else(
    rulegen: Rulegen, server: OwnPostgres
) -> None:
    url, items = server.new_database(), 40
    worker = _on(rulegen, url).start(*_run(rulegen, items))

    wait_until(lambda: len(calls(rulegen.home)) >= items // 2, "half of the calls for rules")
    _restart(server, "immediate")
    wait_until(lambda: len(calls(rulegen.home)) >= items + items // 2, "half of the calls for tests")
    _restart(server, "fast")

    finished = ended(worker)
    assert (finished.exit_code, finished.document["state"]) == (0, "awaiting_confirmation"), finished.stderr
    outcomes = _outcomes(url)
    assert outcomes[AttemptOutcome.ACCEPTED] == 2 * items
    # A claim whose answer was lost with the server is left to its lease.
    assert set(outcomes) <= {AttemptOutcome.ACCEPTED, AttemptOutcome.CRASHED}
    assert len(calls(rulegen.home)) == len(set(calls(rulegen.home))) == 2 * items


def test_a_server_that_is_stopped_while_expired_leases_are_recovered_costs_time_and_nothing_else(
    rulegen: Rulegen, server: OwnPostgres
) -> None:
    url, items = server.new_database(), int(os.environ.get(ITEMS_VARIABLE, "80"))
    variables = write_script(rulegen.home, {}, default=[{"do": "ok", "delay_ms": 10}])
    settings = Settings(
        home=rulegen.home,
        database_url=url,
        provider=variables["RULEGEN_PROVIDER"],
        script=rulegen.home / "script.yaml",
        policy=LENIENT,
    )
    runtime = open_runtime(settings)
    job = open_rules(runtime, policy(items), key="k")
    claim_items(runtime, Stage.GENERATE_RULES, items, Claimant(worker="lost", lease_ms=1))
    runtime.close()

    worker = _on(rulegen, url).start(*_run(rulegen, items))
    wait_until(lambda: len(calls(rulegen.home)) >= items // 4, "the recovery to be on its way")
    _restart(server, "immediate")

    finished = ended(worker)
    assert (finished.exit_code, finished.document["state"]) == (0, "awaiting_confirmation"), finished.stderr
    attempts = _attempts(url)
    assert [attempt.outcome for attempt in attempts if attempt.worker == "lost"] == [AttemptOutcome.CRASHED] * items
    outcomes = Counter(attempt.outcome for attempt in attempts if attempt.worker != "lost")
    assert outcomes[AttemptOutcome.ACCEPTED] == 2 * items
    assert set(outcomes) <= {AttemptOutcome.ACCEPTED, AttemptOutcome.CRASHED}
    assert len(calls(rulegen.home)) == 2 * items
    assert job.state is JobState.GENERATING_RULES


def test_a_sensor_and_a_command_say_clearly_that_the_server_is_down_and_the_next_ones_work(
    rulegen: Rulegen, server: OwnPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = server.new_database()
    command = _on(rulegen, url)
    submitted = command.run("submit", _run(rulegen, 3)[1], "--key", "k", "--json")
    for name, value in {**command.variables, "RULEGEN_HOME": str(rulegen.home)}.items():
        monkeypatch.setenv(name, value)

    def tick(instance: dg.DagsterInstance) -> list[str | None]:
        context = dg.build_sensor_context(
            instance=instance, definitions=load_definitions(), resources={"runtime": RuntimeResource()}
        )
        result = due_work(context)
        assert isinstance(result, dg.SensorResult)
        return [request.job_name for request in result.run_requests or []]

    with dg.DagsterInstance.ephemeral() as instance:
        server.stop("fast")
        try:
            with pytest.raises(LedgerError) as down:
                tick(instance)
            status = command.run("status", "k")
        finally:
            server.start()
        launched = tick(instance)
        after = command.run("status", "k", "--json")

    assert submitted.exit_code == 0, submitted.stderr
    assert f"at 127.0.0.1:{server.port}" in down.value.message
    assert down.value.code == "ledger_unavailable"
    assert status.exit_code == 1
    assert status.stderr.startswith("error: the ledger cannot be used (PostgreSQL database")
    assert "Traceback" not in status.stderr
    assert launched == ["retrieve"]
    assert (after.exit_code, after.document["state"]) == (0, "extracting")


def test_a_file_that_somebody_locks_beyond_the_timeout_holds_four_workers_up_and_harms_none(
    rulegen: Rulegen,
) -> None:
    path, items = rulegen.home / "ledger.sqlite3", 24
    command = _on(rulegen, f"sqlite:///{path}", RULEGEN_SLOTS="4")
    arguments = _run(rulegen, items)
    assert command.run("submit", arguments[1], "--key", "k").exit_code == 0
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", SOON_LOCKED_OUT, *arguments],
            env={**os.environ, "RULEGEN_POLICY": LENIENT, **command.variables, "RULEGEN_HOME": str(rulegen.home)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    wait_until(lambda: len(calls(rulegen.home)) >= items // 4, "the workers to be on their way")
    locked = sqlite3.connect(path, isolation_level=None)
    locked.execute("PRAGMA busy_timeout = 60000")
    locked.execute("BEGIN IMMEDIATE")
    # Longer than the workers' timeout, several times over: each of them is told that the file is locked.
    time.sleep(8 * BUSY_TIMEOUT_MS / 1000)
    locked.execute("COMMIT")
    locked.close()

    finished = [ended(worker) for worker in workers]
    assert [one.exit_code for one in finished] == [0] * 4, [one.stderr for one in finished]
    assert {one.document["state"] for one in finished} == {"awaiting_confirmation"}
    assert _outcomes(f"sqlite:///{path}") == {AttemptOutcome.ACCEPTED: 2 * items}
    assert len(calls(rulegen.home)) == len(set(calls(rulegen.home))) == 2 * items


def test_a_file_that_cannot_grow_holds_a_worker_up_until_it_can_again(rulegen: Rulegen) -> None:
    path, items = rulegen.home / "ledger.sqlite3", 60
    command = _on(rulegen, f"sqlite:///{path}")
    worker = command.start(*_run(rulegen, items))
    wait_until(lambda: len(calls(rulegen.home)) >= items // 3, "calls of the first stage")
    grown = path.with_name(f"{path.name}-wal").stat().st_size
    _, hard = resource.prlimit(worker.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (grown, hard))
    called = len(calls(rulegen.home))
    time.sleep(OUTAGE_S)
    stuck = len(calls(rulegen.home))
    resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (hard, hard))

    finished = ended(worker)
    assert (finished.exit_code, finished.document["state"]) == (0, "awaiting_confirmation"), finished.stderr
    assert stuck - called <= 2 * SLOTS
    assert _outcomes(f"sqlite:///{path}") == {AttemptOutcome.ACCEPTED: 2 * items}
    assert len(calls(rulegen.home)) == len(set(calls(rulegen.home))) == 2 * items
