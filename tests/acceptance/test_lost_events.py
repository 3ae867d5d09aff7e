"""A real Dagster run that is killed between the ledger's commit and the event: the event appears later, once."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from rulegen_dagster.domain.states import Stage, WorkState
from rulegen_dagster.domain.work import Offer
from rulegen_dagster.resources.mirroring import DagsterEventLog
from rulegen_dagster.resources.partition_sets import register_job
from rulegen_dagster.settings import Settings
from rulegen_dagster.workflow.documents import accept, prepare
from rulegen_dagster.workflow.intake import submit_file
from rulegen_dagster.workflow.mirror import Mirrored, mirror
from rulegen_dagster.workflow.runtime import Runtime, open_runtime
from tests.acceptance.processes import Ended, calls, ended, write_script
from tests.conftest import PROJECT, in_full_only

pytestmark = pytest.mark.acceptance

ALL = 1_000
LEASE_MS = 1_000


class Scene:
    """A ledger with one job whose rules are open, a Dagster home that knows its keys, and runs in child processes."""

    def __init__(self, folder: Path, ledger_url: str, instance: dg.DagsterInstance) -> None:
        self.home, self.instance = folder / "home", instance
        self._dagster_home = folder / "dagster"
        self._variables = {
            **write_script(self.home, {}),
            "RULEGEN_SLOTS": "4",
            "RULEGEN_LEASE_MS": str(LEASE_MS),
            "RULEGEN_DATABASE_URL": ledger_url,
        }
        settings = Settings(
            home=self.home,
            database_url=ledger_url,
            provider="rulegen-scripted",
            script=self.home / "script.yaml",
            lease_ms=LEASE_MS,
        )
        self.runtime: Runtime = open_runtime(settings)
        job = submit_file(
            self.runtime, PROJECT / "rulegen_dagster" / "examples" / "expense-policy.md", actor="test"
        ).job
        for stage in (Stage.PARSE, Stage.RETRIEVE):
            prepared = prepare(self.runtime, job.job_id, stage)
            assert isinstance(prepared, Offer)
            accept(self.runtime, prepared)
        register_job(instance, self.runtime, job.job_id)
        self.job = job
        self.keys = self.runtime.ledger.reads.rule_partition_keys(job.job_id)

    def run(self, **variables: str) -> Ended:
        """Run the rules of the job in a real run of a process of its own."""
        tags = {
            "dagster/asset_partition_range_start": self.keys[0],
            "dagster/asset_partition_range_end": self.keys[-1],
            "rulegen/continues": "none",
        }
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("RULEGEN_")}
        command = [
            str(Path(sys.executable).with_name("dagster")),
            "job",
            "execute",
            "-m",
            "rulegen_dagster.definitions",
        ]
        return ended(
            subprocess.Popen(
                [*command, "-j", "generate_rules", "--tags", json.dumps(tags)],
                env={
                    **inherited,
                    "RULEGEN_HOME": str(self.home),
                    "DAGSTER_HOME": str(self._dagster_home),
                    **self._variables,
                    **variables,
                },
                cwd=PROJECT,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )

    def mirror(self) -> Mirrored:
        return mirror(self.runtime, DagsterEventLog(self.instance, self.runtime), limit=ALL)

    def accepted(self) -> set[str]:
        items = self.runtime.ledger.reads.items(self.job.job_id, Stage.GENERATE_RULES)
        return {str(item.partition_key) for item in items if item.state is WorkState.SUCCEEDED}

    def events(self, **metadata: Any) -> Counter[str]:
        """Count the events of each key, of all or of those with this metadata."""
        records = self.instance.fetch_materializations(dg.AssetKey("rule"), limit=ALL).records
        found = [record.asset_materialization for record in records]
        return Counter(
            str(event.partition)
            for event in found
            if event is not None
            and all(name in event.metadata and event.metadata[name].value == said for name, said in metadata.items())
        )

    def end_lost_run(self) -> None:
        """Do what Dagster does once it has noticed that the run's worker is gone."""
        (run,) = self.instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED]))
        self.instance.report_run_failed(run)


@pytest.fixture
def scene(ledger_url: str, tmp_path: Path) -> Iterator[Scene]:
    dagster_home = tmp_path / "dagster"
    dagster_home.mkdir()
    (dagster_home / "dagster.yaml").write_text("telemetry: {enabled: false}\n", encoding="utf-8")
    with dg.DagsterInstance.from_config(str(dagster_home)) as instance:
        made = Scene(tmp_path, ledger_url, instance)
        yield made
        made.runtime.close()


def test_an_event_that_a_killed_run_did_not_write_appears_later_and_once(scene: Scene) -> None:
    killed = scene.run(RULEGEN_FAILPOINT="completion.after_commit:3")
    accepted, written_by_run = scene.accepted(), scene.events()
    while_it_counts_as_running = scene.mirror()
    scene.end_lost_run()

    first, second = scene.mirror(), scene.mirror()

    assert killed.exit_code == -signal.SIGKILL, killed.stderr
    assert 0 < len(accepted) < 20
    # At least the outputs of the last commit have no event yet.
    assert len(written_by_run) < len(accepted)
    # Parse and retrieve were accepted without a run.
    assert while_it_counts_as_running == Mirrored(written=2)
    assert first.written == len(accepted) - len(written_by_run)
    assert second == Mirrored()
    assert scene.events() == Counter(accepted)

    resumed = scene.run()

    # A run shows each key of its range: what was accepted before it, as reused.
    assert resumed.exit_code == 0, resumed.stderr
    assert scene.mirror() == Mirrored()
    assert scene.events(reused=False) == Counter(scene.keys)
    assert scene.events(reused=True) == Counter(accepted)
    assert Counter(calls(scene.home)).keys() == {f"generate_rules/rule-{number:02d}" for number in range(1, 21)}


@in_full_only
def test_a_retried_run_shows_what_the_killed_one_did_not_and_nothing_is_mirrored_again(scene: Scene) -> None:
    scene.run(RULEGEN_FAILPOINT="completion.after_commit:2")
    accepted, written_by_run = scene.accepted(), scene.events()
    scene.end_lost_run()

    resumed = scene.run()
    mirrored = [scene.mirror(), scene.mirror()]

    assert resumed.exit_code == 0, resumed.stderr
    assert [done.written for done in mirrored] == [2, 0]
    assert scene.events(mirrored=True) == Counter()
    assert scene.events() == Counter(scene.keys) + written_by_run
    assert scene.events(reused=True) == Counter(accepted)
    assert scene.runtime.ledger.outbox.unmirrored() == 0
