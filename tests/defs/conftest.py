"""A Dagster instance and a ledger of its own for each test, in one process."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from rulegen_dagster.definitions import defs as load_definitions
from rulegen_dagster.domain.states import Stage
from rulegen_dagster.domain.work import Offer
from rulegen_dagster.ledger.reads import JobRecord
from rulegen_dagster.resources.partition_sets import register_job
from rulegen_dagster.settings import Settings
from rulegen_dagster.workflow.documents import accept, prepare
from rulegen_dagster.workflow.intake import submit_file
from rulegen_dagster.workflow.runtime import Runtime, open_runtime

RANGE_START, RANGE_END = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"


@pytest.fixture(autouse=True)
def _rules_in_process(rules_in_process: None) -> None:
    """Each test here; those that start real processes use the sandbox."""


@pytest.fixture(scope="session")
def definitions() -> dg.Definitions:
    return load_definitions()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, with the scripted provider and a journal of its calls."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("RULEGEN_HOME", str(folder))
    monkeypatch.setenv("RULEGEN_PROVIDER", "rulegen-scripted")
    monkeypatch.setenv("RULEGEN_SCRIPT", str(folder / "script.yaml"))
    monkeypatch.setenv("RULEGEN_FIRST_RETRY_MS", "600000")
    monkeypatch.setenv("RULEGEN_MAX_RETRY_MS", "600000")
    write_script(folder, {})
    return folder


def write_script(home: Path, items: dict[str, Any]) -> None:
    script = {"items": items, "journal": str(home / "calls.log")}
    (home / "script.yaml").write_text(yaml.safe_dump(script), encoding="utf-8")


def calls(home: Path) -> list[str]:
    """The calls that the provider saw, as `<stage> <item>`."""
    journal = home / "calls.log"
    if not journal.exists():
        return []
    return [" ".join(line.split()[1:3]) for line in journal.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def opened(home: Path) -> Iterator[Runtime]:
    runtime = open_runtime(Settings())
    yield runtime
    runtime.close()


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as created:
        yield created


@pytest.fixture
def job(opened: Runtime, instance: dg.DagsterInstance, example_policy: Path) -> JobRecord:
    """The example policy, with its rule items open and its keys registered."""
    intake = submit_file(opened, example_policy, actor="test")
    for stage in (Stage.PARSE, Stage.RETRIEVE):
        prepared = prepare(opened, intake.job.job_id, stage)
        assert isinstance(prepared, Offer)
        accept(opened, prepared)
    register_job(instance, opened, intake.job.job_id)
    return opened.ledger.reads.job_by_id(intake.job.job_id)


@pytest.fixture
def keys(opened: Runtime, job: JobRecord) -> tuple[str, ...]:
    return opened.ledger.reads.rule_partition_keys(job.job_id)


Execute = Callable[..., dg.ExecuteInProcessResult]


@pytest.fixture
def execute(definitions: dg.Definitions, instance: dg.DagsterInstance) -> Execute:
    """Run an asset job in this process, for one key or a range."""

    def run(
        name: str,
        *,
        key: str | None = None,
        key_range: Sequence[str] = (),
        tags: dict[str, str] | None = None,
        assets: Sequence[str] | None = None,
    ) -> dg.ExecuteInProcessResult:
        range_tags = {RANGE_START: key_range[0], RANGE_END: key_range[-1]} if key_range else {}
        return definitions.resolve_job_def(name).execute_in_process(
            instance=instance,
            partition_key=key,
            tags={**range_tags, **(tags or {})},
            raise_on_error=False,
            asset_selection=None if assets is None else [dg.AssetKey(asset) for asset in assets],
        )

    return run


def materialized(instance: dg.DagsterInstance, asset: str) -> list[str]:
    """The partition of every materialization event of an asset, in order."""
    records = instance.fetch_materializations(dg.AssetKey(asset), limit=1_000, ascending=True).records
    return [str(record.partition_key) for record in records]


def failure_text(result: dg.ExecuteInProcessResult) -> str:
    """What the failed step says."""
    (event,) = [event for event in result.all_events if event.event_type_value == "STEP_FAILURE"]
    data = event.step_failure_data
    assert data.user_failure_data is not None
    return str(data.user_failure_data.description)
