"""Collection: what no row of the ledger names is removed from the disk, once it is old enough.

A blob is written before the transaction that names it, so a fresh blob without a name may belong to a submission that
is about to commit. Three things keep it: the grace period; its time, which a submission that finds the blob renews;
and a second look at the ledger and at that time, in the transaction in which nobody else can name a blob.
"""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from rulegen_dagster.domain.errors import PublishError
from rulegen_dagster.domain.retention import ContentKind
from rulegen_dagster.ledger.behaviours import Behaviours
from rulegen_dagster.ledger.blobs import StoredFile
from rulegen_dagster.ledger.references import hold_blob_names, named_blobs, publishing_tokens
from rulegen_dagster.ledger.retention import JobContent, Retention
from rulegen_dagster.workflow.publish import left_over_folders, token_of
from rulegen_dagster.workflow.runtime import Runtime

DEFAULT_GRACE_HOURS: Final = 24.0
_FILES_PER_TRANSACTION = 50


class Kind(StrEnum):
    """What can be collected."""

    #: A blob that no submission and no job names.
    BLOB = "blob"
    #: A blob whose writer was lost before it had its name.
    PARTIAL_BLOB = "partial_blob"
    #: A bundle whose publisher was lost before it had its place.
    PARTIAL_BUNDLE = "partial_bundle"
    #: The lock file of a worker that has ended and holds nothing in the ledger.
    LOCK_FILE = "lock_file"
    #: What a job that ended long ago was made of; its files go as blobs, unless another job needs them.
    UPLOAD = ContentKind.UPLOAD.value
    CANONICAL_TEXT = ContentKind.CANONICAL_TEXT.value
    #: The prompts of such a job, or (named by a digest) one text of them that no job needs any more.
    PROMPTS = ContentKind.PROMPTS.value


@dataclass(frozen=True, kw_only=True)
class Removed:
    """One thing that was removed, or would be; `name` is its path below the home's folder for its kind."""

    kind: Kind
    name: str
    size: int


def collect(
    runtime: Runtime,
    *,
    grace_ms: int,
    now_ms: int,
    dry_run: bool = False,
    content_older_than_ms: int | None = None,
    actor: str = "gc",
) -> Iterator[Removed]:
    """Remove orphans that have not changed for `grace_ms` before `now_ms`, the file system's time; yield each.

    With `content_older_than_ms`, uploads, canonical texts and prompts of jobs that ended longer ago than that, on the
    ledger's clock, are removed too; a file of theirs that changed within the grace period goes with a later collection.

    With `dry_run`, only tell what would be removed. A grace period of zero is for a time when nobody submits: a
    submission between its blob and its transaction has nothing else to protect it. Raises `LedgerError`, and
    `PublishError` where a left-over folder cannot be removed; what was removed before that stays removed.
    """
    cutoff, ended_before = now_ms - grace_ms, None
    if content_older_than_ms is not None:
        ended_before = runtime.ledger.reads.now() - content_older_than_ms
        yield from _content(runtime, ended_before, actor, dry_run=dry_run)
    yield from _blobs(runtime, cutoff, dry_run=dry_run, ended_before=ended_before)
    yield from _bundles(runtime, cutoff, dry_run=dry_run)
    yield from _lock_files(runtime, cutoff, dry_run=dry_run)


def collection_report(removed: Sequence[Removed], *, grace_ms: int, dry_run: bool) -> dict[str, Any]:
    """Return a collection as plain data, in the shape that `rulegen gc --json` prints."""
    return {
        "dry_run": dry_run,
        "grace_ms": grace_ms,
        "removed": [{"kind": one.kind.value, "name": one.name, "bytes": one.size} for one in removed],
        "count": len(removed),
        "bytes": sum(one.size for one in removed),
    }


def _content(runtime: Runtime, ended_before: int, actor: str, *, dry_run: bool) -> Iterator[Removed]:
    """Mark the content of jobs that ended long ago as removed, before any of it is; yield what is marked."""
    database = runtime.ledger.database
    retention, behaviours = Retention(database), Behaviours(database)
    if dry_run:
        yield from map(_removed_content, retention.due(ended_before=ended_before))
    else:
        while marked := retention.mark(ended_before=ended_before, actor=actor):
            yield from map(_removed_content, marked)
    for digest in behaviours.forget_prompts(ended_before=ended_before, dry_run=dry_run):
        yield Removed(kind=Kind.PROMPTS, name=digest, size=0)
    if not dry_run:
        yield from map(_removed_content, retention.mark_prompts(ended_before=ended_before, actor=actor))


def _removed_content(content: JobContent) -> Removed:
    return Removed(kind=Kind(content.kind.value), name=str(content.job), size=0)


def _blobs(runtime: Runtime, cutoff: int, *, dry_run: bool, ended_before: int | None) -> Iterator[Removed]:
    database, store = runtime.ledger.database, runtime.blobs
    old = sorted((f for f in store.files() if f.modified_ms <= cutoff), key=lambda file: file.path.name)
    with database.read() as connection:
        named = named_blobs(connection, {file.digest for file in old if file.digest}, ended_before=ended_before)
    orphans = [file for file in old if file.digest not in named]
    if dry_run:
        yield from map(_removed_blob, orphans)
        return
    for start in range(0, len(orphans), _FILES_PER_TRANSACTION):
        part = orphans[start : start + _FILES_PER_TRANSACTION]
        with database.write() as connection:
            hold_blob_names(connection)
            named = named_blobs(connection, {file.digest for file in part if file.digest})
            gone = [f for f in part if f.digest not in named and store.discard(f, unchanged_since=cutoff)]
        yield from map(_removed_blob, gone)


def _removed_blob(file: StoredFile) -> Removed:
    kind = Kind.BLOB if file.digest else Kind.PARTIAL_BLOB
    return Removed(kind=kind, name=f"{file.path.parent.name}/{file.path.name}", size=file.size)


def _bundles(runtime: Runtime, cutoff: int, *, dry_run: bool) -> Iterator[Removed]:
    root = runtime.settings.published_path
    old = [folder for folder in left_over_folders(root) if _is_unchanged_since(folder, cutoff)]
    if not old:
        return
    # A claim gets a fresh token, so a token that no row names now is never named again.
    with runtime.ledger.database.read() as connection:
        held = publishing_tokens(connection)
    for folder in old:
        if token_of(folder) in held:
            continue
        try:
            size = sum(file.lstat().st_size for file in folder.iterdir())
            if not dry_run:
                shutil.rmtree(folder)
        except FileNotFoundError:
            # The next publisher of the same action set, or another collection, was first.
            continue
        except OSError as error:
            raise PublishError(
                f"the left-over folder {folder.name} cannot be removed: {error.strerror}", code="left_over_stays"
            ) from error
        yield Removed(kind=Kind.PARTIAL_BUNDLE, name=str(folder.relative_to(root)), size=size)


def _lock_files(runtime: Runtime, cutoff: int, *, dry_run: bool) -> Iterator[Removed]:
    presence = runtime.presence
    old = [file for file in presence.files() if file.modified_ms <= cutoff] if presence else []
    if presence is None or not old:
        return
    held_by = runtime.ledger.recoveries.holders()
    for file in old:
        if file.worker in held_by:
            continue
        if presence.is_free(file.worker) if dry_run else presence.discard(file.worker):
            yield Removed(kind=Kind.LOCK_FILE, name=file.worker, size=file.size)


def _is_unchanged_since(folder: Path, cutoff: int) -> bool:
    try:
        return int(folder.stat().st_mtime * 1000) <= cutoff
    except FileNotFoundError:
        return False
