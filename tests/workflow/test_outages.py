"""Work that goes on through an outage of the ledger, on a real SQLite file that runs full and is freed again."""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from rulegen_dagster.domain.errors import LedgerError, LedgerFault
from rulegen_dagster.domain.states import AttemptOutcome, JobState, Stage, WorkState
from rulegen_dagster.domain.work import Claim, Landing, Offer
from rulegen_dagster.ledger.blobs import BlobStore
from rulegen_dagster.ledger.claims import Scope
from rulegen_dagster.ledger.database import ManualClock
from rulegen_dagster.ledger.store import Turn
from rulegen_dagster.workflow import documents
from rulegen_dagster.workflow.documents import NotReady, accept, prepare
from rulegen_dagster.workflow.drive import GENERATING_STAGES, generate
from rulegen_dagster.workflow.engine import Engine
from rulegen_dagster.workflow.outages import FIRST_PAUSE_S, LONGEST_PAUSE_S, pause_s, ride_out
from rulegen_dagster.workflow.publish import Published, publish
from rulegen_dagster.workflow.runtime import Runtime
from tests.workflow.conftest import (
    RULES,
    drain,
    finish,
    make_items,
    open_rules,
    policy,
    run_stage,
    stored_blobs,
    submit,
)
from tests.workflow.test_engine import FailingLedger

_PLENTY = 1_000_000


@dataclass
class Disk:
    """The space that SQLite may use: a full one is freed after so many refusals, if ever."""

    pages: int = _PLENTY
    refusals: int = 0
    freed_after: int | None = None
    on_refusal: list[Callable[[], None]] = field(default_factory=list)

    def fill(self, *, freed_after: int | None = None) -> None:
        # SQLite takes no less than the file has already.
        self.pages, self.freed_after = 1, freed_after

    def free(self) -> None:
        self.pages = _PLENTY

    def begin(self, connection: sa.Connection) -> None:
        connection.exec_driver_sql(f"PRAGMA max_page_count = {self.pages}")

    def rolled_back(self, connection: sa.Connection) -> None:
        # A reader ends by a rollback too; a writer does so only where it was refused.
        if connection.info.get("read_only"):
            return
        self.refusals += 1
        for act in self.on_refusal:
            act()
        if self.refusals == self.freed_after:
            self.free()


@pytest.fixture
def disk(local_runtime: Runtime) -> Disk:
    made = Disk()
    event.listen(local_runtime.ledger.database.engine, "begin", made.begin)
    event.listen(local_runtime.ledger.database.engine, "rollback", made.rolled_back)
    return made


def _large_offer(claim: Claim) -> Offer:
    output = json.dumps({"item": claim.key.item_key, "filler": "x" * 50_000})
    return Offer(claim=claim, output=output, provider="test", provider_called=True)


def _calling(
    calls: list[str], disk: Disk, *, full_at: int, freed_after: int | None
) -> Callable[[Claim], Awaitable[Offer]]:
    """Return an attempt that fills the disk with its nth call."""

    async def attempt(claim: Claim) -> Offer:
        calls.append(claim.key.item_key)
        if len(calls) == full_at:
            disk.fill(freed_after=freed_after)
        await asyncio.sleep(0)
        return _large_offer(claim)

    return attempt


def _outcomes(runtime: Runtime, job_id: int) -> Counter[AttemptOutcome | None]:
    attempts = runtime.ledger.reads.attempts(job_id)
    return Counter(attempt.outcome for attempt in attempts if attempt.key.stage is Stage.GENERATE_RULES)


def test_outputs_are_kept_through_a_full_disk_and_accepted_without_a_second_call(
    local_runtime: Runtime, disk: Disk
) -> None:
    job_id, calls = make_items(local_runtime, 12), list[str]()

    outcomes = drain(local_runtime, _calling(calls, disk, full_at=6, freed_after=3))

    assert disk.refusals == 3
    assert len(outcomes) == len(calls) == len(set(calls)) == 12
    assert _outcomes(local_runtime, job_id) == {AttemptOutcome.ACCEPTED: 12}


def test_a_disk_that_stays_full_ends_the_engine_and_no_committed_output_is_made_again(
    local_runtime: Runtime, disk: Disk, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rulegen_dagster.workflow.engine.LEAST_PATIENCE_S", 0.0)
    job_id, calls = make_items(local_runtime, 12), list[str]()
    attempt = _calling(calls, disk, full_at=6, freed_after=None)

    with pytest.raises(LedgerError, match="could not be saved") as caught:
        drain(local_runtime, attempt)
    left = local_runtime.ledger.reads.items(job_id, Stage.GENERATE_RULES)
    disk.free()
    clock.now_ms += 1_000
    drain(local_runtime, attempt)

    in_flight = {item.key.item_key for item in left if item.state is WorkState.RUNNING}
    assert caught.value.fault is LedgerFault.FULL
    assert {key for key, count in Counter(calls).items() if count == 2} <= in_flight
    assert 0 < len(in_flight) <= 4
    assert set(_outcomes(local_runtime, job_id)) == {AttemptOutcome.ACCEPTED, AttemptOutcome.CRASHED}
    items = local_runtime.ledger.reads.items(job_id, Stage.GENERATE_RULES)
    assert {item.state for item in items} == {WorkState.SUCCEEDED}


def test_what_cannot_pass_is_raised_by_the_engine_at_the_first_try(
    local_runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rulegen_dagster.workflow.engine.LEAST_PATIENCE_S", 3_600.0)
    make_items(local_runtime, 1)
    tries = []

    async def attempt(claim: Claim) -> Offer:
        return _large_offer(claim)

    def refuse(_turn: Turn, offer: Offer) -> None:
        tries.append(offer)
        raise LedgerError("the ledger is damaged", code=LedgerFault.CORRUPT.value)

    engine = Engine(local_runtime, attempt, slots=1, observe=lambda _outcome: None, accept=refuse)
    with pytest.raises(LedgerError, match=r"damaged\. 1 finished outputs could not be saved;") as caught:
        asyncio.run(engine.drain(Scope(stages=(Stage.GENERATE_RULES,))))

    assert len(tries) == 1
    assert caught.value.fault is LedgerFault.CORRUPT


def test_an_engine_that_waits_for_the_ledger_is_cancelled_like_any_other(
    local_runtime: Runtime, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rulegen_dagster.workflow.engine.LEAST_PATIENCE_S", 3_600.0)
    monkeypatch.setattr("rulegen_dagster.workflow.engine.pause_s", lambda _failures: 3_600.0)
    make_items(local_runtime, 4)
    attempt = _calling([], disk, full_at=1, freed_after=None)

    async def scenario() -> None:
        loop, refused = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            loop.call_soon_threadsafe(refused.set)

        disk.on_refusal.append(tell)
        engine = Engine(local_runtime, attempt, slots=4, observe=lambda _outcome: None)
        work = asyncio.create_task(engine.drain(Scope(stages=RULES)))
        await refused.wait()
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work

    asyncio.run(scenario())

    assert disk.refusals == 1


def test_what_a_full_disk_keeps_out_of_a_document_stage_is_offered_again(local_runtime: Runtime, disk: Disk) -> None:
    job = submit(local_runtime, policy(300))
    prepared = prepare(local_runtime, job.job_id, Stage.PARSE)
    assert isinstance(prepared, Offer)
    disk.fill(freed_after=2)

    landing = accept(local_runtime, prepared)

    assert (landing, disk.refusals) == (Landing.ACCEPTED, 2)
    assert [a.outcome for a in local_runtime.ledger.reads.attempts(job.job_id)] == [AttemptOutcome.ACCEPTED]


@pytest.mark.parametrize("stage", [Stage.PARSE, Stage.RETRIEVE, Stage.VALIDATE])
def test_a_document_whose_commit_was_answered_by_nobody_opens_its_stage_once(
    local_runtime: Runtime, stage: Stage
) -> None:
    job = submit(local_runtime, policy(3))
    for before in (Stage.PARSE, Stage.RETRIEVE, Stage.VALIDATE):
        if before is stage:
            break
        run_stage(local_runtime, job, before)
        if before is Stage.RETRIEVE:
            _generate(local_runtime)
    ledger = FailingLedger(local_runtime.ledger.database, local_runtime.ledger.policy)
    prepared = prepare(local_runtime, job.job_id, stage)
    assert isinstance(prepared, Offer)
    ledger.lose_after = 1

    landing = accept(replace(local_runtime, ledger=ledger), prepared)
    done = finish(local_runtime, local_runtime.ledger.reads.job_by_id(job.job_id))

    assert landing is Landing.ACCEPTED
    assert done.state is JobState.AWAITING_CONFIRMATION
    assert {a.outcome for a in local_runtime.ledger.reads.attempts(job.job_id)} == {AttemptOutcome.ACCEPTED}


def _generate(runtime: Runtime) -> None:
    for _ in GENERATING_STAGES:
        generate(runtime, Scope(stages=GENERATING_STAGES), observe=lambda _outcome: None)


def test_a_fault_of_the_ledger_while_a_document_is_made_is_not_booked_on_the_attempt(
    local_runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submit(local_runtime, policy(1))

    def damaged(_runtime: Runtime, _claim: Claim) -> Offer:
        raise LedgerError("damaged", code=LedgerFault.CORRUPT)

    monkeypatch.setitem(documents._HANDLERS, Stage.PARSE, damaged)
    with pytest.raises(LedgerError, match="damaged"):
        prepare(local_runtime, job.job_id, Stage.PARSE)

    (attempt,) = local_runtime.ledger.reads.attempts(job.job_id)
    assert (attempt.outcome, attempt.error_code) == (None, None)


@pytest.mark.parametrize("code", ["blob_missing", "blob_store"])
def test_a_host_that_cannot_reach_the_blobs_gives_the_item_back_and_uses_no_attempt_up(
    local_runtime: Runtime, tmp_path: Path, clock: ManualClock, code: str
) -> None:
    job = submit(local_runtime, policy(1))
    elsewhere = tmp_path / "elsewhere"
    if code == "blob_store":
        elsewhere.touch()
    stranger = replace(local_runtime, blobs=BlobStore(elsewhere), worker="stranger")

    for _ in range(local_runtime.settings.max_attempts + 1):
        with pytest.raises(LedgerError) as caught:
            prepare(stranger, job.job_id, Stage.PARSE)
        assert caught.value.code == code
        assert isinstance(prepare(stranger, job.job_id, Stage.PARSE), NotReady)
        clock.now_ms += stranger.settings.lease_ms
    (item,) = local_runtime.ledger.reads.items(job.job_id, Stage.PARSE)
    run_stage(local_runtime, job, Stage.PARSE)

    assert (item.state, item.error_code) == (WorkState.WAITING, code)
    assert local_runtime.ledger.reads.job_by_id(job.job_id).state is JobState.RETRIEVING


def test_a_damaged_blob_is_booked_on_the_attempt(local_runtime: Runtime) -> None:
    job = submit(local_runtime, policy(1))
    (path,) = stored_blobs(local_runtime)
    path.write_bytes(b"other bytes")

    with pytest.raises(LedgerError, match="damaged"):
        prepare(local_runtime, job.job_id, Stage.PARSE)

    (attempt,) = local_runtime.ledger.reads.attempts(job.job_id)
    assert (attempt.outcome, attempt.error_code) == (AttemptOutcome.RETRYABLE, "blob_damaged")


def test_a_fault_that_passes_while_a_document_is_made_costs_no_attempt(
    local_runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submit(local_runtime, policy(1))
    made, parse = list[Stage](), documents._HANDLERS[Stage.PARSE]

    def away_once(runtime: Runtime, claim: Claim) -> Offer:
        made.append(claim.key.stage)
        if len(made) == 1:
            raise LedgerError("gone")
        return parse(runtime, claim)

    monkeypatch.setitem(documents._HANDLERS, Stage.PARSE, away_once)
    run_stage(local_runtime, job, Stage.PARSE)

    assert len(made) == 2
    assert [a.outcome for a in local_runtime.ledger.reads.attempts(job.job_id)] == [AttemptOutcome.ACCEPTED]


def test_a_receipt_whose_answer_was_lost_is_found_and_another_is_refused(runtime: Runtime) -> None:
    job = finish(runtime, open_rules(runtime, policy(1)))
    actions = runtime.ledger.actions
    actions.confirm(job.job_id, str(job.action_set_digest), actor="test")
    claim = actions.claim(job.job_id, token=runtime.tokens(), claimant=runtime.claimant)
    assert claim is not None

    landed = [actions.finish(claim, receipt=text, actor="test") for text in ('{"path":"p"}', '{"path":"p"}', "{}")]

    assert landed == [True, True, False]
    assert runtime.ledger.reads.job_by_id(job.job_id).state is JobState.COMPLETED


def test_a_bundle_is_published_by_one_call_through_a_ledger_that_takes_no_writes_for_a_while(
    local_runtime: Runtime,
) -> None:
    job = finish(local_runtime, open_rules(local_runtime, policy(1)))
    local_runtime.ledger.actions.confirm(job.job_id, str(job.action_set_digest), actor="test")
    refused: list[str] = []

    def checked_out(connection: Any, _record: Any, _proxy: Any) -> None:
        connection.execute(f"PRAGMA query_only = {int(len(refused) in (0, 2))}")

    def written(connection: sa.Connection) -> None:
        # Once for the claim and once for the receipt: what comes between them is on the disk by then.
        if len(refused) == 1 and connection.exec_driver_sql("SELECT 1 FROM action WHERE state = 'executing'").first():
            refused.append("the claim is there")

    engine = local_runtime.ledger.database.engine
    event.listen(engine, "checkout", checked_out)
    event.listen(engine, "commit", written)
    event.listen(engine, "handle_error", lambda context: refused.append(str(context.original_exception)))

    published = publish(local_runtime, local_runtime.ledger.reads.job_by_id(job.job_id))

    readonly = "attempt to write a readonly database"
    assert refused == [readonly, "the claim is there", readonly]
    assert isinstance(published, Published)
    assert local_runtime.ledger.reads.job_by_id(job.job_id).state is JobState.COMPLETED


def test_the_pauses_of_an_outage_double_up_to_a_limit() -> None:
    pauses = [pause_s(failures) for failures in (1, 2, 3, 100)]

    assert pauses == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S, LONGEST_PAUSE_S]


@pytest.mark.parametrize("fault", list(LedgerFault))
def test_only_a_fault_that_may_pass_is_waited_for(fault: LedgerFault) -> None:
    tries: list[int] = []
    pauses: list[float] = []

    def work() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise LedgerError("no", code=fault.value)
        return "done"

    try:
        told = ride_out(work, sleep=pauses.append)
    except LedgerError as error:
        told = error.code

    passes = LedgerError("", code=fault.value).is_transient
    assert told == ("done" if passes else fault.value)
    assert pauses == ([FIRST_PAUSE_S] if passes else [])


def test_a_ledger_that_stays_away_is_told_once_the_patience_has_passed() -> None:
    def work() -> None:
        raise LedgerError("gone")

    with pytest.raises(LedgerError, match="gone"):
        ride_out(work, patience_s=0.0)
