"""The crash line of the bench: a worker process is killed at two thirds of its work, and another one goes on."""

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from rulegen_dagster.domain.errors import StateError
from rulegen_dagster.domain.states import Stage, WorkState
from rulegen_dagster.workflow.bench_job import open_rule_stage
from rulegen_dagster.workflow.runtime import Runtime

KILL_AT = 0.65
"""The share of the calls after which the first worker is killed."""

LEASE_MS = 1_000
_POLL_S = 0.002
_GIVE_UP_S = 300.0


@dataclass(frozen=True, kw_only=True)
class CrashRun:
    """What the journal of both workers and the ledger say of one crash.

    `first_call_s` counts from the second process's start to its first call, None where nothing was left to call;
    `killed` is false where the first worker had finished before the kill reached it.
    """

    killed: bool
    committed_at_kill: int
    accepted: int
    calls: int
    repeated_committed: int
    repeated_in_flight: int
    first_call_s: float | None


def crash_and_resume(
    runtime: Runtime, folder: Path, count: int, *, latency_ms: float, slots: int, key: str
) -> CrashRun:
    """Kill a worker with SIGKILL at `KILL_AT` of `count` calls, let a second one finish, and count the calls.

    Raises `StateError` where a worker ends by itself in another way than finished.
    """
    job_id = open_rule_stage(runtime, count, key)
    journals = folder / f"{key}.first.log", folder / f"{key}.second.log"
    first = _start(runtime, journals[0], job_id, latency_ms, slots)
    try:
        _await_calls(first, journals[0], max(1, int(count * KILL_AT)))
    finally:
        first.kill()
        killed = first.wait() != 0
    committed = _accepted(runtime, job_id)
    began_ns = time.monotonic_ns()
    second = _start(runtime, journals[1], job_id, latency_ms, slots)
    try:
        code = second.wait(timeout=_GIVE_UP_S)
    except subprocess.TimeoutExpired:
        raise StateError("the resumed worker of the bench did not finish") from None
    finally:
        second.kill()
        second.wait()
    if code != 0:
        raise StateError(f"the resumed worker of the bench ended with exit code {code}")
    before, after = (_calls(journal) for journal in journals)
    called_before = {item for item, _ in before}
    again = [item for item, _ in after if item in called_before]
    repeated_committed = sum(1 for item in again if item in committed)
    return CrashRun(
        killed=killed,
        committed_at_kill=len(committed),
        accepted=len(_accepted(runtime, job_id)),
        calls=len(before) + len(after),
        repeated_committed=repeated_committed,
        repeated_in_flight=len(again) - repeated_committed,
        first_call_s=(min(at for _, at in after) - began_ns) / 1e9 if after else None,
    )


def _start(runtime: Runtime, journal: Path, job_id: int, latency_ms: float, slots: int) -> subprocess.Popen[bytes]:
    # The URL may hold a password, so it goes by the environment and not by the command line.
    environment = {
        **os.environ,
        "RULEGEN_HOME": str(runtime.settings.home_path),
        "RULEGEN_DATABASE_URL": runtime.settings.ledger_url,
        "RULEGEN_SLOTS": str(slots),
        "RULEGEN_LEASE_MS": str(LEASE_MS),
    }
    module = "rulegen_dagster.workflow.bench_worker"
    arguments = [sys.executable, "-m", module, str(journal), str(job_id), str(latency_ms)]
    return subprocess.Popen(arguments, env=environment, stdout=subprocess.DEVNULL)  # noqa: S603 (this interpreter, our own module)


def _await_calls(worker: subprocess.Popen[bytes], journal: Path, wanted: int) -> None:
    give_up = time.monotonic() + _GIVE_UP_S
    while worker.poll() is None and (not journal.exists() or journal.read_bytes().count(b"\n") < wanted):
        if time.monotonic() > give_up:
            raise StateError("the worker of the bench makes no progress")
        time.sleep(_POLL_S)
    if worker.returncode:
        raise StateError(f"the worker of the bench ended with exit code {worker.returncode}")


def _accepted(runtime: Runtime, job_id: int) -> frozenset[str]:
    items = runtime.ledger.reads.items(job_id, Stage.GENERATE_RULES)
    return frozenset(item.key.item_key for item in items if item.state is WorkState.SUCCEEDED)


def _calls(journal: Path) -> list[tuple[str, int]]:
    if not journal.exists():
        return []
    lines = (line.split() for line in journal.read_text(encoding="utf-8").splitlines())
    return [(item, int(at)) for item, at in lines]
