"""Trial parse: what a file would become as a specification, without a job, a ledger or a provider."""

import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from rulegen_dagster.domain.clause import Clause, ClauseRole, ParsedSpec
from rulegen_dagster.domain.errors import InputError, RulegenError
from rulegen_dagster.specs.document import read_document
from rulegen_dagster.workflow.intake import read_upload

_LEAST_SHARE: Final = 60
_LONG: Final = 2_000
_UNREADABLE: Final = "\ufffd"


def trial_parse(path: Path, *, max_bytes: int, with_clauses: bool) -> dict[str, Any]:
    """Parse one file and return its counts, its warnings and the time that it took, by the clock.

    Never raises for the file: a refusal stands under `refused` with its code and reason.
    """
    started = time.perf_counter()
    report: dict[str, Any] = {"file": path.name, "bytes": None, "refused": None}
    try:
        if not path.exists():
            raise InputError(f"there is no file {path}", code="file_not_found")
        data = read_upload(path, max_bytes, follow_links=True)
        report["bytes"] = len(data)
        parsed = read_document(data, path.name, max_bytes=max_bytes)
    except RulegenError as error:
        return {**report, "refused": {"code": error.code, "message": error.message}, "ms": _since(started)}
    taken = _since(started)
    roles = Counter(clause.role for clause in parsed.clauses)
    report |= {
        "ms": taken,
        "format": parsed.format,
        "characters": len(parsed.canonical_text),
        "clauses": len(parsed.clauses),
        "roles": {role.value: roles[role] for role in ClauseRole},
        "in_clauses_percent": _share(parsed),
        "warnings": _warnings(parsed),
    }
    if with_clauses:
        report["text"] = [_shown(clause, parsed) for clause in parsed.clauses]
    return report


def _since(started: float) -> int:
    return round((time.perf_counter() - started) * 1000)


def _share(parsed: ParsedSpec) -> int:
    """Return how much of the text stands in clauses; headings, code and comments do not."""
    within = sum(len("".join(clause.text.split())) for clause in parsed.clauses)
    return within * 100 // max(len("".join(parsed.canonical_text.split())), 1)


def _warnings(parsed: ParsedSpec) -> list[dict[str, str]]:
    found = []
    if not parsed.normative:
        found.append(("no_normative_clause", "no sentence demands or limits anything; the job would have no work"))
    if (share := _share(parsed)) < _LEAST_SHARE:
        found.append(
            ("text_outside_clauses", f"only {share} % of the text stand in clauses; look at what was left out")
        )
    if unreadable := parsed.canonical_text.count(_UNREADABLE):
        found.append(("unreadable_characters", f"{unreadable} characters could not be read"))
    long = [clause.ordinal for clause in parsed.clauses if len(clause.text) > _LONG]
    if long:
        named = ", ".join(map(str, long[:5]))
        found.append(("long_clauses", f"{len(long)} clauses are longer than {_LONG:,} characters: {named}"))
    return [{"code": code, "message": message} for code, message in found]


def _shown(clause: Clause, parsed: ParsedSpec) -> dict[str, Any]:
    return {
        "ordinal": clause.ordinal,
        "role": clause.role.value,
        "role_reason": clause.role_reason,
        "location": parsed.location_of(clause.start),
        "heading_path": list(clause.heading_path),
        "label": clause.label,
        "lead": clause.lead,
        "text": clause.text,
    }
