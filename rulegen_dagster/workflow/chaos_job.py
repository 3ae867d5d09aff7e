"""The job that chaos runs: a small policy through every stage to its bundle, with a retry and a refused draft in it."""

import json
import mmap
import os
import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rulegen_dagster.domain.canonical import canonical_json, sha256_hex
from rulegen_dagster.domain.errors import JobNotFoundError, PublishError, StateError, SubmissionConflictError
from rulegen_dagster.domain.identity import JobName
from rulegen_dagster.domain.states import TERMINAL_JOB_STATES, JobState, WorkState
from rulegen_dagster.ledger.audit import Rows, audit_job
from rulegen_dagster.ledger.database import ManualClock
from rulegen_dagster.ledger.outbox import Acceptance
from rulegen_dagster.ledger.reads import JobRecord
from rulegen_dagster.ledger.recoveries import WORKER_LOST
from rulegen_dagster.settings import Settings
from rulegen_dagster.workflow.drive import GENERATING_STAGES, drive
from rulegen_dagster.workflow.explain import reason_of
from rulegen_dagster.workflow.intake import submit_upload
from rulegen_dagster.workflow.mirror import HOLD_MS, mirror
from rulegen_dagster.workflow.publish import publish_with_others, published_path, verify_bundle
from rulegen_dagster.workflow.runtime import Runtime, open_runtime
from rulegen_dagster.workflow.stopping import WORKER_STOPPED, Stop

TENANT = "chaos"
BYSTANDER = JobName(tenant="chaos-bystander", submission_key="untouched")
CANCELLED, EXPIRED, SUCCESSOR = "cancelled", "expired", "successor"
OTHER_JOBS = (CANCELLED, EXPIRED, SUCCESSOR)
LEASE_MS = 500
VOCABULARY = "expense"
FILE_NAME = "chaos-policy.md"
POLICY = b"""# Expenses

- Lodging always requires an itemized receipt.
- Client meals may not exceed $120 per person.
- Training courses must be useful to somebody.
- First-class flights are not reimbursable.
"""
FAULTS: dict[str, list[Any]] = {
    "generate_rules/rule-02": [{"do": "error", "kind": "retryable"}, "ok"],
    "generate_tests/rule-04": [{"do": "malformed"}, "ok"],
}
REJECTED_ONCE: dict[str, list[Any]] = {"generate_tests/rule-01": [{"do": "error", "kind": "permanent"}, "ok"]}
"""A fault that only a person's redrive gets over."""
EXPECTED_CODES = frozenset(
    {
        "provider_unavailable",
        "provider_rejected",
        "invalid_json",
        "lease_expired",
        "stale_claim",
        WORKER_LOST,
        WORKER_STOPPED,
    }
)
"""What an attempt of this job may end with; anything else was booked under a wrong name."""

_JOURNAL = "calls.log"
_EVIDENCE = "evidence.jsonl"
_CELL = struct.Struct("q")
_MOST_SLEEPS = 60
_EVENTS = "events.log"
_MOST_EVENTS = 100


class SharedClock(ManualClock):
    """A clock that stands still until a process sets it; every process that was forked from this one sees that."""

    def __init__(self, now_ms: int) -> None:
        """Start at `now_ms`."""
        self._cell = mmap.mmap(-1, _CELL.size)
        self._sleeps = 0
        super().__init__(now_ms)

    @property
    def now_ms(self) -> int:
        """The time, in ms."""
        return int(_CELL.unpack_from(self._cell)[0])

    @now_ms.setter
    def now_ms(self, now_ms: int) -> None:
        _CELL.pack_into(self._cell, 0, now_ms)

    def sleep(self, seconds: float) -> None:
        """Let the time pass without waiting for it. Raises `StateError` in a process that does little else."""
        self._sleeps += 1
        if self._sleeps > _MOST_SLEEPS:
            raise StateError("the job waits and waits", code="no_progress")
        self.now_ms += int(seconds * 1000) + 1


@dataclass(frozen=True, kw_only=True)
class Call:
    """One line of the provider's journal."""

    job: str
    stage: str
    item: str
    attempt: int


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The job as one process found it: every row, the calls so far, and the reason that `status` gives.

    `rows` is empty while no job was committed. `others` are the rows of the run's other jobs, as far as they exist.
    """

    rows: Rows
    calls: int
    state: str | None
    reason_code: str | None
    reason: str | None
    others: dict[str, Rows] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Ending:
    """What the last process of a run found after it had finished the job, beside its snapshot."""

    same_job: bool
    conflict: bool
    bundles: tuple[str, ...]
    left_overs: tuple[str, ...]
    manifest: str | None
    bundle_error: str | None
    events: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Scene:
    """The place of one run: its ledger, its folder, its job's key, and the clock that its processes share.

    `delay_ms` is how long a call takes; `faults` tells whether the provider fails where `FAULTS` says. With `locks`, a
    worker that is lost is proven dead by its lock; without, by its lease alone. With `endings`, the run has other jobs
    beside its own, which end in other ways, and its own has to be redriven and fails at its first publication.
    """

    url: str
    home: Path
    key: str
    clock: SharedClock
    slots: int = 2
    delay_ms: int = 0
    faults: bool = True
    locks: bool = True
    endings: bool = False

    @property
    def is_slow(self) -> bool:
        """Whether a call takes so long that its lease is renewed meanwhile."""
        return self.delay_ms > LEASE_MS // 3

    @property
    def name(self) -> JobName:
        """The job of this run."""
        return JobName(tenant=TENANT, submission_key=self.key)

    @property
    def others(self) -> dict[str, JobName]:
        """The other jobs of this run, by what becomes of them."""
        kinds = OTHER_JOBS if self.endings else ()
        return {kind: JobName(tenant=TENANT, submission_key=f"{self.key}-{kind}") for kind in kinds}

    @property
    def obstacle(self) -> Path:
        """A file that stands, at first, where the folder of the tenant's bundles belongs."""
        return self.home / "published" / TENANT

    def prepare(self) -> None:
        """Make the folder with its script."""
        self.home.mkdir(parents=True)
        step = {"do": "ok", "delay_ms": self.delay_ms}
        # JSON is YAML.
        faults = {**(FAULTS if self.faults else {}), **(REJECTED_ONCE if self.endings else {})}
        script = {"items": faults, "default": [step], "journal": _JOURNAL}
        (self.home / "script.yaml").write_text(json.dumps(script), encoding="utf-8")
        if self.endings:
            self.obstacle.parent.mkdir()
            self.obstacle.touch()

    def open(self) -> Runtime:
        """Open a runtime of a process of this run."""
        settings = Settings(
            home=self.home,
            database_url=self.url,
            provider="rulegen-scripted",
            script=self.home / "script.yaml",
            slots=self.slots,
            lease_ms=LEASE_MS,
            # Everything is named here: the environment of whoever calls must not change what is examined.
            vocabulary=VOCABULARY,
            call_timeout_ms=60_000,
            max_attempts=6,
            first_retry_ms=1_000,
            max_retry_ms=8_000,
            max_upload_bytes=100_000,
        )
        return replace(open_runtime(settings, clock=self.clock, locks=self.locks), jitter=lambda: 0.5)

    def calls(self) -> list[Call]:
        """Return the calls that the provider saw so far, over all processes."""
        path = self.home / _JOURNAL
        if not path.exists():
            return []
        lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
        return [Call(job=job, stage=stage, item=item, attempt=int(n)) for job, stage, item, n, *_ in lines]

    def tell(self, kind: str, content: dict[str, Any]) -> None:
        """Leave a word for the parent process."""
        with (self.home / _EVIDENCE).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": kind, "pid": os.getpid(), "content": content}) + "\n")

    def told(self, kind: str) -> list[dict[str, Any]]:
        """Return what the processes of this run left, in order."""
        path = self.home / _EVIDENCE
        if not path.exists():
            return []
        words = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return [word["content"] for word in words if word["kind"] == kind]


class FileLog:
    """An event log that the run's processes share: one line for each event, `<job> <stage> <item> <digest>`."""

    def __init__(self, scene: Scene) -> None:
        """Keep the log in the run's folder."""
        self._path = scene.home / _EVENTS

    def unfinished(self, run_ids: Collection[str]) -> Collection[str]:  # noqa: ARG002 (no Dagster run is here)
        """Return nothing: no run writes events of its own."""
        return ()

    def missing(self, acceptances: Sequence[Acceptance]) -> list[Acceptance]:
        """Return those without a line."""
        lines = set(self.lines())
        return [acceptance for acceptance in acceptances if _line(acceptance) not in lines]

    def write(self, acceptance: Acceptance) -> None:
        """Append one line."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(_line(acceptance) + "\n")

    def lines(self) -> list[str]:
        """Return every line, in order."""
        return self._path.read_text(encoding="utf-8").splitlines() if self._path.exists() else []


def _line(acceptance: Acceptance) -> str:
    return f"{acceptance.job} {acceptance.key.stage} {acceptance.key.item_key} {acceptance.digest}"


def snapshot(scene: Scene, runtime: Runtime) -> Snapshot:
    """Return the run's job as it stands."""
    calls, others = len(scene.calls()), _rows_of_others(scene, runtime)
    try:
        job = runtime.ledger.reads.job(scene.name)
    except JobNotFoundError:
        return Snapshot(rows={}, calls=calls, state=None, reason_code=None, reason=None, others=others)
    reason = reason_of(runtime, job)
    return Snapshot(
        rows=audit_job(runtime.ledger.database, job.job_id),
        calls=calls,
        state=job.state.value,
        reason_code=reason.code,
        reason=reason.text,
        others=others,
    )


def _rows_of_others(scene: Scene, runtime: Runtime) -> dict[str, Rows]:
    found = {job.name: job.job_id for job in runtime.ledger.reads.jobs(tenant=TENANT)} if scene.others else {}
    return {
        kind: audit_job(runtime.ledger.database, found[name]) for kind, name in scene.others.items() if name in found
    }


def complete(scene: Scene, runtime: Runtime) -> JobRecord:
    """Take the run's job from wherever it stands to its published bundle."""
    job = submit(scene, runtime)
    if scene.is_slow:
        # Told to stop while calls are in flight, it gives them back; the job goes on below as after a restart.
        stop = Stop(grace_ms=0)
        sleep = scene.clock.sleep
        drive(runtime, job, observe=lambda _: stop.request(), on_wait=lambda _: None, sleep=sleep, stop=stop)
    job = go_on(scene, runtime, job)
    if job.state is JobState.AWAITING_CONFIRMATION:
        runtime.ledger.actions.confirm(job.job_id, str(job.action_set_digest), actor="chaos")
        job = runtime.ledger.reads.job_by_id(job.job_id)
    if job.state is JobState.EXECUTING:
        try:
            publish_with_others(runtime, job, sleep=scene.clock.sleep)
        except PublishError:
            if not scene.endings:
                raise
            # It may be gone already: another process went on while this one stood still.
            if scene.obstacle.is_file():
                scene.obstacle.unlink()
            publish_with_others(runtime, job, sleep=scene.clock.sleep)
    mirror_all(scene, runtime)
    return runtime.ledger.reads.job_by_id(job.job_id)


def go_on(scene: Scene, runtime: Runtime, job: JobRecord) -> JobRecord:
    """Drive a job until a person has to decide, and give new attempts to whatever failed for good on the way."""
    while True:
        job = drive(runtime, job, observe=lambda _: None, on_wait=lambda _: None, sleep=scene.clock.sleep)
        failed = [
            stage
            for stage in GENERATING_STAGES
            if any(item.state is WorkState.FAILED for item in runtime.ledger.reads.items(job.job_id, stage))
        ]
        if not failed or job.state in TERMINAL_JOB_STATES:
            return job
        for stage in failed:
            runtime.ledger.redrives.redrive(job.job_id, stage, None, actor="chaos", reason="the provider was mended")


def mirror_all(scene: Scene, runtime: Runtime) -> None:
    """Write the event of each accepted output into the run's log."""
    while runtime.ledger.outbox.unmirrored():
        if mirror(runtime, FileLog(scene), limit=_MOST_EVENTS).left:
            # Held by a process that was lost, or that stands still.
            scene.clock.sleep(HOLD_MS / 1_000)


def submit(scene: Scene, runtime: Runtime, *, tenant: str = TENANT) -> JobRecord:
    """Submit the run's policy under the run's key."""
    return submit_upload(runtime, POLICY, FILE_NAME, tenant=tenant, key=scene.key, actor="chaos").job


def ending(scene: Scene, runtime: Runtime, job: JobRecord) -> Ending:
    """Look at what the finished job left, and submit it twice more: as it was, and with another input."""
    again = submit_upload(runtime, POLICY, FILE_NAME, tenant=TENANT, key=scene.key, actor="chaos")
    try:
        submit_upload(runtime, POLICY + b"\n", FILE_NAME, tenant=TENANT, key=scene.key, actor="chaos")
        conflict = False
    except SubmissionConflictError:
        conflict = True
    folder = runtime.settings.published_path / TENANT / job.ruleset
    found = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    manifest, error = None, None
    path = published_path(runtime, job)
    try:
        if path is not None:
            files = json.loads(runtime.ledger.reads.action_set(job.job_id, str(job.action_set_digest)))["files"]
            manifest = verify_bundle(path, str(job.action_set_digest), confirmed=files)
    except PublishError as problem:
        error = problem.message
    return Ending(
        same_job=again.existing and again.job.job_id == job.job_id,
        conflict=conflict,
        bundles=tuple(name for name in found if not name.startswith(".")),
        left_overs=tuple(name for name in found if name.startswith(".")),
        manifest=manifest,
        bundle_error=error,
        events=tuple(FileLog(scene).lines()),
    )


def fingerprint(rows: Rows) -> str:
    """Return one digest of every row."""
    return sha256_hex(canonical_json(rows))
