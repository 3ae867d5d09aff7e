"""Comparing behaviours: which there are, which of them this release honours, and what differs between two."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rulegen_dagster.domain.behaviour import Change, Incompatibility, changes
from rulegen_dagster.domain.errors import IdentityError, InputError, JobNotFoundError, ProviderConfigError
from rulegen_dagster.domain.identity import JobName
from rulegen_dagster.domain.prompt import Prompt
from rulegen_dagster.domain.states import TERMINAL_JOB_STATES, JobState
from rulegen_dagster.domain.text import printable
from rulegen_dagster.ledger.behaviours import KnownBehaviour
from rulegen_dagster.workflow.behaviours import incompatibility_of
from rulegen_dagster.workflow.frozen import freeze
from rulegen_dagster.workflow.runtime import Runtime

CURRENT: Final = "current"
"""Names what a job submitted now would freeze."""

LEAST_DIGITS: Final = 4
"""How many digits of a digest name a behaviour."""


@dataclass(frozen=True, kw_only=True)
class Named:
    """A behaviour that somebody has named, with the prompts that are kept of it, by task."""

    digest: str
    content: Mapping[str, Any]
    prompts: Mapping[str, Prompt]


def behaviours_report(runtime: Runtime) -> dict[str, Any]:
    """Return every behaviour that jobs have or had, in the shape that `rulegen behaviours --json` prints.

    `current` is None where this process is not set up to accept a job.
    """
    try:
        current = freeze(runtime).behaviour.digest
    except InputError:
        current = None
    return {
        "current": current,
        "behaviours": [
            {
                "digest": known.behaviour_digest,
                "is_current": known.behaviour_digest == current,
                "jobs": sum(known.jobs.values()),
                "unfinished_jobs": sum(n for state, n in known.jobs.items() if state not in TERMINAL_JOB_STATES),
                "jobs_by_state": {state.value: count for state, count in sorted(known.jobs.items())},
                **_honour_report(runtime, known),
                "first_ms": known.created_at,
                "content": dict(known.behaviour),
            }
            for known in runtime.ledger.behaviours.all()
        ],
    }


def difference_report(runtime: Runtime, one: str, other: str, *, tenant: str) -> dict[str, Any]:
    """Return what differs between two behaviours, in the shape that `rulegen behaviours diff --json` prints.

    Each is named by `current`, by the first digits of its digest, or by a job. Raises `InputError`.
    """
    was, now = (_named(runtime, name, tenant) for name in (one, other))
    return {
        "from": was.digest,
        "to": now.digest,
        "changed": [_change_report(change) for change in changes(was.content, now.content)],
        "prompts": [
            {"task": task, "diff": diff}
            for task in sorted({*was.content.get("prompt_versions", {}), *now.content.get("prompt_versions", {})})
            if (diff := _prompt_diff(task, was, now)) is not None
        ],
    }


def _honour_report(runtime: Runtime, known: KnownBehaviour) -> dict[str, Any]:
    """Return whether a new job with this behaviour could go all its way here; None where this process cannot tell."""
    try:
        found = _incompatibility(runtime, known)
    except ProviderConfigError as error:
        return {"honoured": None, "why_not": error.message}
    return {"honoured": found is None, "why_not": found.text if found else None}


def _incompatibility(runtime: Runtime, known: KnownBehaviour) -> Incompatibility | None:
    # Between them, these two states need every part.
    for state in (JobState.RETRIEVING, JobState.GENERATING_RULES):
        found = incompatibility_of(runtime, known, state=state, opening=True)
        if found is not None:
            return found
    return None


def _named(runtime: Runtime, name: str, tenant: str) -> Named:
    if name == CURRENT:
        frozen = freeze(runtime)
        return Named(
            digest=frozen.behaviour.digest,
            content=frozen.behaviour.as_dict(),
            prompts={prompt.task: prompt for prompt in frozen.prompts},
        )
    known = runtime.ledger.behaviours
    found = [one for one in known.all() if len(name) >= LEAST_DIGITS and one.behaviour_digest.startswith(name)]
    if len(found) > 1:
        raise InputError(f"{len(found)} behaviours begin with {name}; give more digits", code="ambiguous_behaviour")
    if found:
        digest = found[0].behaviour_digest
        return Named(digest=digest, content=found[0].behaviour, prompts=known.prompts(digest))
    try:
        job = runtime.ledger.reads.job(JobName.parse(name, tenant=tenant))
    except (JobNotFoundError, IdentityError):
        raise InputError(
            f"there is no behaviour and no job '{printable(name)[:64]}'; 'rulegen behaviours' lists the digests, of"
            f" which the first {LEAST_DIGITS} digits or more will do",
            code="behaviour_not_found",
        ) from None
    return Named(digest=job.behaviour_digest, content=job.behaviour, prompts=known.prompts(job.behaviour_digest))


def _change_report(change: Change) -> dict[str, Any]:
    return {"field": change.field, "was": change.was, "now": change.now}


def _prompt_diff(task: str, was: Named, now: Named) -> str | None:
    """Return a unified diff of a prompt's two texts; None where they are the same, or one of them is not kept."""
    old, new = was.prompts.get(task), now.prompts.get(task)
    if old == new or (old is None and task in was.content.get("prompt_versions", {})):
        return None
    if new is None and task in now.content.get("prompt_versions", {}):
        return None
    lines = difflib.unified_diff(
        old.text.splitlines() if old else [],
        new.text.splitlines() if new else [],
        f"{task}/{old.version}" if old else "none",
        f"{task}/{new.version}" if new else "none",
        lineterm="",
    )
    return "\n".join(lines)
