"""A real `rulegen dev` in a home of its own, and the questions that Dagster's page would send it."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

import yaml

from rulegen_dagster.domain.retry import RetryPolicy
from rulegen_dagster.ledger.store import Ledger, open_ledger
from rulegen_dagster.settings import Settings

SCRIPTS = Path(sys.executable).parent
LOCATION = {"repositoryName": "__repository__", "repositoryLocationName": "rulegen_dagster"}

T = TypeVar("T")


def wait_for(question: Callable[[], T | None], what: str, *, timeout_s: float = 120.0) -> T:
    """Ask until there is an answer, ever less often; fail with what was waited for."""
    deadline, pause_s = time.monotonic() + timeout_s, 0.1
    while time.monotonic() < deadline:
        answer = question()
        if answer:
            return answer
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.2, 1.0)
    raise AssertionError(f"no {what} within {timeout_s} s")


def environment(home: Path, **settings: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return {**kept, "RULEGEN_HOME": str(home), **{f"RULEGEN_{name.upper()}": value for name, value in settings.items()}}


def rulegen(home: Path, *arguments: str, **settings: str) -> dict[str, Any]:
    """Run a `rulegen` command with --json and return what it printed."""
    found = subprocess.run(
        [str(SCRIPTS / "rulegen"), *arguments, "--json"],
        env=environment(home, **settings),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    answer: dict[str, Any] = json.loads(found.stdout)
    return answer


class DevServer:
    """One running `rulegen dev`."""

    def __init__(self, home: Path, port: int, process: subprocess.Popen[bytes], settings: dict[str, str]) -> None:
        self.home = home
        self.port = port
        self.process = process
        self.settings = settings
        self._ledger: Ledger | None = None

    @classmethod
    @contextmanager
    def running(cls, home: Path, **settings: str) -> Iterator[Self]:
        """Start, wait until the page and the daemon answer, and end everything afterwards."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        home.mkdir(parents=True, exist_ok=True)
        with (home / "dev.log").open("wb") as log:
            process = subprocess.Popen(
                [str(SCRIPTS / "rulegen"), "dev", "--port", str(port)],
                env=environment(home, **settings),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        server = cls(home, port, process, settings)
        try:
            wait_for(server.is_ready, "answer of the page", timeout_s=90)
            yield server
        finally:
            if server._ledger is not None:
                server._ledger.close()
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def is_ready(self) -> bool:
        assert self.process.poll() is None, (self.home / "dev.log").read_text(encoding="utf-8")[-3_000:]
        try:
            found = self.ask("{workspaceOrError{... on Workspace{locationEntries{loadStatus}}}}")
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False
        return [entry["loadStatus"] for entry in found["workspaceOrError"]["locationEntries"]] == ["LOADED"]

    def ask(self, query: str, **variables: Any) -> Any:
        """Send one GraphQL request, as the page does."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/graphql",
            json.dumps({"query": query, "variables": variables}).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)["data"]

    def rulegen(self, *arguments: str) -> dict[str, Any]:
        return rulegen(self.home, *arguments, **self.settings)

    def ledger(self) -> Ledger:
        """The ledger itself: asking it is much cheaper than starting a command for each look."""
        if self._ledger is None:
            self._ledger = open_ledger(Settings(home=self.home).ledger_url, RetryPolicy())
        return self._ledger

    def write_script(self, items: dict[str, Any]) -> None:
        write_script(self.home, items)

    def calls(self) -> list[str]:
        return calls(self.home)

    def stop_sensor(self, name: str) -> None:
        """Stop a sensor; where the daemon writes its first state just then, Dagster's own tables refuse, so again."""

        def stopped() -> bool:
            try:
                found = self.ask(
                    "query($s: SensorSelector!){sensorOrError(sensorSelector:$s){... on Sensor{id}}}",
                    s={**LOCATION, "sensorName": name},
                )
                self.ask("mutation($id:String!){stopSensor(id:$id){__typename}}", id=found["sensorOrError"]["id"])
            except urllib.error.HTTPError:
                return False
            return True

        wait_for(stopped, f"stop of {name}", timeout_s=20)

    def start_sensor(self, name: str) -> None:
        self.ask(
            "mutation($s: SensorSelector!){startSensor(sensorSelector:$s){__typename}}",
            s={**LOCATION, "sensorName": name},
        )

    def keys(self, asset: str) -> list[str]:
        found = self.ask(
            "query($k:AssetKeyInput!){assetNodeOrError(assetKey:$k){... on AssetNode{partitionKeys}}}",
            k={"path": [asset]},
        )
        return list(found["assetNodeOrError"]["partitionKeys"])

    def partition_stats(self, asset: str) -> dict[str, int]:
        """Return what the asset's partition page counts."""
        found = self.ask(
            "query($k:AssetKeyInput!){assetNodeOrError(assetKey:$k){... on AssetNode{"
            "partitionStats{numMaterialized numFailed numPartitions numMaterializing}}}}",
            k={"path": [asset]},
        )
        return dict(found["assetNodeOrError"]["partitionStats"])

    def backfill(self, assets: Sequence[str], keys: Sequence[str]) -> str:
        found = self.ask(
            "mutation($p: LaunchBackfillParams!){launchPartitionBackfill(backfillParams:$p)"
            "{__typename ... on LaunchBackfillSuccess{backfillId} ... on PythonError{message}}}",
            p={"assetSelection": [{"path": [asset]} for asset in assets], "partitionNames": list(keys)},
        )["launchPartitionBackfill"]
        assert found["__typename"] == "LaunchBackfillSuccess", found
        return str(found["backfillId"])

    def re_execute_failed(self, backfill_id: str) -> str:
        found = self.ask(
            "mutation($p: ReexecutionParams){reexecutePartitionBackfill(reexecutionParams:$p)"
            "{__typename ... on LaunchBackfillSuccess{backfillId} ... on PythonError{message}}}",
            p={"parentRunId": backfill_id, "strategy": "FROM_FAILURE"},
        )["reexecutePartitionBackfill"]
        assert found["__typename"] == "LaunchBackfillSuccess", found
        return str(found["backfillId"])

    def backfill_end(self, backfill_id: str) -> str:
        """Wait for a backfill's end and return its status."""

        def ended() -> str | None:
            found = self.ask(
                "query($id:String!){partitionBackfillOrError(backfillId:$id){... on PartitionBackfill{status}}}",
                id=backfill_id,
            )
            status = str(found["partitionBackfillOrError"]["status"])
            return status if status.startswith(("COMPLETED", "FAILED", "CANCELED")) else None

        return wait_for(ended, f"end of backfill {backfill_id}", timeout_s=180)

    def add_partition(self, set_name: str, key: str) -> None:
        self.ask(
            "mutation($s: RepositorySelector!, $n: String!, $k: String!){"
            "addDynamicPartition(repositorySelector:$s, partitionsDefName:$n, partitionKey:$k){__typename}}",
            s=LOCATION,
            n=set_name,
            k=key,
        )

    def launch(self, job: str, **tags: str) -> str:
        """Launch a run with Dagster's own tags, named without their prefix; return its id."""
        found = self.ask(
            "mutation($p: ExecutionParams!){launchPipelineExecution(executionParams:$p)"
            "{__typename ... on LaunchRunSuccess{run{runId}} ... on PythonError{message}}}",
            p={
                "selector": {**LOCATION, "pipelineName": job},
                "runConfigData": {},
                "executionMetadata": {"tags": [{"key": f"dagster/{tag}", "value": tags[tag]} for tag in tags]},
            },
        )["launchPipelineExecution"]
        assert found["__typename"] == "LaunchRunSuccess", found
        return str(found["run"]["runId"])

    def launch_range(self, job: str, keys: Sequence[str]) -> str:
        return self.launch(job, asset_partition_range_start=keys[0], asset_partition_range_end=keys[-1])

    def runs(self, **filters: Any) -> list[dict[str, Any]]:
        found = self.ask(
            "query($f: RunsFilter!){runsOrError(filter:$f){... on Runs{results{"
            "runId status jobName tags{key value}}}}}",
            f=filters,
        )
        return [
            {**run, "tags": {tag["key"]: tag["value"] for tag in run["tags"]}}
            for run in found["runsOrError"]["results"]
        ]

    def run_end(self, run_id: str) -> str:
        def ended() -> str | None:
            (run,) = self.runs(runIds=[run_id])
            return str(run["status"]) if run["status"] in ("SUCCESS", "FAILURE", "CANCELED") else None

        return wait_for(ended, f"end of run {run_id}")


def write_script(home: Path, items: dict[str, Any]) -> None:
    script = {"items": items, "journal": str(home / "calls.log")}
    partial = home / "script.yaml.partial"
    partial.write_text(yaml.safe_dump(script), encoding="utf-8")
    partial.rename(home / "script.yaml")


def calls(home: Path) -> list[str]:
    """The calls that the scripted provider saw, as `<stage> <item>`."""
    journal = home / "calls.log"
    if not journal.exists():
        return []
    return [" ".join(line.split()[1:3]) for line in journal.read_text(encoding="utf-8").splitlines()]


def calling_process(home: Path, item: str) -> int | None:
    """The process id that made the last call for an item, or None before it was made."""
    journal = home / "calls.log"
    if not journal.exists():
        return None
    lines = [line.split() for line in journal.read_text(encoding="utf-8").splitlines()]
    found = [int(words[5]) for words in lines if words[2] == item]
    return found[-1] if found else None
