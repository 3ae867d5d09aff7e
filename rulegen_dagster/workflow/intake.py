"""Intake: an upload becomes a durable job, or is refused with nothing stored."""

import os
import stat
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rulegen_dagster.domain.canonical import sha256_hex
from rulegen_dagster.domain.errors import SpecError, VocabularyError
from rulegen_dagster.domain.failpoints import Failpoint, reach
from rulegen_dagster.domain.identity import (
    DEFAULT_TENANT,
    JobName,
    check_submission_key,
    check_tenant,
    default_submission_key,
    ruleset_name,
)
from rulegen_dagster.ledger.reads import JobRecord
from rulegen_dagster.ledger.submissions import Submission
from rulegen_dagster.providers.registry import is_language_model
from rulegen_dagster.specs.document import read_document
from rulegen_dagster.workflow.frozen import freeze
from rulegen_dagster.workflow.outages import ride_out
from rulegen_dagster.workflow.quotas import check_price
from rulegen_dagster.workflow.runtime import Runtime
from rulegen_dagster.workflow.traces import submission_told, submission_traced

STILL_CHANGING: Final = "still_changing"
"""The code of the refusal of a file that somebody was writing while it was read."""

_NOT_IN_A_NAME = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Unicode categories: controls, what is left of bytes that are not UTF-8, line and paragraph separators."""


@dataclass(frozen=True, kw_only=True)
class FrozenOtherwise:
    """One choice that a job froze, where the settings of a later submission ask for another."""

    what: str
    frozen: str
    asked: str


@dataclass(frozen=True, kw_only=True)
class Intake:
    """The job of an upload; `existing` tells that the same submission was here before.

    `frozen_otherwise` is what the job keeps all the same, whatever this submission asked for.
    """

    job: JobRecord
    existing: bool
    frozen_otherwise: tuple[FrozenOtherwise, ...] = ()


def submit_file(
    runtime: Runtime,
    path: Path,
    *,
    tenant: str = DEFAULT_TENANT,
    key: str | None = None,
    actor: str,
    deadline_ms: int | None = None,
    vocabulary: str | None = None,
) -> Intake:
    """Read a file and submit it. Raises `SpecError`, `IdentityError`, `TenantNotFoundError`, `SubmissionConflictError`.

    Without a key, one is made of the file's name and content, so the same file again is the same job. A new job gets
    `deadline_ms` from its submission to its end (None: as the settings say); one that is there keeps its own deadline.
    It freezes the pack `vocabulary` (None: as the settings say); where the job is there with another one, or there is
    no such pack, this raises `VocabularyError`.
    """
    return submit_upload(
        runtime,
        read_upload(path, runtime.settings.max_upload_bytes, follow_links=True),
        path.name,
        tenant=tenant,
        key=key,
        actor=actor,
        deadline_ms=deadline_ms,
        vocabulary=vocabulary,
    )


def submit_upload(
    runtime: Runtime,
    data: bytes,
    file_name: str,
    *,
    tenant: str,
    key: str | None,
    actor: str,
    deadline_ms: int | None = None,
    vocabulary: str | None = None,
) -> Intake:
    """Submit bytes under a file name; see `submit_file`.

    The upload is parsed, and its key looked up, before anything is stored, so that a refusal leaves no trace. The blob
    is written before the transaction that names it.
    """
    with submission_traced(runtime, len(data)) as span:
        intake = _submit(
            runtime,
            data,
            file_name,
            tenant=tenant,
            key=key,
            actor=actor,
            deadline_ms=deadline_ms,
            vocabulary=vocabulary,
            traceparent=span.context.traceparent if span.context else None,
        )
        submission_told(runtime, span, intake.job, existing=intake.existing)
    return intake


def _submit(
    runtime: Runtime,
    data: bytes,
    file_name: str,
    *,
    tenant: str,
    key: str | None,
    actor: str,
    deadline_ms: int | None,
    vocabulary: str | None,
    traceparent: str | None,
) -> Intake:
    check_tenant(tenant)
    _check_file_name(file_name)
    if key is not None:
        check_submission_key(key)
    read_document(data, file_name, max_bytes=runtime.settings.max_upload_bytes)
    digest = sha256_hex(data)
    name = JobName(tenant=tenant, submission_key=key or default_submission_key(file_name, digest))
    frozen = freeze(runtime, vocabulary)
    request = Submission(
        name=name,
        input_digest=digest,
        file_name=file_name,
        size_bytes=len(data),
        ruleset=ruleset_name(file_name),
        behaviour=frozen.behaviour,
        prompts=frozen.prompts,
        packs=frozen.packs,
        deadline_ms=deadline_ms or runtime.settings.deadline_ms,
        traceparent=traceparent,
    )
    ride_out(lambda: runtime.ledger.submissions.check(name, digest))
    ride_out(lambda: check_price(runtime, name))
    runtime.blobs.put(data)
    reach(Failpoint.INTAKE_BLOB_STORED)
    # The same key and input are the same job, so a submission whose answer was lost is found, not made twice.
    accepted = ride_out(lambda: runtime.ledger.submissions.submit(request, actor=actor))
    job = ride_out(lambda: runtime.ledger.reads.job_by_id(accepted.job_id))
    _check_vocabulary(job, vocabulary)
    differing = _frozen_otherwise(job.behaviour, frozen.behaviour.as_dict()) if accepted.existing else ()
    return Intake(job=job, existing=accepted.existing, frozen_otherwise=differing)


def _frozen_otherwise(frozen: Mapping[str, Any], asked: Mapping[str, Any]) -> tuple[FrozenOtherwise, ...]:
    """Return which choices of the settings a job froze otherwise, by their names: a version is the release's choice."""
    then, now = _choices(frozen), _choices(asked)
    if frozen["provider"] == asked["provider"] and is_language_model(asked["provider"]):
        then["model"], now["model"] = frozen["model_id"], asked["model_id"]
    return tuple(
        FrozenOtherwise(what=what, frozen=then[what], asked=now[what]) for what in then if then[what] != now[what]
    )


def _choices(behaviour: Mapping[str, Any]) -> dict[str, str]:
    return {
        "provider": behaviour["provider"],
        # Jobs of the first release wrote name/version.
        "policy": behaviour["validation_policy"].replace("/", "@").split("@")[0],
        "vocabulary": behaviour["vocabulary"].split("@")[0],
    }


def _check_vocabulary(job: JobRecord, wanted: str | None) -> None:
    frozen = job.behaviour["vocabulary"].split("@")[0]
    if wanted is not None and wanted != frozen:
        raise VocabularyError(
            f"the job {job.name} was submitted before with the vocabulary {frozen}, and keeps it; submit the file"
            f" under a new key to have it read with {wanted}"
        )


def _check_file_name(name: str) -> None:
    # A file system may hold names that are not text; a ledger, a log and a page cannot.
    if any(unicodedata.category(character) in _NOT_IN_A_NAME for character in name):
        raise SpecError(
            "the file's name has control characters or is not valid UTF-8; rename the file and submit it again",
            code="invalid_file_name",
        )


def read_upload(
    path: Path, max_bytes: int, *, follow_links: bool, unchanged_since: os.stat_result | None = None
) -> bytes:
    """Read a regular file of at most `max_bytes`. Raises `SpecError`.

    A symbolic link is followed only for somebody who could read its target anyway. The size is checked on the open
    file and while reading, so a file that grows or is swapped cannot get past it. With `unchanged_since`, a file whose
    size or time is another once it is read raises the code `STILL_CHANGING`: what was read may be half of it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | (0 if follow_links else os.O_NOFOLLOW))
    except FileNotFoundError:
        raise SpecError(f"there is no file {path.name}", code="file_not_found") from None
    except OSError as error:
        if path.is_symlink() and not follow_links:
            raise SpecError(f"{path.name} is a symbolic link; give the file itself", code="symbolic_link") from None
        raise SpecError(f"{path.name} cannot be read: {error.strerror}", code="unreadable") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise SpecError(f"{path.name} is not a regular file", code="not_a_file")
    data = None
    with os.fdopen(descriptor, "rb") as file:
        if status.st_size <= max_bytes:
            try:
                data = file.read(max_bytes + 1)
            except OSError as error:
                raise SpecError(f"{path.name} cannot be read: {error.strerror}", code="unreadable") from error
        status = os.fstat(descriptor)
    if unchanged_since is not None and _version(status) != _version(unchanged_since):
        raise SpecError(f"{path.name} was changed while it was read", code=STILL_CHANGING)
    if data is not None and len(data) <= max_bytes:
        return data
    raise SpecError(
        f"{path.name} is larger than {max_bytes:,} bytes; split it, or raise RULEGEN_MAX_UPLOAD_BYTES",
        code="too_large",
    )


def _version(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns
