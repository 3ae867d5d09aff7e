import itertools
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from upath import UPath

from rulegen_dagster.domain.canonical import sha256_hex
from rulegen_dagster.ledger.blobs import BlobStore, StoredFile
from rulegen_dagster.ledger.references import BLOB_COLUMNS, hold_blob_names
from rulegen_dagster.ledger.schema import metadata
from rulegen_dagster.workflow.collect import Kind, Removed, collect, collection_report
from rulegen_dagster.workflow.publish import publish
from rulegen_dagster.workflow.runtime import Runtime
from tests.workflow.conftest import OTHER, finish, policy, stored_blobs, submit

LONG_AGO_S = 1_000
NOW_MS = 100_000_000
HELD = "held"
GRACE_MS = 3_600_000
OTHER_DIGESTS = {
    "action.action_set_digest",
    "action_set.digest",
    "attempt.output_digest",
    "behaviour.digest",
    "behaviour_prompt.behaviour_digest",
    "behaviour_prompt.prompt_digest",
    "confirmation.action_set_digest",
    "job.action_set_digest",
    "job.behaviour_digest",
    "job_behaviour.from_digest",
    "job_behaviour.to_digest",
    "pack.digest",
    "prompt.digest",
    "work_item.output_digest",
}
"""Digests of what a row holds itself."""


class BusyStore(BlobStore):
    """A store in which something happens right after a collection has listed it."""

    def __init__(self, root: UPath, meanwhile: Callable[[], object]) -> None:
        super().__init__(root)
        self._meanwhile = meanwhile

    def files(self) -> Iterator[StoredFile]:
        listed = list(super().files())
        self._meanwhile()
        return iter(listed)


def _orphan(runtime: Runtime, data: bytes = b"orphan") -> str:
    """Store a blob that no row names, and that has lain there for long."""
    digest = runtime.blobs.put(data)
    os.utime(_path(runtime, digest), (LONG_AGO_S, LONG_AGO_S))
    return digest


def _path(runtime: Runtime, digest: str) -> Path:
    return runtime.settings.blobs_path / digest[:2] / digest


def _age_everything(runtime: Runtime) -> None:
    for path in (*stored_blobs(runtime), *runtime.settings.published_path.rglob("*")):
        os.utime(path, (LONG_AGO_S, LONG_AGO_S))


def _collect(runtime: Runtime, *, dry_run: bool = False) -> tuple[Removed, ...]:
    return tuple(collect(runtime, grace_ms=GRACE_MS, now_ms=NOW_MS, dry_run=dry_run))


def _left_over_bundle(runtime: Runtime, token: str) -> Path:
    digest = sha256_hex(b"action set")
    folder = runtime.settings.published_path / "default" / "policy" / f".{digest}.{token}.partial"
    folder.mkdir(parents=True)
    (folder / "rules.json").write_bytes(b"{}")
    os.utime(folder, (LONG_AGO_S, LONG_AGO_S))
    return folder


def test_an_orphan_past_its_grace_is_removed_and_told_with_its_size(runtime: Runtime) -> None:
    digest = _orphan(runtime, b"orphan")

    removed = _collect(runtime)

    assert removed == (Removed(kind=Kind.BLOB, name=f"{digest[:2]}/{digest}", size=6),)
    assert stored_blobs(runtime) == []
    assert _collect(runtime) == ()


def test_an_orphan_within_its_grace_stays(runtime: Runtime) -> None:
    digest = runtime.blobs.put(b"orphan")
    within_s = (NOW_MS - GRACE_MS) // 1000 + 1
    os.utime(_path(runtime, digest), (within_s, within_s))

    removed = _collect(runtime)

    assert removed == ()
    assert runtime.blobs.get(digest) == b"orphan"


def test_what_a_row_names_stays_however_old_it_is(runtime: Runtime) -> None:
    job = finish(runtime, submit(runtime, policy(2).replace(b"\n", b"\r\n")))
    runtime.ledger.actions.confirm(job.job_id, str(job.action_set_digest), actor="ann")
    publish(runtime, job)
    _age_everything(runtime)
    before = stored_blobs(runtime)

    removed = _collect(runtime)

    assert removed == ()
    assert {path.name for path in before} == {job.spec_digest, job.canonical_digest}
    assert stored_blobs(runtime) == before
    assert publish(runtime, job)


def test_a_blob_that_was_never_finished_is_removed(local_runtime: Runtime) -> None:
    digest = _orphan(local_runtime)
    path = _path(local_runtime, digest)
    partial = path.rename(path.with_name(f"{digest}.12-34.partial"))

    removed = _collect(local_runtime)

    assert [(one.kind, one.size) for one in removed] == [(Kind.PARTIAL_BLOB, 6)]
    assert not partial.exists()


def test_a_bundle_that_was_never_finished_is_removed_unless_its_publisher_holds_the_action(runtime: Runtime) -> None:
    job = finish(runtime, submit(runtime, policy(1)))
    runtime.ledger.actions.confirm(job.job_id, str(job.action_set_digest), actor="ann")
    runtime.ledger.actions.claim(job.job_id, token=HELD, claimant=OTHER)
    lost, held = _left_over_bundle(runtime, "lost"), _left_over_bundle(runtime, HELD)

    removed = _collect(runtime)

    assert removed == (Removed(kind=Kind.PARTIAL_BUNDLE, name=f"default/policy/{lost.name}", size=2),)
    assert not lost.exists()
    assert held.exists()


def test_a_link_in_the_folder_of_published_bundles_is_not_followed(local_runtime: Runtime, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder = _left_over_bundle(local_runtime, "lost")
    folder.with_name(".x.y.partial").symlink_to(elsewhere)

    _collect(local_runtime)

    assert elsewhere.exists()


def test_what_is_none_of_the_stores_files_is_left_alone(local_runtime: Runtime) -> None:
    digest = _orphan(local_runtime)
    foreign = _path(local_runtime, digest).with_name("README")
    foreign.touch()
    os.utime(foreign, (LONG_AGO_S, LONG_AGO_S))

    _collect(local_runtime)

    assert stored_blobs(local_runtime) == [foreign]


def test_a_dry_run_tells_the_same_and_removes_nothing(runtime: Runtime) -> None:
    _orphan(runtime)
    _left_over_bundle(runtime, "lost")

    told = _collect(runtime, dry_run=True)

    assert {one.kind for one in told} == {Kind.BLOB, Kind.PARTIAL_BUNDLE}
    assert _collect(runtime) == told


def test_a_home_without_anything_in_it_gives_nothing_to_collect(local_runtime: Runtime) -> None:
    assert _collect(local_runtime) == ()


def test_a_submission_that_finds_the_orphan_while_it_is_collected_keeps_it(runtime: Runtime) -> None:
    _orphan(runtime, policy(1))
    busy = replace(runtime, blobs=BusyStore(UPath(runtime.settings.blobs_path), lambda: submit(runtime, policy(1))))

    removed = _collect(busy)

    assert removed == ()
    assert finish(runtime, submit(runtime, policy(1))).action_set_digest


def test_a_submission_between_its_blob_and_its_transaction_keeps_the_orphan_that_it_found(runtime: Runtime) -> None:
    _orphan(runtime, policy(1))
    busy = replace(runtime, blobs=BusyStore(UPath(runtime.settings.blobs_path), lambda: runtime.blobs.put(policy(1))))

    removed = _collect(busy)

    assert removed == ()
    assert runtime.blobs.get(sha256_hex(policy(1))) == policy(1)


def test_what_was_named_since_the_first_look_is_seen_by_the_second(runtime: Runtime) -> None:
    """Collections work in parts, in the order of the digests; the last of them is named while they are at the first."""
    text = max((policy(clauses) for clauses in range(1, 9)), key=sha256_hex)
    others = (f"orphan {number}".encode() for number in itertools.count())
    for data in itertools.islice((data for data in others if sha256_hex(data) < sha256_hex(text)), 50):
        _orphan(runtime, data)
    _orphan(runtime, text)

    collection = collect(runtime, grace_ms=GRACE_MS, now_ms=NOW_MS)
    first = next(collection)
    submit(runtime, text)
    _age_everything(runtime)
    rest = list(collection)

    assert len({first, *rest}) == 50
    assert runtime.blobs.get(sha256_hex(text)) == text


def test_an_upload_that_a_killed_collection_left_aside_is_kept_for_the_job_that_names_it(runtime: Runtime) -> None:
    job = submit(runtime, policy(1))
    path = _path(runtime, job.spec_digest)
    aside = path.rename(path.with_name(f"{path.name}.collected.partial"))
    os.utime(aside, (LONG_AGO_S, LONG_AGO_S))

    removed = _collect(runtime)

    assert removed == ()
    assert runtime.blobs.get(job.spec_digest) == policy(1)


def test_nobody_names_a_blob_while_the_names_are_held(runtime: Runtime) -> None:
    with ThreadPoolExecutor(1) as pool:
        with runtime.ledger.database.write() as connection:
            hold_blob_names(connection)
            submission = pool.submit(submit, runtime, policy(1))
            with pytest.raises(TimeoutError):
                submission.result(timeout=0.3)
        job = submission.result(timeout=30)

    assert job.file_name == "policy.md"


def test_submissions_and_collections_at_once_lose_no_upload(runtime: Runtime) -> None:
    texts = [policy(1) + f"\n\nText {number}.".encode() for number in range(12)]
    for text in texts:
        _orphan(runtime, text)

    with ThreadPoolExecutor(4) as pool:
        submitted = [pool.submit(submit, runtime, text, key=f"key-{n}") for n, text in enumerate(texts)]
        collected = [pool.submit(_collect, runtime) for _ in range(4)]
        jobs = [future.result() for future in submitted]
        for future in collected:
            future.result()

    assert [runtime.blobs.get(job.spec_digest) for job in jobs] == texts


def test_a_store_in_memory_is_collected_by_the_time_that_its_file_system_tells(local_runtime: Runtime) -> None:
    store = BlobStore(UPath("memory://blobs-of-a-collection"))
    runtime = replace(local_runtime, blobs=store)
    job = submit(runtime, policy(1))
    orphan = store.put(b"orphan")
    now_ms = time.time_ns() // 1_000_000

    early = list(collect(runtime, grace_ms=GRACE_MS, now_ms=now_ms))
    late = list(collect(runtime, grace_ms=GRACE_MS, now_ms=now_ms + 2 * GRACE_MS))

    assert early == []
    assert late == [Removed(kind=Kind.BLOB, name=f"{orphan[:2]}/{orphan}", size=6)]
    assert store.get(job.spec_digest) == policy(1)


def test_a_report_adds_the_sizes_up(local_runtime: Runtime) -> None:
    _orphan(local_runtime, b"12345")
    _orphan(local_runtime, b"123")

    report = collection_report(_collect(local_runtime), grace_ms=GRACE_MS, dry_run=False)

    assert (report["count"], report["bytes"]) == (2, 8)
    assert {entry["kind"] for entry in report["removed"]} == {"blob"}


def test_every_digest_in_the_ledger_is_known_to_name_a_blob_or_not_to() -> None:
    digests = {
        f"{table.name}.{column.name}"
        for table in metadata.tables.values()
        for column in table.columns
        if column.name.endswith("digest")
    }

    naming = {f"{column.table.name}.{column.name}" for column in BLOB_COLUMNS}

    assert digests == naming | OTHER_DIGESTS
