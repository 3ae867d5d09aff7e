"""Partitions: many keys of the `rules` set worked on in one run, each with an outcome of its own."""

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from rulegen_dagster.domain.errors import InputError
from rulegen_dagster.domain.states import JOB_STATE_OF_STAGE, JobState, Stage, WorkState
from rulegen_dagster.domain.text import moment
from rulegen_dagster.domain.work import NO_USAGE, Landing, Offer, Usage, WorkKey
from rulegen_dagster.ledger.claims import Scope
from rulegen_dagster.ledger.reads import ItemRecord, JobRecord
from rulegen_dagster.workflow.behaviours import OTHER_RELEASE, Checked, held_up_by
from rulegen_dagster.workflow.deadlines import expire_overdue
from rulegen_dagster.workflow.engine import Accept, Engine, Outcome
from rulegen_dagster.workflow.generate import Generation
from rulegen_dagster.workflow.limits import limit_text
from rulegen_dagster.workflow.quotas import hold_text, quota_hold
from rulegen_dagster.workflow.runtime import Runtime
from rulegen_dagster.workflow.stopping import Stop
from rulegen_dagster.workflow.traces import engine_traced

RETIRED_STATES = frozenset({JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED})
"""Jobs whose keys are retired: they ended without a result, and their keys are never worked on again."""


GIVE_BACK_S = 2.0
"""How much longer than the grace period an engine may take to give back what is in flight."""


class KeyState(StrEnum):
    """What a run can say of one key."""

    #: Accepted in this run.
    ACCEPTED = "accepted"
    #: Accepted earlier, or by another run; nothing was called for it here.
    REUSED = "reused"
    #: Out of attempts, or a permanent error.
    FAILED = "failed"
    #: A retry is due later; the ledger keeps the time.
    WAITING = "waiting"
    #: Another worker holds the lease.
    LEASED = "leased"
    #: An earlier stage of the job is not complete.
    BLOCKED = "blocked"


@dataclass(frozen=True, kw_only=True)
class KeyOutcome:
    """What became of one key in one stage; `output` is the accepted output, `reason` is set where there is none."""

    partition_key: str
    stage: Stage
    state: KeyState
    job_id: int
    item_key: str
    job: str
    attempt: int
    output: str | None = None
    provider: str | None = None
    provider_called: bool = False
    usage: Usage = NO_USAGE
    reason: str | None = None

    @property
    def is_accepted(self) -> bool:
        """Whether the key has an accepted output now."""
        return self.state in (KeyState.ACCEPTED, KeyState.REUSED)

    @property
    def work_key(self) -> WorkKey:
        """The work item behind the key."""
        return WorkKey(job_id=self.job_id, stage=self.stage, item_key=self.item_key)


def drain_keys(
    runtime: Runtime,
    keys: Sequence[str],
    stages: Sequence[Stage],
    *,
    accept: Accept,
    redrive_reason: str | None,
) -> Generator[KeyOutcome, None, None]:
    """Work on every key in every stage; yield each key's outcome once for each stage, as soon as it is known.

    Accepted outputs are never generated again. `redrive_reason` gives failed items new attempts first, because a
    person asked for it. Keys of a job that this release cannot go on with are left, with that reason. Raises
    `InputError`, before any call: for an empty list, for unknown or retired keys, and where this process is not set up
    for what a job froze.

    The engine runs in a thread of its own: what the consumer does with an outcome never holds up a slot.
    """
    keys = tuple(dict.fromkeys(keys))
    known = _known(runtime, keys)
    jobs = {job_id: runtime.ledger.reads.job_by_id(job_id) for job_id in {i.key.job_id for i in known.values()}}
    _refuse_retired(known, jobs)
    generation = Generation(runtime)
    checked = generation.load(jobs)
    if redrive_reason is not None:
        here = {key: item for key, item in known.items() if checked[item.key.job_id].may_go_on}
        _redrive(runtime, here, stages, redrive_reason)
    before = tuple(_accepted_before(runtime, keys, stages, jobs))
    told = {(outcome.stage, outcome.partition_key) for outcome in before}
    missing = [
        WorkKey(job_id=known[key].key.job_id, stage=stage, item_key=known[key].key.item_key)
        for stage in stages
        for key in keys
        if (stage, key) not in told and checked[known[key].key.job_id].may_go_on
    ]
    scope = Scope(stages=tuple(stages), items=tuple(missing))
    with _Drain(runtime, generation, scope, accept) if missing else contextlib.nullcontext(()) as drained:
        # Told while the engine is at work: its first call waits for nothing that the consumer does.
        yield from before
        for ended in drained:
            if isinstance(ended.result, Offer) and ended.landing is Landing.ACCEPTED:
                outcome = _accepted(ended.result)
                told.add((outcome.stage, outcome.partition_key))
                yield outcome
    expire_overdue(runtime, jobs, actor=runtime.worker)
    for stage in stages:
        left = tuple(key for key in keys if (stage, key) not in told)
        yield from _left_over(runtime, stage, left, known, checked)


def _known(runtime: Runtime, keys: Sequence[str]) -> dict[str, ItemRecord]:
    if not keys:
        raise InputError(
            "the run names no partition key (an empty or reversed range); select keys of the rules", code="no_keys"
        )
    known = runtime.ledger.reads.items_by_partition(Stage.GENERATE_RULES, tuple(keys))
    unknown = [key for key in keys if key not in known]
    if unknown:
        raise InputError(
            f"{len(unknown)} of {len(keys)} keys are not in the ledger, first '{unknown[0][:64]}'; keys come from"
            " parsed specifications alone, they cannot be made by hand",
            code="unknown_key",
        )
    return known


def _refuse_retired(known: dict[str, ItemRecord], jobs: dict[int, JobRecord]) -> None:
    retired = [key for key, item in known.items() if jobs[item.key.job_id].state in RETIRED_STATES]
    if retired:
        job = jobs[known[retired[0]].key.job_id]
        raise InputError(
            f"{len(retired)} keys are retired, first '{retired[0]}': their job {job.name} is {job.state};"
            f" 'rulegen fork {job.name} --key …' opens its successor",
            code="retired_key",
        )


def _redrive(runtime: Runtime, known: dict[str, ItemRecord], stages: Sequence[Stage], reason: str) -> None:
    by_job: dict[int, list[str]] = {}
    for item in known.values():
        by_job.setdefault(item.key.job_id, []).append(item.key.item_key)
    for job_id, item_keys in by_job.items():
        for stage in stages:
            runtime.ledger.redrives.redrive(job_id, stage, item_keys, actor=runtime.worker, reason=reason)


def _accepted_before(
    runtime: Runtime, keys: Sequence[str], stages: Sequence[Stage], jobs: dict[int, JobRecord]
) -> Iterator[KeyOutcome]:
    for stage in stages:
        items = runtime.ledger.reads.items_by_partition(stage, tuple(keys))
        accepted = [items[key] for key in keys if key in items and items[key].state is WorkState.SUCCEEDED]
        yield from _reused(runtime, accepted, jobs)


def _reused(runtime: Runtime, items: Sequence[ItemRecord], jobs: dict[int, JobRecord]) -> Iterator[KeyOutcome]:
    if not items:
        return
    made = runtime.ledger.reads.accepted_attempts({item.key.job_id for item in items})
    for item in items:
        attempt = made[item.key]
        yield KeyOutcome(
            partition_key=str(item.partition_key),
            stage=item.key.stage,
            state=KeyState.REUSED,
            job_id=item.key.job_id,
            item_key=item.key.item_key,
            job=str(jobs[item.key.job_id].name),
            attempt=attempt.attempt,
            output=item.output,
            provider=attempt.provider,
            provider_called=False,
            usage=Usage(
                model_id=attempt.model_id,
                request_id=attempt.request_id,
                tokens_in=attempt.tokens_in,
                tokens_out=attempt.tokens_out,
                cost_micros=attempt.cost_micros,
            ),
        )


def _accepted(offer: Offer) -> KeyOutcome:
    return KeyOutcome(
        partition_key=str(offer.claim.partition_key),
        stage=offer.claim.key.stage,
        state=KeyState.ACCEPTED,
        job_id=offer.claim.key.job_id,
        item_key=offer.claim.key.item_key,
        job=offer.claim.job,
        attempt=offer.claim.attempt,
        output=offer.output,
        provider=offer.provider,
        provider_called=offer.provider_called,
        usage=offer.usage,
    )


def _left_over(
    runtime: Runtime,
    stage: Stage,
    keys: tuple[str, ...],
    known: dict[str, ItemRecord],
    checked: dict[int, Checked],
) -> Iterator[KeyOutcome]:
    """Say of each key that this run did not get accepted what it is waiting for, or that another run got it."""
    items = runtime.ledger.reads.items_by_partition(stage, keys)
    elsewhere = [item for item in items.values() if item.state is WorkState.SUCCEEDED]
    jobs = {job_id: one.job for job_id, one in checked.items()}
    yield from _reused(runtime, elsewhere, jobs)
    for key in keys:
        item = items.get(key)
        if item is not None and item.state is WorkState.SUCCEEDED:
            continue
        state, reason = _why(runtime, stage, item, checked[known[key].key.job_id])
        yield KeyOutcome(
            partition_key=key,
            stage=stage,
            state=state,
            job_id=known[key].key.job_id,
            item_key=known[key].key.item_key,
            job=str(jobs[known[key].key.job_id].name),
            attempt=item.attempts if item else 0,
            reason=reason,
        )


def _why(runtime: Runtime, stage: Stage, item: ItemRecord | None, checked: Checked) -> tuple[KeyState, str]:
    job_id = checked.job.job_id
    job = runtime.ledger.reads.job_by_id(job_id)
    if job.state in RETIRED_STATES:
        return KeyState.BLOCKED, f"the job is {job.state}: {job.end_reason or 'no reason was given'}"
    if job.state is JobState.NEEDS_DECISION or not checked.may_go_on:
        held_up = held_up_by(runtime, replace(checked, job=job))
        return KeyState.LEASED if held_up.code == OTHER_RELEASE else KeyState.BLOCKED, held_up.text
    if item is None or (item.state is not WorkState.FAILED and job.state is not JOB_STATE_OF_STAGE[stage]):
        return KeyState.BLOCKED, f"the job is {job.state}; {stage} begins when every earlier item is accepted"
    match item.state:
        case WorkState.FAILED:
            return KeyState.FAILED, f"{item.error_code}: {item.error_message}"
        case WorkState.WAITING if (item.next_attempt_at or 0) > runtime.ledger.reads.now():
            due = moment(item.next_attempt_at, runtime.ledger.reads.now())
            return KeyState.WAITING, f"retry due {due} after {item.error_code}"
        case WorkState.RUNNING:
            ends = moment(item.lease_until, runtime.ledger.reads.now())
            return KeyState.LEASED, f"held by {item.worker}, whose lease ends {ends}"
        case _:
            now = runtime.ledger.reads.now()
            if reached := runtime.ledger.limits.reached(job_id, stage):
                return KeyState.WAITING, limit_text("it", reached, now)
            hold = quota_hold(runtime, job_id, stage)
            return KeyState.WAITING, hold_text("it", hold, now) if hold else "can be claimed now"


class _Drain:
    """Runs an engine in a thread while the block lasts and hands its outcomes over; leaving the block stops it."""

    def __init__(self, runtime: Runtime, generation: Generation, scope: Scope, accept: Accept) -> None:
        self._runtime = runtime
        self._generation = generation
        self._scope = scope
        self._accept = accept
        self._stop = Stop(grace_ms=runtime.settings.grace_ms)
        self._outcomes: queue.SimpleQueue[Outcome | BaseException | None] = queue.SimpleQueue()
        self._begun = threading.Event()
        self._over = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)

    def __enter__(self) -> Iterator[Outcome]:
        self._thread.start()
        return self._ended()

    def __exit__(self, *_: object) -> None:
        """Let the engine come to its end: it finishes or gives back what is in flight, within the grace period.

        Whoever interrupts a run often does so twice (a group's signal and a parent's), so that a further interruption
        waits until then.
        """
        self._stop.request()
        interrupted: BaseException | None = None
        until = time.monotonic() + self._stop.grace_s + GIVE_BACK_S
        while not self._over.is_set() and time.monotonic() < until:
            try:
                # Not `join`: interrupted, it takes the thread for ended (Python 3.11).
                self._over.wait(until - time.monotonic())
            except BaseException as again:
                interrupted = again
        self._cancel()
        self._over.wait()
        self._thread.join()
        if interrupted is not None:
            raise interrupted

    def _ended(self) -> Iterator[Outcome]:
        while (outcome := self._outcomes.get()) is not None:
            if isinstance(outcome, BaseException):
                raise outcome
            yield outcome

    def _work(self) -> None:
        ended: BaseException | None = None
        try:
            asyncio.run(self._drain())
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            ended = error
        self._begun.set()
        # Last of all, so that nothing of the loop is left when the consumer goes on.
        self._outcomes.put(ended)
        self._over.set()

    async def _drain(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._begun.set()
        observe = self._generation.watched(self._outcomes.put)
        with engine_traced(self._runtime, self._generation.attempt, observe) as (attempt, told):
            engine = Engine(
                self._runtime,
                attempt,
                slots=self._runtime.settings.slots,
                observe=told,
                accept=self._accept,
                stop=self._stop,
            )
            await engine.drain(self._scope)

    def _cancel(self) -> None:
        self._begun.wait()
        if self._loop is None or self._task is None:
            return
        # The loop may have closed meanwhile; then there is nothing left to stop.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._task.cancel)
