"""The uploads folder: which files are ready, which were refused, and the jobs that they made.

`$RULEGEN_HOME/uploads/<tenant>/<file>`. A file counts once its size and time have stood still for one look and
while it was read. What was seen is kept in a cursor for speed alone: with the cursor lost, each file is read again and
is the same job again.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from rulegen_dagster.domain.errors import (
    IdentityError,
    ParserProcessError,
    SpecError,
    SubmissionConflictError,
    TenantNotFoundError,
)
from rulegen_dagster.domain.identity import check_tenant
from rulegen_dagster.workflow.intake import STILL_CHANGING, Intake, read_upload, submit_upload
from rulegen_dagster.workflow.runtime import Runtime

ACTOR = "new_uploads"
MAX_FILES_PER_LOOK = 50

_TRIED_AGAIN = frozenset((TenantNotFoundError.code, ParserProcessError.code))
"""A folder may be filled before its tenant is added, a parser may be killed; other refusals are the file's own."""


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """An upload that cannot become a job; told once for each version of the file."""

    tenant: str
    file_name: str
    code: str
    message: str


@dataclass(frozen=True, kw_only=True)
class Look:
    """One look at the folder: new jobs, refusals, files that still change, and the next cursor."""

    accepted: tuple[Intake, ...]
    refused: tuple[Refusal, ...]
    settling: tuple[str, ...]
    cursor: str


@dataclass(frozen=True)
class _Seen:
    size: int
    mtime_ns: int
    settled: bool


def look(runtime: Runtime, cursor: str | None) -> Look:
    """Submit every upload that is ready and was not treated yet; at most `MAX_FILES_PER_LOOK` at once.

    Raises `ProviderConfigError` or `VocabularyError` where this process cannot take any upload; none is refused then.
    """
    before = _read_cursor(cursor)
    after: dict[str, _Seen] = {}
    accepted: list[Intake] = []
    refused: list[Refusal] = []
    settling: list[str] = []
    for tenant, path in _files(runtime.settings.uploads_path):
        name = f"{tenant}/{path.name}"
        try:
            status = path.lstat()
        except OSError:
            continue
        known = before.get(name)
        stable = known is not None and (known.size, known.mtime_ns) == (status.st_size, status.st_mtime_ns)
        if known is not None and stable and known.settled:
            after[name] = known
            continue
        if not stable or len(accepted) + len(refused) >= MAX_FILES_PER_LOOK:
            after[name] = _Seen(status.st_size, status.st_mtime_ns, settled=False)
            settling.append(name)
            continue
        outcome = _submit(runtime, tenant, path, status)
        if isinstance(outcome, Refusal) and outcome.code == STILL_CHANGING:
            # As it was before the change: the next look sees another file, and waits until that one stands still.
            after[name] = _Seen(status.st_size, status.st_mtime_ns, settled=False)
            settling.append(name)
            continue
        settled = not isinstance(outcome, Refusal) or outcome.code not in _TRIED_AGAIN
        after[name] = _Seen(status.st_size, status.st_mtime_ns, settled=settled)
        if isinstance(outcome, Refusal):
            refused.append(outcome)
        else:
            accepted.append(outcome)
    return Look(accepted=tuple(accepted), refused=tuple(refused), settling=tuple(settling), cursor=_write_cursor(after))


def _submit(runtime: Runtime, tenant: str, path: Path, seen: os.stat_result) -> Intake | Refusal:
    try:
        data = read_upload(path, runtime.settings.max_upload_bytes, follow_links=False, unchanged_since=seen)
        return submit_upload(runtime, data, path.name, tenant=tenant, key=None, actor=ACTOR)
    except (SpecError, ParserProcessError, IdentityError, TenantNotFoundError, SubmissionConflictError) as error:
        return Refusal(tenant=tenant, file_name=path.name, code=error.code, message=error.message)


def _files(root: Path) -> list[tuple[str, Path]]:
    """Return tenant and path of every candidate; hidden files and folders that are links are left out."""
    found: list[tuple[str, Path]] = []
    if not root.is_dir():
        return found
    for folder in sorted(root.iterdir()):
        if folder.is_symlink() or not folder.is_dir():
            continue
        try:
            tenant = check_tenant(folder.name)
        except IdentityError:
            continue
        found += [
            (tenant, path)
            for path in sorted(folder.iterdir())
            if not path.name.startswith(".") and (path.is_symlink() or not path.is_dir())
        ]
    return found


def _read_cursor(cursor: str | None) -> dict[str, _Seen]:
    try:
        return {name: _Seen(*seen) for name, seen in json.loads(cursor or "{}").items()}
    except (ValueError, TypeError, AttributeError):
        return {}


def _write_cursor(seen: dict[str, _Seen]) -> str:
    return json.dumps({name: [s.size, s.mtime_ns, s.settled] for name, s in seen.items()}, separators=(",", ":"))
