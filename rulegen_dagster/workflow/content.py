"""Content of jobs: the upload and its text, or when it was removed."""

from typing import Final

from rulegen_dagster.domain.errors import LedgerError, StateError
from rulegen_dagster.domain.retention import ContentKind
from rulegen_dagster.domain.text import instant
from rulegen_dagster.ledger.reads import JobRecord
from rulegen_dagster.ledger.retention import Retention
from rulegen_dagster.workflow.runtime import Runtime

TEXT_REMOVED: Final = "its text was removed"
"""What stands for a place in a text that is there no more."""


def removed_content(runtime: Runtime, job: JobRecord) -> dict[str, int]:
    """Return which content of a job was removed by its retention, and when (ms)."""
    removed = Retention(runtime.ledger.database).removed(job.job_id)
    return {kind.value: at for kind, at in removed.items()}


def upload_of(runtime: Runtime, job: JobRecord) -> bytes:
    """Return a job's upload. Raises `StateError` where it was removed, `LedgerError` where it is missing or damaged."""
    try:
        return runtime.blobs.get(job.spec_digest)
    except LedgerError as error:
        removed = Retention(runtime.ledger.database).removed(job.job_id).get(ContentKind.UPLOAD)
        if removed is None:
            raise
        raise StateError(
            f"the upload of {job.name} was removed on {instant(removed)} by 'rulegen gc --content-older-than'; submit"
            " the specification again under a new key",
            code="content_removed",
        ) from error


def canonical_text(runtime: Runtime, job: JobRecord) -> str | None:
    """Return the text that a job's clauses stand in: empty before it was parsed, None where it was removed.

    Raises `LedgerError` where it is missing or damaged.
    """
    if not job.canonical_digest:
        return ""
    try:
        return runtime.blobs.get(job.canonical_digest).decode()
    except LedgerError:
        if ContentKind.CANONICAL_TEXT in Retention(runtime.ledger.database).removed(job.job_id):
            return None
        raise
