import errno
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier, Event
from typing import Any

import pytest

from rulegen_dagster.domain.canonical import canonical_json, sha256_hex
from rulegen_dagster.domain.errors import ActionSetMismatchError, PublishError, StateError
from rulegen_dagster.domain.states import ActionState, JobState
from rulegen_dagster.ledger.actions import ActionClaim, Actions, Decision
from rulegen_dagster.ledger.database import ManualClock
from rulegen_dagster.ledger.reads import JobRecord
from rulegen_dagster.ledger.store import Ledger
from rulegen_dagster.providers.port import NOT_A_MODEL
from rulegen_dagster.workflow.explain import reason_of, status_report
from rulegen_dagster.workflow.publish import (
    NothingToPublish,
    Published,
    bundle_path,
    publish,
    publish_with_others,
    published_path,
    verify_bundle,
)
from rulegen_dagster.workflow.runtime import Runtime
from tests.workflow.conftest import OTHER, finish, policy, scripted, submit

FILES = {
    "behaviour.json",
    "confirmation.json",
    "manifest.json",
    "rules.json",
    "sources.json",
    "specification.txt",
    "tests.json",
    "validation_report.json",
}


class LostActions(Actions):
    """Actions of a process that ends between the rename of its bundle and the transaction that stores the receipt."""

    def finish(self, claim: ActionClaim, *, receipt: str, actor: str) -> bool:
        raise KeyboardInterrupt


class MeetingActions(Actions):
    """Actions of a publisher that goes on, `later_s` after they meet, once another one holds a claim too."""

    def __init__(self, runtime: Runtime, both: Barrier, claimed: Callable[[], None], later_s: float) -> None:
        super().__init__(runtime.ledger.database, runtime.ledger.limits)
        self._both, self._claimed, self._later_s = both, claimed, later_s

    def decision(self, job_id: int, digest: str) -> Decision | None:
        found = super().decision(job_id, digest)
        self._claimed()
        self._both.wait(10)
        time.sleep(self._later_s)
        return found


def _ready(runtime: Runtime, clauses: int = 2) -> JobRecord:
    return finish(runtime, submit(runtime, policy(clauses)))


def _confirmed(runtime: Runtime) -> JobRecord:
    job = _ready(runtime)
    runtime.ledger.actions.confirm(job.job_id, str(job.action_set_digest), actor="ann")
    return runtime.ledger.reads.job_by_id(job.job_id)


def _published(runtime: Runtime) -> tuple[JobRecord, Path]:
    job = _confirmed(runtime)
    published = publish(runtime, job)
    assert isinstance(published, Published)
    return runtime.ledger.reads.job_by_id(job.job_id), published.path


def _confirmed_files(runtime: Runtime, job: JobRecord) -> dict[str, str]:
    files: dict[str, str] = json.loads(runtime.ledger.reads.action_set(job.job_id, str(job.action_set_digest)))["files"]
    return files


def _verify(runtime: Runtime, job: JobRecord, path: Path) -> str:
    return verify_bundle(path, str(job.action_set_digest), confirmed=_confirmed_files(runtime, job))


def _action_states(runtime: Runtime, job: JobRecord) -> list[str]:
    return [action.state for action in runtime.ledger.reads.actions(job.job_id)]


def _claim_as_another(runtime: Runtime, job: JobRecord) -> ActionClaim:
    claim = runtime.ledger.actions.claim(job.job_id, token=runtime.tokens(), claimant=OTHER)
    assert claim is not None
    return claim


def _lost_before_its_receipt(runtime: Runtime) -> Runtime:
    ledger = Ledger(runtime.ledger.database, runtime.ledger.policy)
    ledger.actions = LostActions(runtime.ledger.database, runtime.ledger.limits)
    return replace(runtime, ledger=ledger, worker="lost")


def _rewrite(path: Path, data: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(data)


def test_a_published_bundle_holds_everything_that_was_confirmed(runtime: Runtime) -> None:
    job, path = _published(runtime)

    manifest = json.loads((path / "manifest.json").read_bytes())
    rules = json.loads((path / "rules.json").read_bytes())
    tests = json.loads((path / "tests.json").read_bytes())
    sources = json.loads((path / "sources.json").read_bytes())
    confirmation = json.loads((path / "confirmation.json").read_bytes())
    text = (path / "specification.txt").read_text(encoding="utf-8")
    assert job.state is JobState.COMPLETED
    assert path == runtime.settings.published_path / "default" / "policy" / str(job.action_set_digest)
    assert {file.name for file in path.iterdir()} == FILES
    assert manifest["files"] == {name: sha256_hex((path / name).read_bytes()) for name in FILES - {"manifest.json"}}
    assert (manifest["job"], manifest["action_set"]) == ("default/policy", job.action_set_digest)
    assert rules["generated_by"]["label"] == NOT_A_MODEL
    assert [rule["id"] for rule in rules["rules"]] == ["rule-01", "rule-02"]
    assert [len(suite["tests"]) >= 3 for suite in tests["suites"]] == [True, True]
    assert all(text[clause["start"] : clause["end"]] == clause["text"] for clause in sources["clauses"])
    assert (confirmation["actor"], confirmation["decision"]) == ("ann", "confirmed")
    assert json.loads((path / "validation_report.json").read_bytes())["passed"] is True
    assert sha256_hex((path / "behaviour.json").read_bytes()) == job.behaviour_digest


def test_every_json_file_of_a_bundle_is_canonical(local_runtime: Runtime) -> None:
    _, path = _published(local_runtime)

    texts = {file.name: file.read_text(encoding="utf-8") for file in path.glob("*.json")}

    assert {name: canonical_json(json.loads(text)) for name, text in texts.items()} == texts


def test_the_action_set_is_the_hash_of_what_a_person_reads(local_runtime: Runtime) -> None:
    job = _ready(local_runtime)

    content = local_runtime.ledger.reads.action_set(job.job_id, str(job.action_set_digest))

    shown: dict[str, Any] = json.loads(content)
    assert sha256_hex(content) == job.action_set_digest
    assert shown["actions"] == [{"kind": "publish", "target": "default/policy"}]
    assert set(shown["files"]) == FILES - {"manifest.json", "confirmation.json"}


def test_equal_jobs_have_equal_files_and_an_action_set_of_their_own(local_runtime: Runtime) -> None:
    one = finish(local_runtime, submit(local_runtime, policy(2), key="one"))
    other = finish(local_runtime, submit(local_runtime, policy(2), key="other"))

    assert _confirmed_files(local_runtime, one) == _confirmed_files(local_runtime, other)
    assert one.action_set_digest != other.action_set_digest


@pytest.mark.parametrize("digest", ["", "0" * 64, "the wrong one"])
def test_any_other_hash_than_the_jobs_own_is_refused(local_runtime: Runtime, digest: str) -> None:
    job = _ready(local_runtime)

    with pytest.raises(ActionSetMismatchError) as caught:
        local_runtime.ledger.actions.confirm(job.job_id, digest, actor="ann")

    assert caught.value.code == "action_set_mismatch"
    assert local_runtime.ledger.reads.job_by_id(job.job_id).state is JobState.AWAITING_CONFIRMATION
    assert _action_states(local_runtime, job) == [ActionState.PROPOSED]


def test_the_hash_of_an_earlier_edition_confirms_nothing(local_runtime: Runtime) -> None:
    earlier = finish(local_runtime, submit(local_runtime, policy(2), key="earlier"))
    later = finish(local_runtime, submit(local_runtime, policy(3), key="later"))

    with pytest.raises(ActionSetMismatchError):
        local_runtime.ledger.actions.confirm(later.job_id, str(earlier.action_set_digest), actor="ann")

    assert _action_states(local_runtime, later) == [ActionState.PROPOSED]


def test_a_job_that_awaits_no_confirmation_cannot_be_confirmed(local_runtime: Runtime) -> None:
    job = submit(local_runtime, policy(1))

    with pytest.raises(StateError) as caught:
        local_runtime.ledger.actions.confirm(job.job_id, "0" * 64, actor="ann")

    assert caught.value.code == "wrong_state"


def test_a_second_confirmation_changes_nothing(runtime: Runtime) -> None:
    job = _ready(runtime)

    first = runtime.ledger.actions.confirm(job.job_id, str(job.action_set_digest), actor="ann")
    revision = runtime.ledger.reads.revision(job.job_id)
    second = runtime.ledger.actions.confirm(job.job_id, str(job.action_set_digest), actor="bob")

    decision = runtime.ledger.actions.decision(job.job_id, str(job.action_set_digest))
    assert (first, second) == (True, False)
    assert runtime.ledger.reads.revision(job.job_id) == revision
    assert decision is not None
    assert decision.actor == "ann"


def test_a_rejected_job_is_over_and_keeps_the_reason(runtime: Runtime) -> None:
    job = _ready(runtime)

    runtime.ledger.actions.reject(job.job_id, actor="ann", reason="superseded")

    rejected = runtime.ledger.reads.job_by_id(job.job_id)
    assert (rejected.state, rejected.end_reason) == (JobState.CANCELLED, "superseded")
    assert _action_states(runtime, job) == [ActionState.FAILED]
    with pytest.raises(StateError):
        runtime.ledger.actions.confirm(job.job_id, str(job.action_set_digest), actor="ann")
    with pytest.raises(StateError):
        runtime.ledger.actions.reject(job.job_id, actor="ann", reason="again")
    assert isinstance(publish(runtime, rejected), NothingToPublish)


def test_a_job_whose_validation_failed_can_be_rejected(local_runtime: Runtime) -> None:
    job = finish(local_runtime, submit(local_runtime, b"The committee must act with due care.\n"))

    local_runtime.ledger.actions.reject(job.job_id, actor="ann", reason="nothing in it")

    assert local_runtime.ledger.reads.job_by_id(job.job_id).state is JobState.CANCELLED


def test_a_job_in_the_middle_of_its_work_cannot_be_rejected(local_runtime: Runtime) -> None:
    job = submit(local_runtime, policy(1))

    with pytest.raises(StateError):
        local_runtime.ledger.actions.reject(job.job_id, actor="ann", reason="no")


def test_nothing_is_published_without_a_confirmation(local_runtime: Runtime) -> None:
    job = _ready(local_runtime)

    answer = publish(local_runtime, job)

    assert isinstance(answer, NothingToPublish)
    assert answer.code == "not_confirmed"
    assert not local_runtime.settings.published_path.exists()


def test_a_second_publication_finds_it_done(runtime: Runtime) -> None:
    job, path = _published(runtime)
    before = {file.name: (file.stat().st_mtime_ns, file.read_bytes()) for file in path.iterdir()}
    revision = runtime.ledger.reads.revision(job.job_id)

    again = publish(runtime, job)

    assert isinstance(again, Published)
    assert (again.path, again.reused) == (path, True)
    assert again.manifest_digest == sha256_hex((path / "manifest.json").read_bytes())
    assert {file.name: (file.stat().st_mtime_ns, file.read_bytes()) for file in path.iterdir()} == before
    assert runtime.ledger.reads.revision(job.job_id) == revision


def test_a_bundle_reads_back_as_what_was_confirmed(local_runtime: Runtime) -> None:
    job, path = _published(local_runtime)

    assert _verify(local_runtime, job, path) == sha256_hex((path / "manifest.json").read_bytes())


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_file_that_was_changed_afterwards_is_found(local_runtime: Runtime, name: str) -> None:
    job, path = _published(local_runtime)
    _rewrite(path / name, (path / name).read_bytes() + b" ")
    if name == "manifest.json":
        manifest = json.loads((path / name).read_bytes())
        _rewrite(path / name, canonical_json({**manifest, "action_set": "0" * 64}).encode())

    with pytest.raises(PublishError) as caught:
        _verify(local_runtime, job, path)

    assert caught.value.code == "publish_failed"


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_file_that_is_missing_is_found(local_runtime: Runtime, name: str) -> None:
    job, path = _published(local_runtime)
    (path / name).unlink()

    with pytest.raises(PublishError):
        _verify(local_runtime, job, path)


def test_a_file_that_was_added_is_found(local_runtime: Runtime) -> None:
    job, path = _published(local_runtime)
    (path / "extra.json").write_bytes(b"{}")

    with pytest.raises(PublishError):
        _verify(local_runtime, job, path)


def test_a_file_that_was_changed_together_with_its_manifest_is_found(local_runtime: Runtime) -> None:
    job, path = _published(local_runtime)
    changed = (path / "rules.json").read_bytes().replace(b"5000", b"9000")
    _rewrite(path / "rules.json", changed)
    manifest = json.loads((path / "manifest.json").read_bytes())
    manifest["files"]["rules.json"] = sha256_hex(changed)
    _rewrite(path / "manifest.json", canonical_json(manifest).encode())

    with pytest.raises(PublishError, match="not what was confirmed"):
        _verify(local_runtime, job, path)


@pytest.mark.parametrize("manifest", [b"", b"[]", b"null", b"{}", b'{"files": 5, "action_set": ""}', b"\xff"], ids=repr)
def test_a_manifest_that_cannot_be_read_is_found(local_runtime: Runtime, manifest: bytes) -> None:
    job, path = _published(local_runtime)
    _rewrite(path / "manifest.json", manifest)

    with pytest.raises(PublishError):
        _verify(local_runtime, job, path)


def test_a_publisher_that_was_lost_after_the_rename_is_found_done_by_the_next_one(
    runtime: Runtime, clock: ManualClock
) -> None:
    job = _confirmed(runtime)
    with pytest.raises(KeyboardInterrupt):
        publish(_lost_before_its_receipt(runtime), job)
    target = bundle_path(runtime, job, str(job.action_set_digest))
    written = {file.name: file.stat().st_mtime_ns for file in target.iterdir()}

    early = publish(runtime, job)
    clock.now_ms += 1_000
    late = publish(runtime, job)

    assert isinstance(early, NothingToPublish)
    assert early.code == "leased"
    assert isinstance(late, Published)
    assert late.reused
    assert {file.name: file.stat().st_mtime_ns for file in target.iterdir()} == written
    assert runtime.ledger.reads.job_by_id(job.job_id).state is JobState.COMPLETED


def test_a_publisher_that_was_lost_while_it_wrote_leaves_nothing_that_counts(
    local_runtime: Runtime, clock: ManualClock
) -> None:
    job = _confirmed(local_runtime)
    _claim_as_another(local_runtime, job)
    target = bundle_path(local_runtime, job, str(job.action_set_digest))
    left_over = target.parent / f".{target.name}.lost.partial"
    left_over.mkdir(parents=True)
    (left_over / "rules.json").write_bytes(b"{")
    clock.now_ms += 1_000

    published = publish(local_runtime, job)

    assert isinstance(published, Published)
    assert not published.reused
    assert [path.name for path in target.parent.iterdir()] == [target.name]


@pytest.mark.parametrize("later_ms", [0, 1, 2, 3, 4, 6, 8, 10])
def test_a_publisher_that_stood_still_and_the_one_that_took_over_leave_one_whole_bundle(
    local_runtime: Runtime, clock: ManualClock, later_ms: int
) -> None:
    """Both write at once; whichever moves its folder last finds the other's in its place."""
    job = _confirmed(local_runtime)
    both, lease_has_passed = Barrier(2), Event()

    def let_lease_pass() -> None:
        clock.now_ms += 1_000
        lease_has_passed.set()

    def published(worker: str, claimed: Callable[[], None], later_s: float) -> Published | NothingToPublish:
        ledger = Ledger(local_runtime.ledger.database, local_runtime.ledger.policy)
        ledger.actions = MeetingActions(local_runtime, both, claimed, later_s)
        return publish(replace(local_runtime, ledger=ledger, worker=worker), job)

    with ThreadPoolExecutor(2) as pool:
        stood_still = pool.submit(published, "slow", let_lease_pass, 0)
        assert lease_has_passed.wait(10)
        took_over = pool.submit(published, "next", lambda: None, later_ms / 1_000)
        outcomes = [stood_still.result(20), took_over.result(20)]

    target = bundle_path(local_runtime, job, str(job.action_set_digest))
    assert {file.name for file in target.iterdir()} == FILES
    assert {outcome.path for outcome in outcomes if isinstance(outcome, Published)} == {target}
    assert [path.name for path in target.parent.iterdir()] == [target.name]
    assert local_runtime.ledger.reads.job_by_id(job.job_id).state is JobState.COMPLETED


def test_a_publisher_whose_lease_passed_does_not_complete_the_job(local_runtime: Runtime, clock: ManualClock) -> None:
    job = _confirmed(local_runtime)
    claim = _claim_as_another(local_runtime, job)
    clock.now_ms += 1_000

    landed = local_runtime.ledger.actions.finish(claim, receipt='{"path":"x"}', actor="slow")

    assert not landed
    assert local_runtime.ledger.reads.job_by_id(job.job_id).state is JobState.EXECUTING
    assert published_path(local_runtime, job) is None


def test_a_disk_that_cannot_be_written_leaves_an_unknown_action_that_the_next_publisher_finishes(
    runtime: Runtime,
) -> None:
    job = _confirmed(runtime)
    blocked = runtime.settings.published_path
    blocked.write_bytes(b"a file in place of the folder")

    with pytest.raises(PublishError) as caught:
        publish(runtime, job)
    states, reason = _action_states(runtime, job), reason_of(runtime, job)
    blocked.unlink()
    published = publish(runtime, job)

    assert caught.value.code == "publish_failed"
    assert states == [ActionState.UNKNOWN]
    assert reason.code == "publish_unknown"
    assert "publish_failed" in reason.text
    assert isinstance(published, Published)
    assert runtime.ledger.reads.job_by_id(job.job_id).state is JobState.COMPLETED


def test_a_disk_that_is_full_holds_nothing_of_a_bundle_that_did_not_fit(
    local_runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = _confirmed(local_runtime)
    target = bundle_path(local_runtime, job, str(job.action_set_digest))

    def full(_number: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", full)
        with pytest.raises(PublishError, match="No space left"):
            publish(local_runtime, job)

    assert list(target.parent.iterdir()) == []
    assert isinstance(publish(local_runtime, job), Published)


def test_something_else_in_the_bundles_place_is_never_taken_for_it(local_runtime: Runtime) -> None:
    job = _confirmed(local_runtime)
    target = bundle_path(local_runtime, job, str(job.action_set_digest))
    target.mkdir(parents=True)
    files = {"rules.json": b"{}"}
    manifest = {
        "action_set": job.action_set_digest,
        "files": {name: sha256_hex(data) for name, data in files.items()},
    }
    for name, data in {**files, "manifest.json": canonical_json(manifest).encode()}.items():
        (target / name).write_bytes(data)

    with pytest.raises(PublishError):
        publish(local_runtime, job)

    assert _action_states(local_runtime, job) == [ActionState.UNKNOWN]
    assert local_runtime.ledger.reads.job_by_id(job.job_id).state is JobState.EXECUTING


def test_a_waiting_publisher_goes_on_when_the_other_ones_lease_has_passed(
    local_runtime: Runtime, clock: ManualClock
) -> None:
    job = _confirmed(local_runtime)
    _claim_as_another(local_runtime, job)
    reasons: list[str] = []

    def sleep(_seconds: float) -> None:
        reasons.append(reason_of(local_runtime, job).code)
        clock.now_ms += 600

    published = publish_with_others(local_runtime, job, sleep=sleep)

    assert isinstance(published, Published)
    assert reasons == ["publishing", "publishing"]


def test_a_bundles_files_cannot_be_written_by_accident(local_runtime: Runtime) -> None:
    _, path = _published(local_runtime)

    assert {file.stat().st_mode & 0o222 for file in path.iterdir()} == {0}


def test_a_job_can_be_read_and_published_when_its_script_is_gone(local_runtime: Runtime) -> None:
    runtime = scripted(local_runtime, {})
    job = _confirmed(runtime)
    (runtime.settings.home_path / "script.yaml").unlink()

    published = publish(runtime, job)

    assert isinstance(published, Published)
    assert status_report(runtime, job)["provider_label"] == NOT_A_MODEL
