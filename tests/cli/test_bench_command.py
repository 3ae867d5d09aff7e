"""`rulegen bench`: one JSON document, progress on the other stream, clear refusals."""

from pathlib import Path

from tests.cli.conftest import Command, document

SMALL = ("-n", "12", "--latency", "2", "--slots", "4", "--repeats", "1", "--items", "2000")
FIELDS = {
    "name",
    "n",
    "latency_ms",
    "slots",
    "database",
    "makespan_s",
    "ideal_s",
    "ratio",
    "items_per_s",
    "calls",
    "repeated_committed",
}


def test_the_results_are_json_with_every_field_and_progress_goes_to_standard_error(rulegen: Command) -> None:
    result = rulegen("bench", *SMALL, "--json")

    assert result.exit_code == 0
    results = document(result)["results"]
    assert all(set(found) >= FIELDS for found in results)
    assert [found["name"] for found in results if found["name"].startswith("floor")] == ["floor", "floor_no_latency"]
    assert {found["database"] for found in results} == {"sqlite"}
    assert "kill -9" in result.stderr


def test_people_read_figures_and_goals_side_by_side(rulegen: Command, home: Path) -> None:
    result = rulegen("bench", *SMALL)

    assert result.exit_code == 0
    engine = next(line for line in result.stdout.splitlines() if line.startswith("engine "))
    assert "x floor" in engine
    assert "goal: ratio" in engine
    assert not (home / "blobs").exists()


def test_without_latency_the_throughput_is_measured_alone(rulegen: Command) -> None:
    result = rulegen(
        "bench", "-n", "8", "--latency", "0", "--slots", "2", "--repeats", "1", "--items", "2000", "--json"
    )

    names = [found["name"] for found in document(result)["results"]]
    assert names[:3] == ["floor_no_latency", "engine_no_latency", "crash"]


def test_a_database_that_cannot_be_used_ends_with_exit_code_1(rulegen: Command) -> None:
    result = rulegen("bench", *SMALL, "--database", "postgresql://nobody@127.0.0.1:1/none", "--json")

    assert result.exit_code == 1
    assert document(result)["error"]["code"] == "no_scratch_database"


def test_numbers_out_of_range_are_wrong_usage(rulegen: Command) -> None:
    assert rulegen("bench", "-n", "0").exit_code == 2
    assert rulegen("bench", "--slots", "0").exit_code == 2
    assert rulegen("bench", "--latency", "-1").exit_code == 2
