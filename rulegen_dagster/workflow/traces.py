"""Traces of the work: which span is whose child, over processes and days.

The spans of a job form one tree below its submission, whichever processes work on it: the submission's place is kept
in the ledger, and goes with Dagster's runs as a tag. An attempt at an item that another process had tried before also
points to that earlier attempt, by a link. A process that comes to a job long after its submission begins a trace of
its own instead, which points to the submission: few stores keep a trace open for days.

Where nothing is traced, each function here hands back what it was given.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final

from rulegen_dagster.domain.errors import LedgerError
from rulegen_dagster.domain.states import Stage
from rulegen_dagster.domain.work import Claim, FailedAttempt, Landing, Offer
from rulegen_dagster.ledger.reads import JobRecord
from rulegen_dagster.ledger.traces import Traces
from rulegen_dagster.telemetry.context import TraceContext
from rulegen_dagster.telemetry.semconv import Key, Work
from rulegen_dagster.telemetry.tracing import NO_SPAN, Attributes, Span
from rulegen_dagster.workflow.engine import Attempt, Outcome
from rulegen_dagster.workflow.runtime import Runtime

JOINED_FOR_MS: Final = 24 * 3_600_000
"""How long after a submission the work on its job is still part of its trace."""

Observe = Callable[[Outcome], None]


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the next span of a job belongs: below a parent, or in a trace of its own that points elsewhere."""

    parent: TraceContext | None = None
    links: tuple[TraceContext, ...] = ()


def place_of(runtime: Runtime, job_id: int) -> Place:
    """Return where this process's work on a job belongs.

    The run's tag says it before the ledger does, unless it is of another trace than the job's: a person can launch a
    run with any tags.
    """
    known = Traces(runtime.ledger.database).of_jobs([job_id]).get(job_id)
    submission = TraceContext.parse(known.traceparent) if known else None
    if known is None or submission is None:
        return Place(parent=runtime.caller)
    if known.age_ms > JOINED_FOR_MS:
        return Place(links=(submission,))
    caller = runtime.caller
    return Place(parent=caller if caller and caller.trace_id == submission.trace_id else submission)


def submission_traced(runtime: Runtime, size_bytes: int) -> AbstractContextManager[Span]:
    """Trace a submission: the root of its job's tree, or a part of the caller's trace."""
    attributes: Attributes = {Key.UPLOAD_BYTES: size_bytes, Key.WORKER: runtime.worker}
    return runtime.tracing.span(Work.INTAKE, attributes, parent=runtime.caller)


def successor_traced(runtime: Runtime, predecessor: JobRecord) -> AbstractContextManager[Span]:
    """Trace the opening of a successor: the root of a tree that points to its predecessor's."""
    links: tuple[TraceContext, ...] = ()
    if runtime.tracing.is_on:
        with contextlib.suppress(LedgerError):
            place = place_of(runtime, predecessor.job_id)
            links = place.links or ((place.parent,) if place.parent else ())
    attributes: Attributes = {Key.WORKER: runtime.worker}
    return runtime.tracing.span(Work.INTAKE, attributes, parent=runtime.caller, links=links)


def submission_told(runtime: Runtime, span: Span, job: JobRecord, *, existing: bool) -> None:
    """Tell a submission's span which job it made, or found; one that was found has its tree below another span."""
    span.set({Key.JOB: str(job.name), Key.EXISTING: existing})
    if not (existing and runtime.tracing.is_on):
        return
    with contextlib.suppress(LedgerError):
        known = Traces(runtime.ledger.database).of_jobs([job.job_id]).get(job.job_id)
        if known is not None and (first := TraceContext.parse(known.traceparent)):
            span.link(first)


@contextlib.contextmanager
def engine_traced(runtime: Runtime, attempt: Attempt, observe: Observe) -> Iterator[tuple[Attempt, Observe]]:
    """Give what an engine is to be made of: the same functions, with a span around each attempt until it is booked."""
    if not runtime.tracing.is_on:
        yield attempt, observe
        return
    spans = _EngineSpans(runtime)
    try:
        yield spans.around(attempt), spans.before(observe)
    finally:
        spans.close()


def document_begins(runtime: Runtime, claim: Claim) -> None:
    """Start the spans of a stage that treats a job as a whole; `document_ends` ends them, in this process."""
    if not runtime.tracing.is_on:
        return
    with contextlib.suppress(LedgerError):
        place = place_of(runtime, claim.key.job_id)
        stage = _start_stage(runtime, claim, place)
        span = _start_attempt(runtime, claim, stage)
        runtime.tracing.keep(claim.token, span, stage)
        if span.context is not None:
            Traces(runtime.ledger.database).note([(claim.token, span.context.traceparent)])


def document_ends(runtime: Runtime, result: Offer | FailedAttempt, landing: Landing) -> None:
    """End the spans of a stage that treats a job as a whole."""
    for span in runtime.tracing.take(result.claim.token):
        _tell(span, result, landing)
        span.end()


@contextlib.contextmanager
def publication_traced(runtime: Runtime, job_id: int, job: str) -> Iterator[Span]:
    """Trace the publication of a claimed action set."""
    if not runtime.tracing.is_on:
        yield NO_SPAN
        return
    place = Place()
    with contextlib.suppress(LedgerError):
        place = place_of(runtime, job_id)
    attributes = {Key.JOB: job, Key.STAGE: Stage.PUBLISH.value, Key.WORKER: runtime.worker, Key.RUN: runtime.run_id}
    with runtime.tracing.span(Work.PUBLISH, attributes, parent=place.parent, links=place.links) as span:
        yield span


def _start_stage(runtime: Runtime, claim: Claim, place: Place) -> Span:
    stage = claim.key.stage.value
    attributes = {Key.JOB: claim.job, Key.STAGE: stage, Key.WORKER: runtime.worker, Key.RUN: runtime.run_id}
    return runtime.tracing.start(Work.STAGE, attributes, target=stage, parent=place.parent, links=place.links)


def _start_attempt(runtime: Runtime, claim: Claim, stage: Span) -> Span:
    """Start an attempt's span; raises `LedgerError`."""
    earlier = Traces(runtime.ledger.database).before(claim) if claim.attempt > 1 else None
    other = earlier if earlier is not None and earlier.worker != runtime.worker else None
    link = TraceContext.parse(other.traceparent) if other is not None else None
    return runtime.tracing.start(
        Work.ATTEMPT,
        {
            Key.JOB: claim.job,
            Key.STAGE: claim.key.stage.value,
            Key.ITEM: claim.key.item_key,
            Key.ATTEMPT: claim.attempt,
            Key.IS_REPAIR: bool(claim.repair),
            Key.OPERATION_KEY: claim.operation_key,
        },
        target=claim.key.stage.value,
        parent=stage.context,
        links=(link,) if link else (),
    )


def _tell(span: Span, result: Offer | FailedAttempt, landing: Landing) -> None:
    if landing is Landing.STALE:
        span.set({Key.OUTCOME: landing.value})
    elif isinstance(result, FailedAttempt):
        span.set({Key.OUTCOME: result.outcome.value})
        span.fail(result.error_code)
    else:
        span.set({Key.OUTCOME: landing.value})


@dataclass
class _OpenStage:
    """What this process does of one stage of a job; it ends with the last of its attempts."""

    span: Span
    ended_ns: int = field(default_factory=time.time_ns)


class _EngineSpans:
    """The spans of one drain: of stages, of the attempts in them, and of what became of those."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._traces = Traces(runtime.ledger.database)
        self._places: dict[int, Place] = {}
        self._stages: dict[tuple[int, Stage], _OpenStage] = {}
        self._attempts: dict[str, Span] = {}
        self._unwritten: list[tuple[str, str]] = []
        # One after another: the first of those that begin together reads, and writes, for all.
        self._reading = asyncio.Lock()
        self._writing = asyncio.Lock()

    def around(self, attempt: Attempt) -> Attempt:
        """Return the attempt with a span around it; that the ledger is out of reach costs the span alone."""

        async def traced(claim: Claim) -> Offer | FailedAttempt:
            span = NO_SPAN
            with contextlib.suppress(LedgerError):
                span = await self._begun(claim)
                await self._noted(claim.token, span)
            with self._runtime.tracing.active(span):
                return await attempt(claim)

        return traced

    def before(self, observe: Observe) -> Observe:
        """Return the observer, with the attempt's span ended first."""

        def told(outcome: Outcome) -> None:
            span = self._attempts.pop(outcome.claim.token, None)
            if span is not None:
                _tell(span, outcome.result, outcome.landing)
                span.end()
                self._stages[_stage_of(outcome.claim)].ended_ns = time.time_ns()
            observe(outcome)

        return told

    def close(self) -> None:
        """End what is left: attempts that were given up, then the stages."""
        for span in self._attempts.values():
            span.end()
        for stage in self._stages.values():
            stage.span.end(at_ns=stage.ended_ns)

    async def _begun(self, claim: Claim) -> Span:
        async with self._reading:
            job_id = claim.key.job_id
            if job_id not in self._places:
                self._places[job_id] = await asyncio.to_thread(place_of, self._runtime, job_id)
            if _stage_of(claim) not in self._stages:
                span = _start_stage(self._runtime, claim, self._places[job_id])
                self._stages[_stage_of(claim)] = _OpenStage(span=span)
        stage = self._stages[_stage_of(claim)].span
        if claim.attempt > 1:
            started = await asyncio.to_thread(_start_attempt, self._runtime, claim, stage)
        else:
            started = _start_attempt(self._runtime, claim, stage)
        self._attempts[claim.token] = started
        return started

    async def _noted(self, token: str, span: Span) -> None:
        """Write where the attempt stands, before it calls anybody, in one transaction with others that begin now."""
        if span.context is None:
            return
        place = (token, span.context.traceparent)
        self._unwritten.append(place)
        async with self._writing:
            if place in self._unwritten:
                places, self._unwritten = self._unwritten, []
                await asyncio.to_thread(self._traces.note, places)


def _stage_of(claim: Claim) -> tuple[int, Stage]:
    return claim.key.job_id, claim.key.stage
