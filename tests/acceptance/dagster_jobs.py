"""Jobs of the example policy in a running `rulegen dev`."""

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import yaml

from rulegen_dagster.domain.identity import JobName
from rulegen_dagster.domain.states import Stage
from rulegen_dagster.domain.work import Offer
from rulegen_dagster.settings import Settings
from rulegen_dagster.workflow.documents import accept, prepare
from rulegen_dagster.workflow.runtime import open_runtime
from tests.acceptance.dev_server import DevServer, wait_for, write_script

PROJECT = Path(__file__).parent.parent.parent
EXAMPLE = PROJECT / "rulegen_dagster" / "examples" / "expense-policy.md"
RULES = [f"rule-{number:02d}" for number in range(1, 21)]


SENSORS = ("new_uploads", "due_work", "confirmed_jobs", "mirror_events", "deadlines")


@contextmanager
def scripted_server(folder: Path, *, runs_at_once: int = 4) -> Iterator[DevServer]:
    """A server whose provider does what `DevServer.write_script` says, one call at a time."""
    home = folder / "home"
    home.mkdir()
    write_script(home, {})
    instance = yaml.safe_load((PROJECT / "dagster.yaml").read_text(encoding="utf-8"))
    instance["concurrency"]["runs"]["max_concurrent_runs"] = runs_at_once
    (home / "dagster").mkdir()
    (home / "dagster" / "dagster.yaml").write_text(yaml.safe_dump(instance), encoding="utf-8")
    settings = {
        "provider": "rulegen-scripted",
        "script": str(home / "script.yaml"),
        "slots": "1",
        "lease_ms": "3000",
    }
    with DevServer.running(home, **settings) as running:
        yield running


def stop_sensors(server: DevServer) -> None:
    """Leave the runs to the test alone, and the processor to the runs."""
    for name in SENSORS:
        server.stop_sensor(name)


def upload(server: DevServer, name: str, text: str) -> None:
    folder = server.home / "uploads" / "default"
    partial = server.home / name
    partial.write_text(text, encoding="utf-8")
    shutil.move(partial, folder / name)


def prepare_job(server: DevServer, name: str, title: str) -> list[str]:
    """Submit a variant of the example and parse it; return its rule keys. No rule is generated yet.

    The test's process does so, and tells Dagster the keys: a run for it takes five seconds of the processor.
    """
    text = EXAMPLE.read_text(encoding="utf-8")
    path = server.home / name
    path.write_text(f"{text}\n\n## {title}\n\nThis edition is for information.\n", encoding="utf-8")
    submitted = JobName.parse(server.rulegen("submit", str(path))["job"])
    with closing(open_runtime(Settings(home=server.home))) as runtime:
        job = runtime.ledger.reads.job(submitted)
        for stage in (Stage.PARSE, Stage.RETRIEVE):
            prepared = prepare(runtime, job.job_id, stage)
            assert isinstance(prepared, Offer)
            accept(runtime, prepared)
        keys = runtime.ledger.reads.rule_partition_keys(job.job_id)
    server.add_partition("jobs", job.partition_key)
    for key in keys:
        server.add_partition("rules", key)
    return list(keys)


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
