from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import pytest
import sqlalchemy as sa

from rulegen_dagster.defs.sensors import deadlines, due_work
from rulegen_dagster.domain.states import JobState, Stage, WorkState
from rulegen_dagster.ledger.reads import JobRecord
from rulegen_dagster.ledger.schema import job as job_table
from rulegen_dagster.resources.ended_runs import end_runs_of_ended_jobs
from rulegen_dagster.resources.launches import JOB_TAG
from rulegen_dagster.resources.runtime import RuntimeResource
from rulegen_dagster.workflow.runtime import Runtime
from tests.defs.conftest import Execute, calls

# A run whose worker nobody can reach.
LOST = "lost"


class ObedientLauncher(dg.DefaultRunLauncher):
    """Ends a run at once when it is told to, as the worker of a run would, unless it is lost."""

    def terminate(self, run_id: str) -> bool:
        run = self._instance.get_run_by_id(run_id)
        assert run is not None
        if LOST in run.tags:
            raise ConnectionError("nobody answers")
        self._instance.report_run_canceled(run)
        return True


Look = Callable[[], str]


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """An instance with a launcher that ends runs, as a deployment's does."""
    folder = tmp_path / "dagster"
    folder.mkdir()
    launcher = {"module": __name__, "class": ObedientLauncher.__name__}
    with dg.DagsterInstance.local_temp(str(folder), overrides={"run_launcher": launcher}) as created:
        yield created


@pytest.fixture
def look(definitions: dg.Definitions, instance: dg.DagsterInstance) -> Look:
    """Evaluate the sensor once; return what it says."""

    def evaluate() -> str:
        context = dg.build_sensor_context(
            instance=instance, definitions=definitions, resources={"runtime": RuntimeResource()}
        )
        result = deadlines(context)
        assert isinstance(result, dg.SkipReason)
        return str(result.skip_message)

    return evaluate


def let_it_pass(opened: Runtime, job: JobRecord) -> None:
    with opened.ledger.database.write() as connection:
        connection.execute(sa.update(job_table).where(job_table.c.job_id == job.job_id).values(deadline_at=1))


def run_of(
    instance: dg.DagsterInstance,
    definitions: dg.Definitions,
    status: dg.DagsterRunStatus,
    job_key: str | None,
    *more_tags: str,
) -> str:
    tags = {**({JOB_TAG: job_key} if job_key else {}), **dict.fromkeys(more_tags, "yes")}
    job_def = definitions.resolve_job_def("generate_tests")
    return instance.create_run_for_job(job_def, tags=tags, status=status).run_id


def status_of(instance: dg.DagsterInstance, run_id: str) -> dg.DagsterRunStatus:
    run = instance.get_run_by_id(run_id)
    assert run is not None
    return run.status


def test_the_sensor_expires_overdue_jobs_and_leaves_the_others(opened: Runtime, job: JobRecord, look: Look) -> None:
    before = look()
    let_it_pass(opened, job)

    after, again = look(), look()

    ended = opened.ledger.reads.job_by_id(job.job_id)
    assert ended.state is JobState.EXPIRED
    assert {item.state for item in opened.ledger.reads.items(job.job_id, Stage.GENERATE_RULES)} == {WorkState.CANCELLED}
    assert [said.split(",")[0] for said in (before, after, again)] == [
        "0 jobs expired",
        "1 jobs expired",
        "0 jobs expired",
    ]


@pytest.mark.parametrize("end", ["cancelled", "expired"])
def test_the_runs_of_an_ended_job_end_and_no_others(
    opened: Runtime,
    job: JobRecord,
    instance: dg.DagsterInstance,
    definitions: dg.Definitions,
    look: Look,
    end: str,
) -> None:
    run_id_of_job = run_of(instance, definitions, dg.DagsterRunStatus.STARTED, job.partition_key)
    others = [run_of(instance, definitions, dg.DagsterRunStatus.STARTED, key) for key in ("of-no-job", None)]
    look()
    untouched = status_of(instance, run_id_of_job)
    if end == "cancelled":
        opened.ledger.cancellations.cancel(job.job_id, actor="ann", reason="wrong edition")
    else:
        let_it_pass(opened, job)

    said = look()

    assert untouched is dg.DagsterRunStatus.STARTED
    assert status_of(instance, run_id_of_job) is dg.DagsterRunStatus.CANCELED
    assert [status_of(instance, other) for other in others] == [dg.DagsterRunStatus.STARTED] * 2
    assert "1 runs told to end, 0 not reached" in said


def test_a_run_whose_worker_is_out_of_reach_does_not_keep_the_others(
    opened: Runtime, job: JobRecord, instance: dg.DagsterInstance, definitions: dg.Definitions
) -> None:
    lost = run_of(instance, definitions, dg.DagsterRunStatus.STARTED, job.partition_key, LOST)
    starting = run_of(instance, definitions, dg.DagsterRunStatus.STARTING, job.partition_key)
    opened.ledger.cancellations.cancel(job.job_id, actor="ann", reason="wrong edition")

    ended = end_runs_of_ended_jobs(instance, opened)

    # Dagster's run monitoring ends the lost one.
    assert (ended.told, ended.unreached) == ((starting,), (lost,))
    assert status_of(instance, starting) is dg.DagsterRunStatus.CANCELED


def test_a_run_of_an_expired_job_fails_with_the_reason_and_calls_nobody(
    opened: Runtime, job: JobRecord, keys: tuple[str, ...], execute: Execute, look: Look, home: Path
) -> None:
    let_it_pass(opened, job)
    look()

    result = execute("generate_rules", key_range=keys)

    (failure,) = [event for event in result.all_events if event.event_type_value == "STEP_FAILURE"]
    assert failure.step_failure_data.user_failure_data is not None
    assert "is expired" in str(failure.step_failure_data.user_failure_data.description)
    assert calls(home) == []


def test_no_run_is_asked_for_while_an_overdue_job_waits_for_its_expiry(
    opened: Runtime, job: JobRecord, instance: dg.DagsterInstance, definitions: dg.Definitions
) -> None:
    context = dg.build_sensor_context(
        instance=instance, definitions=definitions, resources={"runtime": RuntimeResource()}
    )
    let_it_pass(opened, job)

    result = due_work(context)

    assert isinstance(result, dg.SensorResult)
    assert not result.run_requests
