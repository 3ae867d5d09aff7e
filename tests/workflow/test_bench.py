"""The bench measures both databases on ledgers of its own, counts honestly, and takes everything away again."""

from pathlib import Path
from typing import Any

import psycopg
import pytest

from rulegen_dagster.domain.errors import InputError, LedgerError
from rulegen_dagster.domain.states import Stage, WorkState
from rulegen_dagster.ledger.bench_floor import Floor
from rulegen_dagster.ledger.scratch import fill, scratch_database
from rulegen_dagster.workflow.bench import Plan, Report, run_bench
from rulegen_dagster.workflow.bench_job import open_bench_runtime, open_rule_stage

SMALL: dict[str, Any] = {"count": 24, "latency_ms": 5, "slots": 4, "repeats": 1, "big_ledger": 2_000}


@pytest.fixture(params=["sqlite", "postgresql"])
def near(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database to measure beside."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'kept.sqlite3'}"
    server: str = request.getfixturevalue("postgres_server")
    return server


@pytest.fixture
def report(near: str) -> Report:
    return run_bench(Plan(database=near, **SMALL), lambda _text: None)


def scratch_databases(server: str) -> set[str]:
    with psycopg.connect(server) as connection:
        rows = connection.execute("SELECT datname FROM pg_database WHERE datname LIKE 'rulegen_scratch_%'")
        return {name for (name,) in rows}


def test_every_line_is_measured_with_the_floor_beside_it_and_nothing_committed_is_called_again(
    near: str, report: Report
) -> None:
    results = {result.name: result for result in report.results}

    assert list(results) == [
        "floor",
        "engine",
        "floor_no_latency",
        "engine_no_latency",
        "crash",
        "resume",
        "claim_small_ledger",
        "claim_big_ledger",
    ]
    assert {result.database for result in report.results} == {near.partition(":")[0]}
    for name in ("floor", "engine", "floor_no_latency", "engine_no_latency"):
        assert (results[name].calls, results[name].repeated_committed) == (24, 0)
        assert results[name].items_per_s is not None
    assert results["engine"].ideal_s == pytest.approx(0.03)
    assert results["engine_no_latency"].ratio is None
    assert results["engine"].of_floor is not None
    crash = results["crash"]
    assert crash.repeated_committed == 0
    assert crash.repeated_in_flight is not None
    assert crash.repeated_in_flight <= 4
    assert crash.calls == 24 + crash.repeated_in_flight
    assert results["claim_big_ledger"].n == 2_000
    assert report.commit_ms > 0


def test_a_floor_calls_each_item_once_and_keeps_every_output(near: str, tmp_path: Path) -> None:
    with scratch_database(near, tmp_path) as url:
        floor = Floor(url)

        runs = [floor.run(10, latency_s=0, slots=3) for _ in range(2)]
        floor.close()

    assert [run.calls for run in runs] == [10, 10]


def test_a_filled_ledger_is_half_finished_and_half_open(near: str, tmp_path: Path) -> None:
    with scratch_database(near, tmp_path) as url:
        runtime = open_bench_runtime(url, tmp_path)
        template = open_rule_stage(runtime, 1, "template")

        fill(runtime.ledger.database, template, 4_000)

        counts = [runtime.ledger.reads.stage_counts(template + number)[Stage.GENERATE_RULES] for number in (1, 2, 3, 4)]
        runtime.close()
    assert [count[WorkState.SUCCEEDED] for count in counts] == [1_000, 1_000, 0, 0]
    assert [count[WorkState.PENDING] for count in counts] == [0, 0, 1_000, 1_000]


def test_scratch_databases_are_dropped_even_after_an_error(postgres_server: str, tmp_path: Path) -> None:
    names: set[str] = set()

    def use(url: str) -> None:
        names.add(url.rsplit("/", 1)[1].partition("?")[0])
        raise RuntimeError

    with pytest.raises(RuntimeError), scratch_database(postgres_server, tmp_path) as url:
        use(url)

    assert len(names) == 1
    assert names & scratch_databases(postgres_server) == set()


def test_a_sqlite_file_that_names_the_disk_is_not_touched(tmp_path: Path) -> None:
    kept = tmp_path / "kept.sqlite3"

    run_bench(Plan(database=f"sqlite:///{kept}", **SMALL), lambda _text: None)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["mysql://localhost/x", "not a url"])
def test_another_database_is_refused(url: str) -> None:
    with pytest.raises(InputError) as caught:
        run_bench(Plan(database=url, **SMALL), lambda _text: None)

    assert caught.value.code == "invalid_url"


def test_a_server_that_does_not_answer_is_a_ledger_error_without_its_password() -> None:
    url = "postgresql://someone:secret-word@127.0.0.1:1/nothing"

    with pytest.raises(LedgerError) as caught:
        run_bench(Plan(database=url, **SMALL), lambda _text: None)

    assert caught.value.code == "no_scratch_database"
    assert "secret-word" not in caught.value.message
