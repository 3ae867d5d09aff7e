"""Comparison of two revisions of a specification: which clauses stayed, moved, were edited, are new or are gone."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rulegen_dagster.domain.clause import Clause
from rulegen_dagster.domain.errors import IdentityError, InputError, JobNotFoundError
from rulegen_dagster.domain.identity import JobName
from rulegen_dagster.domain.text import printable
from rulegen_dagster.specs.alignment import ChangeKind, ClauseChange, align
from rulegen_dagster.specs.document import read_document
from rulegen_dagster.workflow.intake import read_upload
from rulegen_dagster.workflow.runtime import Runtime


def compare(runtime: Runtime, old: str, new: str, *, tenant: str) -> tuple[ClauseChange, ...]:
    """Align two revisions, each a file or the name of a parsed job.

    Raises `SpecError` for a file that cannot be read, `InputError` for a name that is neither, or a job that is not
    parsed yet.
    """
    return align(_clauses(runtime, old, tenant), _clauses(runtime, new, tenant))


def comparison_report(changes: Sequence[ClauseChange]) -> dict[str, Any]:
    """Return an alignment as plain data: how many clauses of each kind, and every clause that is not just equal."""
    return {
        "counts": {kind.value: sum(change.kind is kind for change in changes) for kind in ChangeKind},
        "changes": [_change(change) for change in changes if change.kind is not ChangeKind.EQUAL],
    }


def _clauses(runtime: Runtime, named: str, tenant: str) -> Sequence[Clause]:
    path = Path(named)
    if path.exists():
        limit = runtime.settings.max_upload_bytes
        return read_document(read_upload(path, limit, follow_links=True), path.name, max_bytes=limit).clauses
    try:
        job = runtime.ledger.reads.job(JobName.parse(named, tenant=tenant))
    except (IdentityError, JobNotFoundError) as error:
        raise InputError(
            f"there is neither a file nor a job '{printable(named)[:80]}'; give a path, or a name of 'rulegen list'",
            code="revision_not_found",
        ) from error
    clauses = runtime.ledger.reads.clauses(job.job_id)
    if not clauses:
        raise InputError(f"the job {job.name} is {job.state} and has no clauses yet", code="not_parsed")
    return clauses


def _change(change: ClauseChange) -> dict[str, Any]:
    return {
        "kind": change.kind.value,
        "similarity_percent": int(change.similarity * 100),
        "new_context": change.new_context,
        "needs_validation": change.kind.needs_validation,
        "old": _side(change.old),
        "new": _side(change.new),
    }


def _side(clause: Clause | None) -> dict[str, Any] | None:
    if clause is None:
        return None
    return {
        "ordinal": clause.ordinal,
        "label": clause.label,
        "heading_path": list(clause.heading_path),
        "text": clause.text,
        "role": clause.role.value,
    }
