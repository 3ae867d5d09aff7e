import shutil
import time
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest
import sqlalchemy as sa

from rulegen_dagster.defs.sensors import confirmed_jobs, due_work, new_uploads
from rulegen_dagster.domain.states import JobState, Stage
from rulegen_dagster.ledger.claims import Scope
from rulegen_dagster.ledger.reads import JobRecord
from rulegen_dagster.ledger.schema import work_item
from rulegen_dagster.resources.launches import (
    CONTINUES_TAG,
    FIRST_PAUSE_S,
    PARENT_RUN_TAG,
    ROOT_RUN_TAG,
    WORK_TAG,
    is_asked_for_by_a_person,
    pause_s,
    run_requests,
)
from rulegen_dagster.resources.partition_sets import register_keys
from rulegen_dagster.resources.runtime import RuntimeResource
from rulegen_dagster.workflow.plan import plan_publications, plan_work
from rulegen_dagster.workflow.runtime import Runtime
from tests.defs.conftest import RANGE_END, RANGE_START, Execute, calls, write_script

Tick = Callable[..., tuple[list[dg.RunRequest], str | None]]


@pytest.fixture
def tick(definitions: dg.Definitions, instance: dg.DagsterInstance) -> Tick:
    """Evaluate a sensor once; return its run requests and its cursor."""

    def evaluate(sensor: dg.SensorDefinition, cursor: str | None = None) -> tuple[list[dg.RunRequest], str | None]:
        context = dg.build_sensor_context(
            instance=instance, cursor=cursor, definitions=definitions, resources={"runtime": RuntimeResource()}
        )
        result = sensor(context)
        assert isinstance(result, dg.SensorResult)
        return list(result.run_requests or []), result.cursor

    return evaluate


def upload(home: Path, source: Path, name: str = "policy.md") -> Path:
    folder = home / "uploads" / "default"
    folder.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copyfile(source, folder / name))


def test_an_upload_becomes_a_job_once_its_size_stands_still(
    tick: Tick, home: Path, opened: Runtime, instance: dg.DagsterInstance, example_policy: Path
) -> None:
    upload(home, example_policy)

    _, cursor = tick(new_uploads)
    before = opened.ledger.reads.jobs()
    tick(new_uploads, cursor)

    (job,) = opened.ledger.reads.jobs()
    assert before == []
    assert job.state is JobState.EXTRACTING
    assert instance.get_dynamic_partitions("jobs") == [job.partition_key]


def test_a_cursor_that_was_set_back_makes_no_second_job(
    tick: Tick, home: Path, opened: Runtime, instance: dg.DagsterInstance, example_policy: Path
) -> None:
    upload(home, example_policy)
    _, cursor = tick(new_uploads)
    tick(new_uploads, cursor)

    _, lost = tick(new_uploads, None)
    tick(new_uploads, lost)

    assert len(opened.ledger.reads.jobs()) == 1


def test_a_refused_upload_is_told_and_does_not_stop_the_others(
    tick: Tick, home: Path, opened: Runtime, instance: dg.DagsterInstance, example_policy: Path
) -> None:
    upload(home, example_policy, "good.md")
    (home / "uploads" / "default" / "bad.md").write_bytes(b"\x00\x01\x02")
    (home / "uploads" / "default" / "link.md").symlink_to("/etc/hostname")

    _, cursor = tick(new_uploads)
    tick(new_uploads, cursor)

    assert [job.file_name for job in opened.ledger.reads.jobs()] == ["good.md"]


def test_due_work_asks_for_one_run_over_the_job_and_then_over_the_range_of_its_rules(
    tick: Tick, home: Path, opened: Runtime, instance: dg.DagsterInstance, example_policy: Path, execute: Execute
) -> None:
    upload(home, example_policy)
    _, cursor = tick(new_uploads)
    tick(new_uploads, cursor)
    (first,), _ = tick(due_work)
    execute("retrieve", key=first.partition_key)

    (second,), _ = tick(due_work)

    keys = instance.get_dynamic_partitions("rules")
    assert (first.job_name, second.job_name) == ("retrieve", "generate_tests")
    assert (second.tags[RANGE_START], second.tags[RANGE_END]) == (keys[0], keys[-1])
    assert len(keys) == 20


def test_a_tick_that_is_repeated_asks_with_the_same_run_key(
    tick: Tick, home: Path, instance: dg.DagsterInstance, job: JobRecord
) -> None:
    first, _ = tick(due_work)

    again, _ = tick(due_work)

    assert [request.run_key for request in first] == [request.run_key for request in again]


def test_work_that_an_unfinished_run_does_is_not_asked_for(
    tick: Tick, home: Path, definitions: dg.Definitions, instance: dg.DagsterInstance, job: JobRecord
) -> None:
    (request,), _ = tick(due_work)
    instance.create_run_for_job(
        definitions.resolve_job_def("generate_tests"), tags=request.tags, status=dg.DagsterRunStatus.STARTED
    )

    again, _ = tick(due_work)

    assert again == []


def test_a_run_that_changed_nothing_is_asked_for_again_after_a_pause(
    home: Path, definitions: dg.Definitions, opened: Runtime, instance: dg.DagsterInstance, job: JobRecord
) -> None:
    (launch,) = plan_work(opened)
    (first,) = run_requests(instance, [launch], now_s=0)
    run = instance.create_run_for_job(definitions.resolve_job_def("generate_tests"), tags=first.tags)
    instance.report_run_failed(run)
    ended = instance.get_run_records()[0].end_time or 0.0

    at_once = run_requests(instance, [launch], now_s=ended + FIRST_PAUSE_S - 1)
    (later,) = run_requests(instance, [launch], now_s=ended + FIRST_PAUSE_S)

    assert at_once == []
    assert later.run_key != first.run_key


def test_a_run_that_changes_nothing_a_dozen_times_is_still_asked_for_under_a_new_key(
    home: Path, definitions: dg.Definitions, opened: Runtime, instance: dg.DagsterInstance, job: JobRecord
) -> None:
    (launch,) = plan_work(opened)
    keys = []
    for _ in range(12):
        (request,) = run_requests(instance, [launch], now_s=time.time() + 3_600)
        keys.append(request.run_key)
        run = instance.create_run_for_job(definitions.resolve_job_def("generate_tests"), tags=request.tags)
        instance.report_run_failed(run)

    assert len(set(keys)) == 12


def test_the_pause_doubles_up_to_its_limit() -> None:
    assert [pause_s(tries) for tries in (1, 2, 3, 50)] == [10, 20, 40, 600]


def test_a_publication_that_fails_again_and_again_is_asked_for_with_growing_pauses(
    home: Path, opened: Runtime, instance: dg.DagsterInstance, job: JobRecord, keys: tuple[str, ...], execute: Execute
) -> None:
    execute("generate_tests", key_range=keys)
    execute("validate", key=job.partition_key)
    digest = str(opened.ledger.reads.job_by_id(job.job_id).action_set_digest)
    opened.ledger.actions.confirm(job.job_id, digest, actor="test")
    (home / "published").write_text("a file in the way of the folder")
    (request,) = run_requests(instance, plan_publications(opened), now_s=time.time())
    failed = execute("publish", key=job.partition_key, tags=request.tags)

    soon = run_requests(instance, plan_publications(opened), now_s=time.time())
    later = run_requests(instance, plan_publications(opened), now_s=time.time() + 3_600)

    assert not failed.success
    assert (len(soon), len(later)) == (0, 1)


def test_a_run_that_goes_on_is_tagged_as_the_re_execution_of_the_one_that_left_the_work(
    tick: Tick,
    home: Path,
    opened: Runtime,
    instance: dg.DagsterInstance,
    job: JobRecord,
    keys: tuple[str, ...],
    execute: Execute,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_script(home, {"rule-05": [{"do": "timeout"}, "ok"]})
    (request,), _ = tick(due_work)
    left = execute("generate_tests", key_range=keys, tags=request.tags)
    waiting, _ = tick(due_work)
    with opened.ledger.database.write() as connection:
        connection.execute(sa.update(work_item).where(work_item.c.state == "waiting").values(next_attempt_at=1))

    (follow_up,), _ = tick(due_work)

    assert not left.success
    assert waiting == []
    assert follow_up.tags[PARENT_RUN_TAG] == left.run_id
    assert follow_up.tags[ROOT_RUN_TAG] == left.run_id
    assert follow_up.run_key != request.run_key
    assert not is_asked_for_by_a_person(follow_up.tags)


def test_a_persons_re_execution_of_a_sensors_run_is_told_apart_by_its_parent() -> None:
    inherited = {CONTINUES_TAG: "run-1", ROOT_RUN_TAG: "run-1", WORK_TAG: "w"}

    by_sensor = is_asked_for_by_a_person({**inherited, PARENT_RUN_TAG: "run-1"})
    by_person = is_asked_for_by_a_person({**inherited, PARENT_RUN_TAG: "run-2"})
    by_dagster = is_asked_for_by_a_person({**inherited, PARENT_RUN_TAG: "run-2", "dagster/retry_number": "1"})

    assert (by_sensor, by_person, by_dagster) == (False, True, False)


def test_a_confirmed_job_is_published_once(
    tick: Tick,
    home: Path,
    opened: Runtime,
    instance: dg.DagsterInstance,
    job: JobRecord,
    keys: tuple[str, ...],
    execute: Execute,
) -> None:
    execute("generate_tests", key_range=keys)
    execute("validate", key=job.partition_key)
    before, _ = tick(confirmed_jobs)
    digest = str(opened.ledger.reads.job_by_id(job.job_id).action_set_digest)
    opened.ledger.actions.confirm(job.job_id, digest, actor="test")

    (request,), _ = tick(confirmed_jobs)
    execute("publish", key=request.partition_key)
    after, _ = tick(confirmed_jobs)

    assert (before, after) == ([], [])
    assert request.job_name == "publish"
    assert len(calls(home)) == 40


def test_a_job_of_more_keys_than_a_range_is_worked_on_in_ranges(
    tick: Tick,
    home: Path,
    opened: Runtime,
    instance: dg.DagsterInstance,
    job: JobRecord,
    keys: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RULEGEN_RANGE_SIZE", "8")

    requests, _ = tick(due_work)

    assert [request.job_name for request in requests] == ["generate_rules"] * 3
    assert [(r.tags[RANGE_START], r.tags[RANGE_END]) for r in requests] == [
        (keys[0], keys[7]),
        (keys[8], keys[15]),
        (keys[16], keys[19]),
    ]


def test_keys_are_added_once_and_in_order(instance: dg.DagsterInstance) -> None:
    register_keys(instance, "rules", ["a", "b"])

    register_keys(instance, "rules", ["a", "b", "c"])

    assert instance.get_dynamic_partitions("rules") == ["a", "b", "c"]


def test_keys_that_dagster_lost_come_back_from_the_ledger(
    tick: Tick, home: Path, instance: dg.DagsterInstance, job: JobRecord, keys: tuple[str, ...]
) -> None:
    for key in keys:
        instance.delete_dynamic_partition("rules", key)

    tick(due_work)

    assert tuple(instance.get_dynamic_partitions("rules")) == keys


def test_a_live_lease_keeps_due_work_away(
    tick: Tick, home: Path, opened: Runtime, instance: dg.DagsterInstance, job: JobRecord
) -> None:
    with opened.ledger.turn(opened.claimant) as turn:
        turn.claim(Scope(stages=(Stage.GENERATE_RULES,)), ["held"])

    requests, _ = tick(due_work)

    assert requests == []
