"""Dagster's runs in a trace: the submission's place goes with the run as a tag, and its work stands below it."""

import json
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from rulegen_dagster.defs.sensors import due_work
from rulegen_dagster.ledger.traces import Traces
from rulegen_dagster.resources.launches import TRACEPARENT_TAG
from rulegen_dagster.resources.runtime import RuntimeResource
from rulegen_dagster.settings import Settings
from rulegen_dagster.workflow.intake import submit_file
from rulegen_dagster.workflow.runtime import open_runtime
from tests.defs.conftest import Execute

POLICY = "Meals are limited to $50 per day.\nHotels are limited to $200 per night.\n"


@pytest.fixture
def trace_file(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "trace.jsonl"
    monkeypatch.setenv("RULEGEN_TRACE_FILE", str(path))
    return path


def spans_in(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_the_runs_that_a_sensor_asks_for_stand_below_the_submission(
    trace_file: Path,
    tmp_path: Path,
    definitions: dg.Definitions,
    instance: dg.DagsterInstance,
    execute: Execute,
) -> None:
    policy = tmp_path / "policy.md"
    policy.write_text(POLICY, encoding="utf-8")
    opened = open_runtime(Settings())
    job = submit_file(opened, policy, actor="test").job
    place = Traces(opened.ledger.database).of_jobs([job.job_id])[job.job_id].traceparent
    opened.close()

    def asked() -> dg.RunRequest:
        context = dg.build_sensor_context(
            instance=instance, definitions=definitions, resources={"runtime": RuntimeResource()}
        )
        result = due_work(context)
        assert isinstance(result, dg.SensorResult)
        (request,) = result.run_requests or []
        return request

    extraction = asked()
    execute(str(extraction.job_name), key=extraction.partition_key, tags=dict(extraction.tags))
    generation = asked()
    first, last = (generation.tags[f"dagster/asset_partition_range_{end}"] for end in ("start", "end"))
    result = execute(str(generation.job_name), key_range=(first, last), tags=dict(generation.tags))

    assert [request.tags[TRACEPARENT_TAG] for request in (extraction, generation)] == [place, place]
    assert result.success
    spans = spans_in(trace_file)
    assert {span["context"]["trace_id"] for span in spans} == {f"0x{place.split('-')[1]}"}
    stages = [span for span in spans if span["name"].startswith("rulegen.stage")]
    assert {span["parent_id"] for span in stages} == {f"0x{place.split('-')[2]}"}
    assert sorted(span["name"].removeprefix("rulegen.stage ") for span in stages) == [
        "generate_rules",
        "generate_tests",
        "parse",
        "retrieve",
    ]
    attempts = [span for span in spans if span["name"].startswith("rulegen.attempt")]
    assert [span["attributes"]["rulegen.outcome"] for span in attempts] == ["accepted"] * 6
    runs = {span["attributes"]["rulegen.dagster.run_id"] for span in stages}
    assert result.run_id in runs
    assert len(runs) == 2
