"""`rulegen resync`: Dagster's copy of what is accepted, written anew into a home that lacks it."""

from pathlib import Path

import dagster as dg
import pytest

from tests.cli.conftest import Command, document


@pytest.fixture
def dagster_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = home / "dagster"
    folder.mkdir()
    (folder / "dagster.yaml").write_text("telemetry: {enabled: false}\n", encoding="utf-8")
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    return folder


def test_a_new_home_shows_every_accepted_output_and_a_second_time_nothing_is_written(
    rulegen: Command, dagster_home: Path, policy_file: Path
) -> None:
    rulegen("run", str(policy_file), "--json")

    first, second = rulegen("resync", "--json"), rulegen("resync", "--json")

    with dg.DagsterInstance.from_config(str(dagster_home)) as instance:
        shown = {
            asset: len(instance.fetch_materializations(dg.AssetKey(asset), limit=10).records)
            for asset in ("parsed_spec", "clause_context", "rule", "test_suite", "validation_report")
        }
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert document(first) == {"dagster_home": str(dagster_home), "written": 7, "found": 0, "left": 0}
    assert document(second) == {"dagster_home": str(dagster_home), "written": 0, "found": 7, "left": 0}
    assert shown == {"parsed_spec": 1, "clause_context": 1, "rule": 2, "test_suite": 2, "validation_report": 1}


def test_people_are_told_in_one_line(rulegen: Command, dagster_home: Path, policy_file: Path) -> None:
    rulegen("run", str(policy_file), "--json")

    assert rulegen("resync").stdout == "7 events written, 0 were in the log, 0 left\n"


def test_a_folder_that_is_no_home_is_a_clear_error(
    rulegen: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "nowhere"))

    result = rulegen("resync", "--json")

    assert (result.exit_code, document(result)["error"]["code"]) == (1, "no_dagster_home")
