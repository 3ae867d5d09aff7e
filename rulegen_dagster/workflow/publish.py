"""Publishing: a confirmed action set becomes an immutable bundle, once.

The bundle is written beside its place and moved there by one rename, under a name that its action set determines. A
publisher that was lost on the way leaves either nothing or the whole bundle, and the next one looks before it writes.
"""

import contextlib
import errno
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rulegen_dagster.domain.canonical import canonical_json, sha256_hex
from rulegen_dagster.domain.errors import PublishError
from rulegen_dagster.domain.failpoints import Failpoint, reach
from rulegen_dagster.domain.states import ActionState, JobState, Stage
from rulegen_dagster.ledger.actions import ActionClaim, Decision
from rulegen_dagster.ledger.reads import JobRecord
from rulegen_dagster.telemetry.semconv import Key
from rulegen_dagster.workflow.behaviours import OTHER_RELEASE, check, held_up_by
from rulegen_dagster.workflow.bundle import BUNDLE_FORMAT, accepted_report, build_bundle, clause_entries
from rulegen_dagster.workflow.limits import LIMIT, limit_text
from rulegen_dagster.workflow.outages import ride_out
from rulegen_dagster.workflow.recover import free_lost_work
from rulegen_dagster.workflow.runtime import Runtime
from rulegen_dagster.workflow.stopping import Stop
from rulegen_dagster.workflow.traces import publication_traced

MANIFEST = "manifest.json"
CONFIRMATION = "confirmation.json"
LEASED, STALE = "leased", "stale"
_HELD = frozenset({LEASED, STALE, LIMIT})
_POLL_S = 0.2
_TAKEN_OVER = "another publisher took the action over; it finishes it"
_PARTIAL = ".partial"


@dataclass(frozen=True, kw_only=True)
class Published:
    """A published bundle; `reused` tells that it was there already."""

    path: Path
    manifest_digest: str
    reused: bool


@dataclass(frozen=True, kw_only=True)
class NothingToPublish:
    """Why there is nothing to publish now."""

    code: str
    reason: str


def publish(runtime: Runtime, job: JobRecord) -> Published | NothingToPublish:
    """Publish a job whose action set is confirmed; a second call finds it done and changes nothing.

    Raises `PublishError` where the bundle cannot be written, or where what would be written is not what was
    confirmed. The action is then `unknown` and the next call reconciles it.

    Through an outage of the ledger each step is tried again by itself, while the lease may hold: a bundle that is there
    is never written twice, and a receipt that had landed is found. Raises `LedgerError` where it lasts longer; the
    lease then passes, and the next publisher finds the bundle as far as it got.
    """
    actions = runtime.ledger.actions
    done = ride_out(lambda: published_path(runtime, job))
    if done is not None:
        receipt = ride_out(lambda: runtime.ledger.reads.actions(job.job_id))[0].receipt or {}
        return Published(path=done, manifest_digest=str(receipt.get("manifest_sha256")), reused=True)
    checked = ride_out(lambda: check(runtime, job.job_id))
    if not checked.may_go_on:
        held_up = ride_out(lambda: held_up_by(runtime, checked))
        return NothingToPublish(code=LEASED if held_up.code == OTHER_RELEASE else held_up.code, reason=held_up.text)
    # A claim whose answer was lost is left to its lease, and the next one finds the action taken.
    claim = ride_out(lambda: actions.claim(job.job_id, token=runtime.tokens(), claimant=runtime.claimant))
    if claim is None and ride_out(lambda: free_lost_work(runtime)).actions:
        claim = ride_out(lambda: actions.claim(job.job_id, token=runtime.tokens(), claimant=runtime.claimant))
    if claim is None:
        return ride_out(lambda: _why_not(runtime, job))
    with publication_traced(runtime, job.job_id, str(job.name)) as span:
        published = _publish_claimed(runtime, job, claim)
        if isinstance(published, Published):
            span.set({Key.REUSED: published.reused})
        else:
            span.fail(published.code)
    return published


def _publish_claimed(runtime: Runtime, job: JobRecord, claim: ActionClaim) -> Published | NothingToPublish:
    actions, lease_s = runtime.ledger.actions, runtime.settings.lease_ms / 1000
    decision = ride_out(lambda: actions.decision(job.job_id, claim.action_set_digest), patience_s=lease_s)
    if decision is None or decision.decision != "confirmed":
        raise PublishError("the action set has no confirmation", code="not_confirmed")
    target = bundle_path(runtime, job, claim.action_set_digest)
    try:
        reused = target.exists()
        if not reused:
            ride_out(lambda: _write(runtime, job, claim, decision, target), patience_s=lease_s)
        _sweep(target)
        manifest_digest = verify_bundle(target, claim.action_set_digest, confirmed=_confirmed_files(claim))
    except (OSError, PublishError) as error:
        if not actions.release(claim, error_code="publish_failed", actor=runtime.worker):
            # Whoever took the action over swept this publisher's unfinished bundle away: that is no failure.
            return NothingToPublish(code=STALE, reason=_TAKEN_OVER)
        if isinstance(error, PublishError):
            raise
        raise PublishError(f"the bundle cannot be written: {error.strerror}") from error
    receipt_text = canonical_json(
        {"path": str(target.relative_to(runtime.settings.published_path)), "manifest_sha256": manifest_digest}
    )
    if not ride_out(lambda: actions.finish(claim, receipt=receipt_text, actor=runtime.worker), patience_s=lease_s):
        return NothingToPublish(code=STALE, reason=_TAKEN_OVER)
    return Published(path=target, manifest_digest=manifest_digest, reused=reused)


def publish_with_others(
    runtime: Runtime, job: JobRecord, *, sleep: Callable[[float], None] = time.sleep, stop: Stop | None = None
) -> Published | NothingToPublish:
    """Publish like `publish`, and wait for another publisher that holds the action: it ends, or its lease does.

    Nothing is waited for once `stop` is requested.
    """
    while True:
        published = publish(runtime, job)
        is_over = stop is not None and stop.is_requested
        if isinstance(published, Published) or published.code not in _HELD or is_over:
            return published
        sleep(_POLL_S)


def bundle_path(runtime: Runtime, job: JobRecord, action_set_digest: str) -> Path:
    """Return where the bundle of an action set belongs."""
    return runtime.settings.published_path / job.name.tenant / job.ruleset / action_set_digest


def published_path(runtime: Runtime, job: JobRecord) -> Path | None:
    """Return where the job's bundle was published, by its receipt; None where it was not."""
    for action in runtime.ledger.reads.actions(job.job_id):
        if action.kind == "publish" and action.state == ActionState.DONE and action.receipt is not None:
            return runtime.settings.published_path / str(action.receipt["path"])
    return None


def verify_bundle(path: Path, action_set_digest: str, *, confirmed: Mapping[str, str]) -> str:
    """Read a bundle back and check it against its manifest and the confirmed digests; return the manifest's digest.

    Raises `PublishError` where a file is missing, added, or differs, or where the bundle is of another action set.
    """
    try:
        manifest_bytes = (path / MANIFEST).read_bytes()
        manifest: dict[str, Any] = json.loads(manifest_bytes)
        found = {file.name: sha256_hex(file.read_bytes()) for file in path.iterdir() if file.name != MANIFEST}
        stated, action_set = manifest["files"], manifest["action_set"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PublishError(f"the bundle at {path} cannot be read back: {type(error).__name__}") from error
    if action_set != action_set_digest or found != stated or found.keys() != {*confirmed, CONFIRMATION}:
        raise PublishError(f"the bundle at {path} is not what its manifest says; move it away and publish again")
    if any(found[name] != digest for name, digest in confirmed.items()):
        raise PublishError(f"the bundle at {path} is not what was confirmed; move it away and publish again")
    return sha256_hex(manifest_bytes)


def left_over_folders(root: Path) -> list[Path]:
    """Return the unfinished bundles below the folder of published ones: being written, or left by a lost publisher."""
    found = root.glob(f"*/*/.*{_PARTIAL}")
    return sorted(folder for folder in found if folder.is_dir() and not folder.is_symlink())


def token_of(left_over: Path) -> str:
    """Return the token of the claim that an unfinished bundle belongs to."""
    return left_over.name.removesuffix(_PARTIAL).rsplit(".", 1)[-1]


def _confirmed_files(claim: ActionClaim) -> dict[str, str]:
    files: dict[str, str] = json.loads(claim.content)["files"]
    return files


def _write(runtime: Runtime, job: JobRecord, claim: ActionClaim, decision: Decision, target: Path) -> None:
    bundle = build_bundle(runtime, job, clause_entries(runtime, job.job_id), str(accepted_report(runtime, job.job_id)))
    if bundle.digests != _confirmed_files(claim):
        raise PublishError(
            "what would be published is not what was confirmed; the bundle's digests differ", code="not_confirmed"
        )
    files = dict(bundle.files)
    files[CONFIRMATION] = canonical_json(
        {
            "action_set": claim.action_set_digest,
            "decision": decision.decision,
            "actor": decision.actor,
            "decided_at_ms": decision.decided_at,
        }
    ).encode()
    manifest = {
        "format": BUNDLE_FORMAT,
        "job": str(job.name),
        "ruleset": job.ruleset,
        "behaviour": job.behaviour_digest,
        "action_set": claim.action_set_digest,
        "files": {name: sha256_hex(data) for name, data in sorted(files.items())},
    }
    files[MANIFEST] = canonical_json(manifest).encode()
    _place(files, target, claim.token)


def _place(files: dict[str, bytes], target: Path, token: str) -> None:
    """Put a bundle in its place, by the rename of a folder that is whole.

    A publisher may come here long after its lease, beside the one that took over. Unfinished folders of others are
    swept away only once the bundle stands: none of them can be renamed to its place any more, however much is left of
    it.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.parent / f".{target.name}.{token}{_PARTIAL}"
    try:
        _write_folder(files, partial)
        partial.rename(target)
    except OSError as error:
        # The next try writes a folder of its own; on a full disk this one would be in its way.
        shutil.rmtree(partial, ignore_errors=True)
        # Another publisher of the same action set was first, and may have swept this folder away; what it wrote is
        # verified like our own.
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT) or not target.exists():
            raise
    reach(Failpoint.BUNDLE_RENAMED)
    _sync_folder(target.parent)


def _write_folder(files: dict[str, bytes], partial: Path) -> None:
    partial.mkdir()
    for name, data in files.items():
        path = partial / name
        with path.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        path.chmod(0o444)
        reach(Failpoint.BUNDLE_FILE_WRITTEN)
    _sync_folder(partial)
    reach(Failpoint.BUNDLE_WRITTEN)


def _sweep(target: Path) -> None:
    for left_over in target.parent.glob(f".{target.name}.*{_PARTIAL}"):
        shutil.rmtree(left_over, ignore_errors=True)


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some file systems cannot sync a folder
            os.fsync(folder)
    finally:
        os.close(folder)


def _why_not(runtime: Runtime, job: JobRecord) -> NothingToPublish:
    state = runtime.ledger.reads.job_by_id(job.job_id).state
    reached = runtime.ledger.limits.reached(job.job_id, Stage.PUBLISH) if state is JobState.EXECUTING else None
    if reached is not None and not reached.of_job:
        text = limit_text("the publication", reached, runtime.ledger.reads.now())
        # Others end in time; a limit of 0 is changed by a person alone.
        return NothingToPublish(code=LIMIT if reached.value else "actions_stopped", reason=text)
    if state is JobState.EXECUTING:
        return NothingToPublish(code=LEASED, reason="another publisher holds the action's lease")
    return NothingToPublish(
        code="not_confirmed", reason=f"the job is {state}; a ruleset is published after its action set is confirmed"
    )
