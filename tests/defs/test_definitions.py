import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import dagster as dg
import pytest
import yaml

from rulegen_dagster.cli.dev import LOCATION, MODULE
from rulegen_dagster.defs.partitions import jobs_partitions
from rulegen_dagster.resources.accepting_io_manager import StageOutput
from rulegen_dagster.resources.asset_factory import job_asset

PROJECT = Path(__file__).parent.parent.parent


def test_exactly_these_definitions_are_loaded(definitions: dg.Definitions) -> None:
    graph = definitions.resolve_asset_graph()

    assert {key.to_user_string() for key in graph.get_all_asset_keys()} == {
        "specification",
        "parsed_spec",
        "clause_context",
        "rule",
        "test_suite",
        "validation_report",
        "ruleset",
    }
    assert {key.to_user_string() for key in graph.asset_check_keys} == {
        "validation_report:tests_pass",
        "validation_report:grounding",
        "validation_report:mutation_score",
        "validation_report:conflicts",
        "validation_report:coverage",
    }
    assert {job.name for job in definitions.jobs or ()} == {
        "parse",
        "retrieve",
        "generate_rules",
        "generate_tests",
        "validate",
        "publish",
    }
    assert {sensor.name for sensor in definitions.sensors or ()} == {
        "new_uploads",
        "due_work",
        "confirmed_jobs",
        "mirror_events",
        "deadlines",
    }
    assert list(definitions.schedules or ()) == []
    assert set(definitions.resources or {}) == {"runtime", "ledger_io"}


def test_edges_between_the_two_partition_sets_map_to_all_partitions(definitions: dg.Definitions) -> None:
    graph = definitions.resolve_asset_graph()

    for upstream, downstream in [
        ("clause_context", "rule"),
        ("rule", "validation_report"),
        ("test_suite", "validation_report"),
    ]:
        mapping = graph.get_partition_mapping(dg.AssetKey(downstream), dg.AssetKey(upstream))
        assert isinstance(mapping, dg.AllPartitionMapping)


def test_workspace_file_project_file_and_dev_command_name_one_location() -> None:
    workspace = yaml.safe_load((PROJECT / "workspace.yaml").read_text(encoding="utf-8"))
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["dg"]["project"]
    (location,) = workspace["load_from"]

    assert location["python_module"]["module_name"] == MODULE
    assert f"{project['root_module']}.definitions" == MODULE
    assert location["python_module"]["location_name"] == project["code_location_name"] == LOCATION


def test_every_job_says_which_partition_it_needs(definitions: dg.Definitions) -> None:
    for job in definitions.jobs or ():
        assert "partition" in str(job.description).lower(), job.name


@pytest.mark.parametrize("returned", ["None", "dg.MaterializeResult", "str", "StageOutput | None"])
def test_the_factory_refuses_an_asset_that_would_bypass_the_io_manager(returned: str) -> None:
    namespace: dict[str, object] = {"dg": dg, "StageOutput": StageOutput}
    exec(f"def body() -> {returned}: ...", namespace)  # noqa: S102 (an annotation cannot be a parameter)

    with pytest.raises(dg.DagsterInvalidDefinitionError, match="accepting IO manager"):
        job_asset(partitions_def=jobs_partitions)(namespace["body"])  # type: ignore[arg-type]


def test_the_factory_refuses_an_asset_without_an_annotation() -> None:
    def body():  # type: ignore[no-untyped-def]
        return dg.MaterializeResult()

    with pytest.raises(dg.DagsterInvalidDefinitionError, match="accepting IO manager"):
        job_asset(partitions_def=jobs_partitions)(body)


def test_an_asset_that_returns_something_else_than_it_says_fails_and_is_not_materialized(
    definitions: dg.Definitions, instance: dg.DagsterInstance
) -> None:
    partitions = dg.StaticPartitionsDefinition(["a"])

    @job_asset(partitions_def=partitions)
    def liar() -> StageOutput:
        return "green without a claim"  # type: ignore[return-value]

    result = dg.materialize(
        [liar], partition_key="a", instance=instance, resources=definitions.resources, raise_on_error=False
    )

    assert not result.success
    assert instance.get_latest_materialization_event(dg.AssetKey("liar")) is None


@pytest.mark.acceptance
def test_dagster_validates_the_workspace_without_a_warning(tmp_path: Path) -> None:
    found = _run("dagster", "definitions", "validate", "-w", "workspace.yaml", dagster_home=tmp_path)

    assert found.returncode == 0, found.stderr
    assert "All code locations passed validation" in found.stdout + found.stderr
    # The command itself is superseded by `dg check defs`; that one line is Dagster's.
    lines = [line for line in (found.stdout + found.stderr).splitlines() if "warning" in line.lower()]
    assert [line for line in lines if "SupersessionWarning" not in line] == []


@pytest.mark.acceptance
def test_dg_checks_the_definitions_without_a_warning(tmp_path: Path) -> None:
    found = _run("dg", "check", "defs", dagster_home=tmp_path)

    assert found.returncode == 0, found.stderr
    assert "All definitions loaded successfully" in found.stdout + found.stderr
    assert "warning" not in (found.stdout + found.stderr).lower()


def _run(program: str, *arguments: str, dagster_home: Path) -> subprocess.CompletedProcess[str]:
    scripts = Path(sys.executable).parent
    shutil.copyfile(PROJECT / "dagster.yaml", dagster_home / "dagster.yaml")
    environment = {
        "PATH": f"{scripts}:/usr/bin:/bin",
        "HOME": str(dagster_home),
        "XDG_RUNTIME_DIR": str(dagster_home),
        "DAGSTER_HOME": str(dagster_home),
        "VIRTUAL_ENV": str(scripts.parent),
    }
    return subprocess.run(
        [str(scripts / program), *arguments],
        cwd=PROJECT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
