"""Behaviours at work: whether this release can honour what a job froze, found out before anything of it is claimed.

A job goes on with its own prompts, vocabulary and policy, which the ledger keeps with it, whatever became of this
release's files. What no text can carry (the output schema, the pipeline, a provider that is code) has to be the same
here; else the job needs a decision.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from rulegen_dagster.domain.behaviour import (
    PIPELINE_REVISION,
    RETRIEVAL_INDEX,
    Choice,
    Incompatibility,
    ModelDrift,
    Part,
)
from rulegen_dagster.domain.errors import ProviderConfigError
from rulegen_dagster.domain.rule import OUTPUT_SCHEMA_VERSION
from rulegen_dagster.domain.states import TERMINAL_JOB_STATES, JobState
from rulegen_dagster.ledger.needed_decisions import decisions_of_job, reported_models, retained_jobs
from rulegen_dagster.ledger.reads import JobRecord
from rulegen_dagster.providers.registry import is_language_model
from rulegen_dagster.workflow.frozen import (
    HasBehaviour,
    can_read,
    frozen_policy,
    frozen_prompts,
    frozen_provider,
    frozen_vocabulary,
)
from rulegen_dagster.workflow.runtime import Runtime

_UP_TO_RETRIEVAL = frozenset({JobState.RECEIVED, JobState.AUTHORIZED, JobState.EXTRACTING, JobState.RETRIEVING})
_GENERATING = frozenset({JobState.GENERATING_RULES, JobState.GENERATING_TESTS})
_UP_TO_GENERATION = _UP_TO_RETRIEVAL | _GENERATING
_UP_TO_VALIDATION = _UP_TO_GENERATION | {JobState.VALIDATING}


NEEDS_DECISION, RETAINED, OTHER_RELEASE = "needs_decision", "retained", "other_release"
"""The codes of what can keep this release from going on with a job."""


@dataclass(frozen=True, kw_only=True)
class HeldUp:
    """What keeps this release from going on with a job: a code, a sentence, and when to look again (ms) without one."""

    code: str
    text: str
    next_at: int | None = None


@dataclass(frozen=True, kw_only=True)
class Checked:
    """Whether this release may go on with a job as it now is.

    Where it may not although the job needs no decision yet, others work on it, and their last lease ends at
    `lease_until` (ms on the ledger's clock).
    """

    may_go_on: bool
    job: JobRecord
    lease_until: int | None = None


def incompatibility_of(
    runtime: Runtime, job: HasBehaviour, *, state: JobState, opening: bool = False
) -> Incompatibility | None:
    """Return the first part of a behaviour that a job's way from `state` on needs, and this release cannot honour.

    A model is opened to be asked what it is only with `opening`: it takes its client a while, and it goes by the name
    that it is given. Raises `ProviderConfigError`.
    """
    return next(_incompatibilities(runtime, job, state, opening=opening), None)


def _incompatibilities(
    runtime: Runtime, job: HasBehaviour, state: JobState, *, opening: bool
) -> Iterator[Incompatibility]:
    frozen = job.behaviour
    required = [(Part.PIPELINE_REVISION, PIPELINE_REVISION)]
    # What is made has to have the frozen schema; what is there has to be read.
    if state in _UP_TO_GENERATION or not can_read(frozen[Part.OUTPUT_SCHEMA]):
        required.append((Part.OUTPUT_SCHEMA, OUTPUT_SCHEMA_VERSION))
    if state in _UP_TO_RETRIEVAL:
        required.append((Part.RETRIEVAL_INDEX, RETRIEVAL_INDEX))
    for part, now in required:
        if frozen[part.value] != now:
            yield Incompatibility(part=part, was=frozen[part.value], now=now)
    found: list[object] = []
    if state in _UP_TO_GENERATION and not runtime.has_provider(frozen["provider"]):
        found.append(Incompatibility(part=Part.PROVIDER, was=frozen["provider"], now=None))
    elif state in _GENERATING:
        asks = opening or not is_language_model(frozen["provider"])
        found.append(frozen_provider(runtime, job) if asks else frozen_prompts(runtime, job))
    if state in _UP_TO_VALIDATION:
        found += [frozen_vocabulary(runtime, job), frozen_policy(runtime, job)]
    yield from (one for one in found if isinstance(one, Incompatibility))


def drift_of(runtime: Runtime, job: JobRecord) -> Incompatibility | None:
    """Return a change of the model that the provider reports, where the job stops for that and nobody has decided it.

    Derived from the attempts, so that no crash loses it.
    """
    if job.behaviour.get("model_drift") != ModelDrift.STOP or job.state in TERMINAL_JOB_STATES:
        return None
    first, *later = [*reported_models(runtime.ledger.database, job.job_id), None]
    decided = {
        one.incompatibility.now
        for one in decisions_of_job(runtime.ledger.database, job.job_id)
        if one.incompatibility.part is Part.REPORTED_MODEL and one.settled_at is not None
    }
    new = [model for model in later if model is not None and model not in decided]
    return Incompatibility(part=Part.REPORTED_MODEL, was=str(first), now=new[-1]) if new else None


def check(runtime: Runtime, job_id: int) -> Checked:
    """Find out, before anything of a job is claimed, whether this release may go on with it.

    A job whose behaviour it cannot honour needs a decision from now on. One that was retained for a release that can
    goes back to where it stood, if this is one. Raises `ProviderConfigError`.
    """
    job = runtime.ledger.reads.job_by_id(job_id)
    if job.state in TERMINAL_JOB_STATES:
        return Checked(may_go_on=True, job=job)
    if job.state is JobState.NEEDS_DECISION:
        return _check_retained(runtime, job)
    drift = drift_of(runtime, job)
    found = drift or incompatibility_of(runtime, job, state=job.state)
    if found is None:
        return Checked(may_go_on=True, job=job)
    return ask(runtime, job_id, found, whoever_works=drift is not None)


def ask(runtime: Runtime, job_id: int, found: Incompatibility, *, whoever_works: bool = False) -> Checked:
    """Have a person asked about an incompatibility of a job; it is left to others while they work on it."""
    asked = runtime.ledger.decisions.ask(job_id, found, actor=runtime.worker, whoever_works=whoever_works)
    job = runtime.ledger.reads.job_by_id(job_id)
    return Checked(may_go_on=job.state in TERMINAL_JOB_STATES, job=job, lease_until=asked.lease_until)


def _check_retained(runtime: Runtime, job: JobRecord) -> Checked:
    (*_, needed) = [None, *decisions_of_job(runtime.ledger.database, job.job_id)]
    if needed is None or needed.settled_at is not None or needed.decision is not Choice.RETAIN:
        return Checked(may_go_on=False, job=job)
    if incompatibility_of(runtime, job, state=needed.from_state, opening=True) is not None:
        return Checked(may_go_on=False, job=job)
    runtime.ledger.decisions.resume(job.job_id, actor=runtime.worker)
    job = runtime.ledger.reads.job_by_id(job.job_id)
    return Checked(may_go_on=job.state is not JobState.NEEDS_DECISION, job=job)


def held_up_by(runtime: Runtime, checked: Checked) -> HeldUp:
    """Say what keeps this release from going on with a job."""
    if checked.job.state is not JobState.NEEDS_DECISION:
        text = "a worker of another release has it in hand, and this release cannot honour what it froze"
        return HeldUp(code=OTHER_RELEASE, text=text, next_at=checked.lease_until)
    name = checked.job.name
    (*_, needed) = [None, *decisions_of_job(runtime.ledger.database, checked.job.job_id)]
    if needed is None:
        text = f"the job needs a decision: rulegen decide {name} retain|migrate|stop"
        return HeldUp(code=NEEDS_DECISION, text=text)
    if needed.decision is Choice.RETAIN:
        return HeldUp(
            code=RETAINED,
            text=f"{needed.decided_by} retained the job for a release that honours it ({needed.incompatibility.text});"
            f" it goes on by itself there, or rulegen decide {name} migrate|stop",
        )
    return HeldUp(
        code=NEEDS_DECISION,
        text=f"the job needs a decision, for {needed.incompatibility.text}: rulegen decide {name} retain|migrate|stop",
    )


def resume_retained(runtime: Runtime) -> None:
    """Send every job that waits for a release that honours it back to where it stood, if this is one.

    What this process is not set up for is left where it is.
    """
    for job_id in retained_jobs(runtime.ledger.database):
        try:
            check(runtime, job_id)
        except ProviderConfigError:
            continue
