"""The main job in a real Dagster instance: web page, daemon, code server and run workers as processes."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rulegen_dagster.domain.identity import JobName
from rulegen_dagster.ledger.audit import audit_job
from tests.acceptance.dagster_jobs import (
    EXAMPLE,
    RULES,
    job_named,
    prepare_job,
    scripted_server,
    stop_sensors,
    upload,
    wait_for_state,
)
from tests.acceptance.dev_server import DevServer, calling_process, wait_for
from tests.conftest import in_full_only

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevServer]:
    with scripted_server(tmp_path_factory.mktemp("dagster")) as running:
        yield running


def test_an_upload_becomes_a_published_ruleset(server: DevServer) -> None:
    upload(server, "first.md", EXAMPLE.read_text(encoding="utf-8"))
    job = wait_for_state(server, "first", "awaiting_confirmation")

    confirmed = server.rulegen("confirm", job["job"], "--action-set", job["action_set"])
    done = wait_for_state(server, "first", "completed")

    assert confirmed["confirmed_now"] is True
    assert (done["rules"], done["provider_calls"]) == (20, 40)
    assert {path.name for path in Path(done["published"]).iterdir()} >= {"rules.json", "tests.json", "manifest.json"}
    assert server.partition_stats("rule")["numMaterialized"] == 20
    assert server.partition_stats("test_suite")["numMaterialized"] == 20


def test_a_killed_run_worker_is_restarted_by_dagster_and_saved_rules_are_not_called_again(server: DevServer) -> None:
    stop_sensors(server)
    server.write_script({"rule-14": [{"do": "ok", "delay_ms": 60_000}, "ok"]})
    keys = prepare_job(server, "third.md", "Third")
    (server.home / "calls.log").unlink()
    run_id = server.launch_range("generate_rules", keys)
    worker = wait_for(lambda: calling_process(server.home, "rule-14"), "call for rule 14")
    saved = server.rulegen("status", str(job_named(server, "third")))["stages"]["generate_rules"]["succeeded"]

    os.kill(worker, signal.SIGKILL)
    retry = wait_for(lambda: retry_of(server, run_id), "restarted run")
    restarted = server.run_end(retry)

    rule_calls = [call for call in server.calls() if call.startswith("generate_rules")]
    assert (saved, restarted) == (13, "SUCCESS")
    assert sorted(rule_calls) == sorted([f"generate_rules {rule}" for rule in [*RULES, "rule-14"]])


def test_a_run_worker_that_is_told_to_stop_gives_back_the_call_that_hangs(server: DevServer) -> None:
    stop_sensors(server)
    server.write_script({"rule-14": [{"do": "ok", "delay_ms": 60_000}, "ok"]})
    keys = prepare_job(server, "stopped.md", "Stopped")
    (server.home / "calls.log").unlink(missing_ok=True)
    run_id = server.launch_range("generate_rules", keys)
    worker = wait_for(lambda: calling_process(server.home, "rule-14"), "call for rule 14")

    os.kill(worker, signal.SIGTERM)
    end = server.run_end(run_id)
    found = server.ledger().reads.job(JobName.parse(str(job_named(server, "stopped"))))
    (attempt,) = [
        row for row in audit_job(server.ledger().database, found.job_id)["attempt"] if row["outcome"] == "cancelled"
    ]
    again = server.run_end(server.launch_range("generate_rules", keys))

    rule_calls = [call for call in server.calls() if call.startswith("generate_rules")]
    assert (end in {"FAILURE", "CANCELED"}, again) == (True, "SUCCESS")
    assert (attempt["item_key"], attempt["error_code"]) == ("rule-14", "worker_stopped")
    assert sorted(rule_calls) == sorted([f"generate_rules {rule}" for rule in [*RULES, "rule-14"]])


@in_full_only
def test_two_runs_over_one_range_call_each_key_once(server: DevServer) -> None:
    stop_sensors(server)
    server.write_script({"*": [{"do": "ok", "delay_ms": 100}]})
    keys = prepare_job(server, "fourth.md", "Fourth")
    (server.home / "calls.log").unlink(missing_ok=True)

    runs = [server.launch_range("generate_rules", keys) for _ in range(2)]
    for run in runs:
        server.run_end(run)

    counts = server.rulegen("status", str(job_named(server, "fourth")))["stages"]["generate_rules"]
    assert counts["succeeded"] == 20
    # `due_work` may have gone on with another test's job meanwhile.
    rule_calls = [call for call in server.calls() if call.startswith("generate_rules")]
    assert sorted(rule_calls) == sorted(f"generate_rules {rule}" for rule in RULES)


def retry_of(server: DevServer, run_id: str) -> str | None:
    for run in server.runs(tags=[{"key": "dagster/parent_run_id", "value": run_id}]):
        if "dagster/retry_number" in run["tags"]:
            return str(run["runId"])
    return None
