"""Backfills of a real Dagster instance, as its pages start them."""

from collections.abc import Iterator

import pytest

from tests.acceptance.dagster_jobs import prepare_job, scripted_server
from tests.acceptance.dev_server import DevServer

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevServer]:
    with scripted_server(tmp_path_factory.mktemp("dagster")) as running:
        yield running


def test_re_executing_what_failed_calls_exactly_the_failed_keys(server: DevServer) -> None:
    server.stop_sensor("due_work")
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
