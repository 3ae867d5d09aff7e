"""Events off the path: acceptance waits for no event log, and an event that a run did not write appears later, once."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from rulegen_dagster.defs.sensors import mirror_events
from rulegen_dagster.domain.states import JobState, Stage, WorkState
from rulegen_dagster.ledger.database import ManualClock
from rulegen_dagster.ledger.outbox import Acceptance
from rulegen_dagster.ledger.reads import JobRecord
from rulegen_dagster.resources.mirroring import DagsterEventLog
from rulegen_dagster.resources.runtime import RuntimeResource
from rulegen_dagster.settings import Settings
from rulegen_dagster.workflow import mirror as mirroring
from rulegen_dagster.workflow.drive import drive
from rulegen_dagster.workflow.mirror import HOLD_MS, Mirrored, mirror, resync
from rulegen_dagster.workflow.publish import Published, publish
from rulegen_dagster.workflow.runtime import Runtime, open_runtime
from tests.defs.conftest import Execute, calls, failure_text, materialized

Tick = Callable[[], str]
ASSETS = ("parsed_spec", "clause_context", "rule", "test_suite", "validation_report", "ruleset")


@pytest.fixture
def tick(definitions: dg.Definitions, instance: dg.DagsterInstance) -> Tick:
    """Evaluate the sensor once; return what it says."""

    def evaluate() -> str:
        context = dg.build_sensor_context(
            instance=instance, definitions=definitions, resources={"runtime": RuntimeResource()}
        )
        reason = mirror_events(context)
        assert isinstance(reason, dg.SkipReason)
        return str(reason.skip_message)

    return evaluate


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(int(time.time() * 1_000))


@pytest.fixture
def held(home: Path, clock: ManualClock) -> Iterator[Runtime]:
    """A runtime on the same ledger, with a clock that the test sets."""
    runtime = open_runtime(Settings(), clock=clock)
    yield runtime
    runtime.close()


def _accept_all(opened: Runtime, job: JobRecord) -> JobRecord:
    """Take a job to its confirmation without Dagster, as `rulegen run` does."""
    return drive(opened, job, observe=lambda _: None, on_wait=lambda _: None)


def _events(instance: dg.DagsterInstance) -> Counter[tuple[str, str]]:
    return Counter((asset, key) for asset in ASSETS for key in materialized(instance, asset))


def _metadata(instance: dg.DagsterInstance, asset: str, key: str) -> dict[str, Any]:
    chosen = dg.AssetRecordsFilter(dg.AssetKey(asset), asset_partitions=[key])
    (record,) = instance.fetch_materializations(chosen, limit=2).records
    event = record.asset_materialization
    assert event is not None
    return {name: found.value for name, found in event.metadata.items()}


def _running(definitions: dg.Definitions, instance: dg.DagsterInstance) -> dg.DagsterRun:
    return instance.create_run_for_job(
        definitions.resolve_job_def("generate_rules"), status=dg.DagsterRunStatus.STARTED
    )


def _break_events(monkeypatch: pytest.MonkeyPatch, instance: dg.DagsterInstance, before: Callable[[], None]) -> None:
    """Do something before each materialization reaches the event log."""
    store = instance.handle_new_event

    def handle(event: dg.EventLogEntry, **options: Any) -> None:
        if event.dagster_event_type is dg.DagsterEventType.ASSET_MATERIALIZATION:
            before()
        store(event, **options)

    monkeypatch.setattr(instance, "handle_new_event", handle)


def test_a_run_marks_what_it_has_logged_and_the_sensor_finds_the_rest(
    tick: Tick, opened: Runtime, instance: dg.DagsterInstance, job: JobRecord, keys: tuple[str, ...], execute: Execute
) -> None:
    execute("generate_tests", key_range=keys)
    after_run = opened.ledger.outbox.unmirrored()
    execute("validate", key=job.partition_key)

    said = tick()

    # Parse and retrieve were accepted without Dagster; the event of validate is Dagster's own.
    assert after_run == 2
    assert said.startswith("2 events written, 1 found in the log; 0 outputs left")
    assert _events(instance).most_common(1)[0][1] == 1


def test_what_was_accepted_without_dagster_appears_once_however_often_the_sensor_looks(
    tick: Tick, opened: Runtime, instance: dg.DagsterInstance, job: JobRecord, keys: tuple[str, ...]
) -> None:
    ready = _accept_all(opened, job)
    opened.ledger.actions.confirm(job.job_id, str(ready.action_set_digest), actor="test")
    assert isinstance(publish(opened, ready), Published)

    first, second = tick(), tick()

    document = [(asset, job.partition_key) for asset in ASSETS if asset not in {"rule", "test_suite"}]
    wanted = [*document, *((asset, key) for asset in ("rule", "test_suite") for key in keys)]
    assert _events(instance) == Counter(wanted)
    assert first.startswith("44 events written, 0 found")
    assert second.startswith("0 events written, 0 found in the log; 0 outputs left")


def test_keys_that_dagster_lacks_are_registered_in_order(
    tick: Tick, opened: Runtime, job: JobRecord, keys: tuple[str, ...], definitions: dg.Definitions
) -> None:
    with dg.DagsterInstance.ephemeral() as empty:
        assert mirror(opened, DagsterEventLog(empty, opened), limit=200).written == 2

        assert empty.get_dynamic_partitions("jobs") == [job.partition_key]
        assert tuple(empty.get_dynamic_partitions("rules")) == keys


def test_a_late_event_tells_what_the_run_would_have_told_and_that_it_is_late(
    tick: Tick, opened: Runtime, instance: dg.DagsterInstance, job: JobRecord, keys: tuple[str, ...], execute: Execute
) -> None:
    execute("generate_rules", key=keys[0])
    by_run = _metadata(instance, "rule", keys[0])
    with dg.DagsterInstance.ephemeral() as other:
        resync(opened, DagsterEventLog(other, opened))
        late = _metadata(other, "rule", keys[0])

    added = {"mirrored", "accepted_at", "accepted_in_run"}
    assert {name: value for name, value in late.items() if name not in added} == by_run
    assert late["mirrored"] is True
    assert set(late) - set(by_run) == added


def test_the_outputs_of_a_run_in_progress_are_left_to_it_and_do_not_hold_up_others(
    tick: Tick, definitions: dg.Definitions, instance: dg.DagsterInstance, job: JobRecord, opened: Runtime
) -> None:
    run = _running(definitions, instance)
    in_run = open_runtime(Settings(), run_id=run.run_id)
    _accept_all(in_run, job)
    in_run.close()

    while_it_runs = tick()
    instance.report_run_failed(run)
    afterwards = tick()

    assert while_it_runs.startswith("2 events written, 0 found in the log; 41 outputs left")
    assert afterwards.startswith("41 events written, 0 found in the log; 0 outputs left")


def test_an_event_that_was_written_and_not_marked_is_found(
    held: Runtime, clock: ManualClock, instance: dg.DagsterInstance, job: JobRecord
) -> None:
    class Crashing(DagsterEventLog):
        def write(self, acceptance: Acceptance) -> None:
            super().write(acceptance)
            raise KeyError

    with pytest.raises(KeyError):
        mirror(held, Crashing(instance, held), limit=200)

    done = mirror(held, DagsterEventLog(instance, held), limit=200)

    assert done == Mirrored(written=1, found=1)
    assert set(_events(instance).values()) == {1}


def test_a_second_process_leaves_what_the_first_is_at(
    held: Runtime, opened: Runtime, instance: dg.DagsterInstance, job: JobRecord
) -> None:
    seen: list[Mirrored] = []

    class Rival(DagsterEventLog):
        def missing(self, acceptances: Any) -> list[Acceptance]:
            found = super().missing(acceptances)
            # Between the look and the write, where both would find nothing.
            seen.append(mirror(opened, DagsterEventLog(instance, opened), limit=200))
            return found

    done = mirror(held, Rival(instance, held), limit=200)

    assert (done, seen) == (Mirrored(written=2), [Mirrored(left=2)])
    assert set(_events(instance).values()) == {1}


def test_a_process_that_stood_still_writes_no_more_of_what_it_held(
    held: Runtime, clock: ManualClock, instance: dg.DagsterInstance, job: JobRecord
) -> None:
    class Suspended(DagsterEventLog):
        def write(self, acceptance: Acceptance) -> None:
            super().write(acceptance)
            clock.now_ms += HOLD_MS

    first = mirror(held, Suspended(instance, held), limit=200)
    second = mirror(held, DagsterEventLog(instance, held), limit=200)

    assert (first, second) == (Mirrored(written=1, left=1), Mirrored(written=1))
    assert set(_events(instance).values()) == {1}


def test_a_tick_is_bounded_and_the_next_one_goes_on(
    held: Runtime, instance: dg.DagsterInstance, job: JobRecord, opened: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirroring, "BATCH", 5)
    _accept_all(opened, job)
    log = DagsterEventLog(instance, held)

    written = [mirror(held, log, limit=20).written for _ in range(4)]

    assert written == [20, 20, 3, 0]


def test_a_cancelled_jobs_outputs_are_shown_all_the_same(
    tick: Tick, opened: Runtime, instance: dg.DagsterInstance, job: JobRecord
) -> None:
    ready = _accept_all(opened, job)
    opened.ledger.actions.reject(job.job_id, actor="test", reason="another policy")

    tick()

    assert ready.state is JobState.AWAITING_CONFIRMATION
    assert opened.ledger.reads.job_by_id(job.job_id).state is JobState.CANCELLED
    assert len(_events(instance)) == 43


def test_a_lost_home_is_repainted_from_the_ledger_and_a_second_time_nothing_is_written(
    tick: Tick, opened: Runtime, instance: dg.DagsterInstance, job: JobRecord, keys: tuple[str, ...], execute: Execute
) -> None:
    execute("generate_tests", key_range=keys)
    tick()
    with dg.DagsterInstance.ephemeral() as new:
        log = DagsterEventLog(new, opened)

        first, second = resync(opened, log), resync(opened, log)

        assert (first, second) == (Mirrored(written=42), Mirrored(found=42))
        assert _events(new) == _events(instance)


def test_an_event_log_that_fails_stops_no_acceptance_and_the_events_follow_once(
    tick: Tick,
    home: Path,
    opened: Runtime,
    instance: dg.DagsterInstance,
    job: JobRecord,
    keys: tuple[str, ...],
    execute: Execute,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> None:
        raise OSError("the event log is away")

    with monkeypatch.context() as broken:
        _break_events(broken, instance, fail)
        result = execute("generate_tests", key_range=keys)
    shown = _events(instance)

    tick()
    tick()

    items = opened.ledger.reads.items(job.job_id, Stage.GENERATE_TESTS)
    assert not result.success
    assert "40 events could not be written" in failure_text(result)
    assert [item.state for item in items] == [WorkState.SUCCEEDED] * 20
    assert (len(calls(home)), shown) == (40, Counter())
    assert _events(instance) == Counter(
        [("parsed_spec", job.partition_key), ("clause_context", job.partition_key)]
        + [(asset, key) for asset in ("rule", "test_suite") for key in keys]
    )


def test_an_event_log_that_takes_its_time_holds_up_no_slot(
    home: Path,
    opened: Runtime,
    instance: dg.DagsterInstance,
    job: JobRecord,
    keys: tuple[str, ...],
    execute: Execute,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    execute("generate_rules", key_range=keys[:5])
    accepted_at_first: list[int] = []

    def wait_for_every_acceptance() -> None:
        give_up = time.monotonic() + 60
        while not accepted_at_first and time.monotonic() < give_up:
            items = opened.ledger.reads.items(job.job_id, Stage.GENERATE_TESTS)
            done = sum(item.state is WorkState.SUCCEEDED for item in items)
            if done == 20:
                accepted_at_first.append(done)
            time.sleep(0.01)

    _break_events(monkeypatch, instance, wait_for_every_acceptance)
    result = execute("generate_tests", key_range=keys)

    # The first event of the run, of an output that was there before, is written after the last acceptance.
    assert result.success
    assert accepted_at_first == [20]
    assert len(calls(home)) == 40
