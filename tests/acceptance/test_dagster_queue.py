"""A real Dagster instance that runs one run at a time: backfills, as its pages start them, and runs in its queue."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.acceptance.dagster_jobs import prepare_job, scripted_server, stop_sensors
from tests.acceptance.dev_server import DevServer, wait_for

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevServer]:
    with scripted_server(tmp_path_factory.mktemp("dagster"), runs_at_once=1) as running:
        yield running


def test_re_executing_what_failed_calls_exactly_the_failed_keys(server: DevServer) -> None:
    stop_sensors(server)
    fail = [{"do": "error", "kind": "permanent"}]
    server.write_script({"rule-03": fail, "rule-07": fail})
    keys = prepare_job(server, "second.md", "Second")
    before = server.partition_stats("rule")
    backfill = server.backfill(["rule"], keys)
    status = server.backfill_end(backfill)
    failed = server.partition_stats("rule")
    server.write_script({})
    calls_before = len(server.calls())

    again = server.backfill_end(server.re_execute_failed(backfill))

    assert status == "COMPLETED_FAILED"
    assert failed["numMaterialized"] - before["numMaterialized"] == 18
    assert failed["numFailed"] == 2
    assert again == "COMPLETED_SUCCESS"
    assert sorted(server.calls()[calls_before:]) == ["generate_rules rule-03", "generate_rules rule-07"]
    assert server.partition_stats("rule")["numFailed"] == 0


def test_the_runs_of_cancelled_jobs_end_in_the_queue_and_at_work(server: DevServer) -> None:
    stop_sensors(server)
    server.write_script({"*": [{"do": "ok", "delay_ms": 600_000}]})
    prepare_job(server, "third.md", "Third")
    prepare_job(server, "fourth.md", "Fourth")
    server.start_sensor("due_work")
    server.start_sensor("deadlines")
    at_work = wait_for(lambda: a_run(server, "STARTED"), "run at work")
    queued = wait_for(lambda: a_run(server, "QUEUED"), "run that waits for it")

    cancel_job_of(server, queued)
    end_in_the_queue = server.run_end(queued["runId"])
    others = server.runs(runIds=[at_work["runId"]])
    cancel_job_of(server, at_work)
    end_at_work = server.run_end(at_work["runId"])

    assert (end_in_the_queue, [run["status"] for run in others]) == ("CANCELED", ["STARTED"])
    assert end_at_work in {"CANCELED", "FAILURE"}


def a_run(server: DevServer, status: str) -> dict[str, Any] | None:
    """A run that the sensor asked for and that has this status now."""
    return next((run for run in server.runs(statuses=[status]) if "rulegen/job" in run["tags"]), None)


def cancel_job_of(server: DevServer, run: dict[str, Any]) -> None:
    job = server.ledger().reads.job_by_partition(run["tags"]["rulegen/job"])
    assert job is not None
    server.rulegen("cancel", str(job.name), "--reason", "no longer needed")
