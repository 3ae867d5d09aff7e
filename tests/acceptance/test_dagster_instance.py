"""The main job in a real Dagster instance: web page, daemon, code server and run workers as processes."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rulegen_dagster.domain.identity import JobName
from rulegen_dagster.ledger.audit import audit_job
from tests.acceptance.dev_server import DevServer, calling_process, wait_for, write_script

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]

EXAMPLE = Path(__file__).parent.parent.parent / "rulegen_dagster" / "examples" / "expense-policy.md"
RULES = [f"rule-{number:02d}" for number in range(1, 21)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevServer]:
    home = tmp_path_factory.mktemp("dagster") / "home"
    home.mkdir()
    write_script(home, {})
    settings = {
        "provider": "rulegen-scripted",
        "script": str(home / "script.yaml"),
        "slots": "1",
        "lease_ms": "3000",
    }
    with DevServer.running(home, **settings) as running:
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


def test_a_killed_run_worker_is_restarted_by_dagster_and_saved_rules_are_not_called_again(server: DevServer) -> None:
    server.stop_sensor("due_work")
    server.write_script({"rule-14": [{"do": "ok", "delay_ms": 60_000}, "ok"]})
    keys = prepare_job(server, "third.md", "Third")
    (server.home / "calls.log").unlink()
    run_id = server.launch_range("generate_rules", keys)
    worker = wait_for(lambda: calling_process(server.home, "rule-14"), "call for rule 14")
    saved = server.rulegen("status", str(job_named(server, "third")))["stages"]["generate_rules"]["succeeded"]

    os.kill(worker, signal.SIGKILL)
    retry = wait_for(lambda: retry_of(server, run_id), "restarted run")
    server.run_end(retry)
    server.start_sensor("due_work")
    wait_for_state(server, "third", "awaiting_confirmation")

    rule_calls = [call for call in server.calls() if call.startswith("generate_rules")]
    assert saved == 13
    assert sorted(rule_calls) == sorted([f"generate_rules {rule}" for rule in [*RULES, "rule-14"]])


def test_a_run_worker_that_is_told_to_stop_gives_back_the_call_that_hangs(server: DevServer) -> None:
    server.stop_sensor("due_work")
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


def test_two_runs_over_one_range_call_each_key_once(server: DevServer) -> None:
    server.stop_sensor("due_work")
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


def upload(server: DevServer, name: str, text: str) -> None:
    folder = server.home / "uploads" / "default"
    partial = server.home / name
    partial.write_text(text, encoding="utf-8")
    shutil.move(partial, folder / name)


def prepare_job(server: DevServer, name: str, title: str) -> list[str]:
    """Upload a variant of the example, and return its rule keys once it is parsed; no rule is generated yet."""
    seen = set(server.keys("rule"))
    text = EXAMPLE.read_text(encoding="utf-8")
    path = server.home / name
    path.write_text(f"{text}\n\n## {title}\n\nThis edition is for information.\n", encoding="utf-8")
    server.rulegen("submit", str(path))
    server.start_sensor("due_work")
    wait_for(lambda: len(server.keys("rule")) >= len(seen) + 20, "rule keys")
    server.stop_sensor("due_work")
    return [key for key in server.keys("rule") if key not in seen]


def job_named(server: DevServer, name: str) -> str | None:
    """The newest job of an upload, by its outward name."""
    names = [str(job.name) for job in server.ledger().reads.jobs() if job.file_name == f"{name}.md"]
    return names[-1] if names else None


def wait_for_state(server: DevServer, name: str, state: str) -> dict[str, Any]:
    def reached() -> str | None:
        named = job_named(server, name)
        if named is None or server.ledger().reads.job(JobName.parse(named)).state != state:
            return None
        return named

    return server.rulegen("status", wait_for(reached, f"{name} in state {state}", timeout_s=180))


def retry_of(server: DevServer, run_id: str) -> str | None:
    for run in server.runs(tags=[{"key": "dagster/parent_run_id", "value": run_id}]):
        if "dagster/retry_number" in run["tags"]:
            return str(run["runId"])
    return None
