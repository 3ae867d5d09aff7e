"""The process that `rulegen bench` kills: drains one job, and journals each call before it makes it.

Run as `python -m rulegen_dagster.workflow.bench_worker JOURNAL JOB LATENCY_MS`; the environment names the ledger.
"""

import asyncio
import os
import sys
import time
from pathlib import Path

from rulegen_dagster.domain.states import Stage, WorkState
from rulegen_dagster.domain.work import Claim
from rulegen_dagster.settings import Settings
from rulegen_dagster.workflow.bench_job import rule_scope, timed_calls
from rulegen_dagster.workflow.engine import Engine
from rulegen_dagster.workflow.runtime import open_runtime

_POLL_S = 0.05


def work(settings: Settings, journal: Path, job_id: int, latency_s: float) -> None:
    """Drain the job's rule items until each has an accepted output, those under a lost worker's lease included."""
    runtime = open_runtime(settings)
    handle = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(claim: Claim) -> None:
        # One write straight to the kernel: a killed process loses none of them.
        os.write(handle, f"{claim.key.item_key} {time.monotonic_ns()}\n".encode())

    attempt = timed_calls(latency_s, note)
    try:
        while True:
            engine = Engine(runtime, attempt, slots=settings.slots, observe=lambda _outcome: None)
            asyncio.run(engine.drain(rule_scope(job_id)))
            counts = runtime.ledger.reads.stage_counts(job_id)[Stage.GENERATE_RULES]
            if not any(counts.get(state) for state in (WorkState.PENDING, WorkState.RUNNING, WorkState.WAITING)):
                return
            time.sleep(_POLL_S)
    finally:
        os.close(handle)
        runtime.close()


def main(arguments: list[str]) -> None:
    """Read the command line."""
    journal, job_id, latency_ms = arguments
    work(Settings(), Path(journal), int(job_id), float(latency_ms) / 1000)


if __name__ == "__main__":
    main(sys.argv[1:])
