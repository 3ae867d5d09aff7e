"""The opening scenario on an injected clock: thirteen rules saved, the call for rule 14 times out, the process dies."""

from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from rulegen_dagster.domain.errors import JobNotFoundError, StateError
from rulegen_dagster.domain.identity import DEFAULT_TENANT, JobName
from rulegen_dagster.domain.states import Stage, WorkState
from rulegen_dagster.ledger.claims import Scope
from rulegen_dagster.ledger.database import ManualClock
from rulegen_dagster.ledger.reads import ItemRecord, JobRecord
from rulegen_dagster.settings import Settings
from rulegen_dagster.workflow.documents import accept, prepare
from rulegen_dagster.workflow.drive import generate
from rulegen_dagster.workflow.engine import Outcome
from rulegen_dagster.workflow.intake import submit_upload
from rulegen_dagster.workflow.runtime import Runtime, open_runtime

DEMO_JOB = JobName(tenant=DEFAULT_TENANT, submission_key="crash-demo")
LEASE_MS = 1_000
_EXAMPLE = "expense-policy.md"
_SCRIPT = "demo-crash.yaml"


def open_demo(path: str, now_ms: int, *, crash: bool) -> Runtime:
    """Open the demo's own ledger, whose clock stands at `now_ms`; its lease lasts one second, and it alone decides.

    `path` is a file for SQLite, with a folder beside it for the demo's blobs, or a database URL.
    """
    is_url = "://" in path
    home = Settings().home_path / "demo" if is_url else Path(f"{path}.files").absolute()
    script = Path(str(files("rulegen_dagster") / "examples" / _SCRIPT)) if crash else None
    settings = Settings(
        home=home,
        database_url=path if is_url else f"sqlite:///{Path(path).absolute()}",
        provider="rulegen-scripted",
        script=script,
        slots=1,
        lease_ms=LEASE_MS,
    )
    return replace(open_runtime(settings, clock=ManualClock(now_ms), locks=False), jitter=lambda: 0.0)


def check_begun(path: str) -> None:
    """Check that there is a file to go on with, before opening it would make one. Raises `StateError`."""
    if "://" not in path and not Path(path).exists():
        raise StateError(f"there is no demo at {path}; begin with 'rulegen demo crash --db {path}'")


def crash(runtime: Runtime) -> None:
    """Run the rule stage of the example until the call for rule 14, which ends the process with exit code 14.

    Raises `StateError` where the ledger holds the demo already: the scenario needs a fresh file.
    """
    example = (files("rulegen_dagster") / "examples" / _EXAMPLE).read_bytes()
    intake = submit_upload(
        runtime, example, _EXAMPLE, tenant=DEMO_JOB.tenant, key=DEMO_JOB.submission_key, actor="demo"
    )
    if intake.existing:
        raise StateError("this file holds the demo already; give a fresh path, or go on with 'rulegen demo resume'")
    for stage in (Stage.PARSE, Stage.RETRIEVE):
        prepared = prepare(runtime, intake.job.job_id, stage)
        accept(runtime, prepared)  # type: ignore[arg-type]  # a fresh job's document stages are ready
    _generate_rules(runtime, intake.job, lambda _outcome: None)


def resume(runtime: Runtime) -> dict[str, Any]:
    """Finish the rule stage from what the ledger holds; return what was called and what was left alone.

    Raises `StateError` where the ledger holds no demo.
    """
    try:
        job = runtime.ledger.reads.job(DEMO_JOB)
    except JobNotFoundError:
        raise StateError("this file holds no demo; begin with 'rulegen demo crash'") from None
    before = _accepted(runtime, job)
    called: list[str] = []
    _generate_rules(runtime, job, lambda outcome: called.append(outcome.claim.key.item_key))
    after = _accepted(runtime, job)
    return {
        "provider_calls": len(called),
        "called": called,
        "accepted": len(after),
        "unchanged": sum(1 for key, item in before.items() if after.get(key) == item),
    }


def _generate_rules(runtime: Runtime, job: JobRecord, observe: Callable[[Outcome], None]) -> None:
    generate(runtime, Scope(stages=(Stage.GENERATE_RULES,), job_ids=(job.job_id,)), observe=observe, slots=1)


def _accepted(runtime: Runtime, job: JobRecord) -> dict[str, ItemRecord]:
    return {
        item.key.item_key: item
        for item in runtime.ledger.reads.items(job.job_id, Stage.GENERATE_RULES)
        if item.state is WorkState.SUCCEEDED
    }
