"""`rulegen run` as real processes: killed in the middle, and two at once over one file."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from rulegen_dagster.domain.identity import JobName
from rulegen_dagster.domain.retry import RetryPolicy
from rulegen_dagster.domain.states import Stage, WorkState
from rulegen_dagster.ledger.store import open_ledger
from tests.acceptance.processes import Ended, Rulegen, calls, ended, wait_until, write_script
from tests.conftest import in_full_only

pytestmark = pytest.mark.acceptance

SLOTS = 4
SLOW = [{"do": "ok", "delay_ms": 40}]


@pytest.fixture
def rulegen(ledger_url: str, tmp_path: Path) -> Rulegen:
    """The scripted provider with a journal; on SQLite over a home in which nothing is prepared."""
    home = tmp_path / "home"
    variables = {**write_script(home, {}, default=SLOW), "RULEGEN_SLOTS": str(SLOTS), "RULEGEN_LEASE_MS": "1000"}
    if not ledger_url.startswith("sqlite"):
        variables["RULEGEN_DATABASE_URL"] = ledger_url
    return Rulegen(home=home, variables=variables)


def _committed(rulegen: Rulegen) -> set[str]:
    """Return what is accepted in the ledger, as `<stage>/<item>`."""
    url = rulegen.variables.get("RULEGEN_DATABASE_URL", f"sqlite:///{rulegen.home / 'ledger.sqlite3'}")
    ledger = open_ledger(url, RetryPolicy())
    try:
        job = ledger.reads.job(JobName(tenant="default", submission_key="k"))
        return {
            f"{stage}/{item.key.item_key}"
            for stage in (Stage.GENERATE_RULES, Stage.GENERATE_TESTS)
            for item in ledger.reads.items(job.job_id, stage)
            if item.state is WorkState.SUCCEEDED
        }
    finally:
        ledger.close()


@pytest.mark.parametrize(
    "after",
    [pytest.param(3, marks=in_full_only), 14, pytest.param(27, marks=in_full_only)],
    ids=lambda calls: f"after {calls} calls",
)
def test_nothing_that_a_killed_run_committed_is_called_again(
    rulegen: Rulegen, example_policy: Path, after: int
) -> None:
    lost = rulegen.start("run", str(example_policy), "--key", "k", "--json")
    wait_until(lambda: len(calls(rulegen.home)) >= after, "the calls before the kill")
    os.kill(lost.pid, signal.SIGKILL)
    killed = ended(lost)
    before, committed = calls(rulegen.home), _committed(rulegen)

    resumed = rulegen.run("run", str(example_policy), "--key", "k", "--json")

    again = calls(rulegen.home)[len(before) :]
    assert killed.exit_code == -signal.SIGKILL
    assert committed <= set(before)
    assert len(before) - len(committed) <= SLOTS
    assert set(again).isdisjoint(committed)
    assert len(again) == len(set(again)) == 40 - len(committed)
    assert (resumed.exit_code, resumed.document["state"]) == (0, "awaiting_confirmation"), resumed.stderr
    assert resumed.document["existing"] is True
    assert resumed.document["calls_this_run"] == len(again)
    # A lost call may be billed, and is counted.
    assert 40 <= resumed.document["provider_calls"] <= 40 + SLOTS


def test_two_runs_of_one_file_at_once_share_the_calls_and_publish_one_bundle(
    rulegen: Rulegen, example_policy: Path
) -> None:
    # Long enough that a busy machine never makes one run take over what the other still does.
    patient = replace(rulegen, variables={**rulegen.variables, "RULEGEN_LEASE_MS": "30000"})
    rivals = [patient.start("run", str(example_policy), "--key", "k", "--confirm", "--json") for _ in range(2)]

    results: list[Ended] = [ended(rival) for rival in rivals]

    made = calls(rulegen.home)
    one, other = (result.document for result in results)
    assert [result.exit_code for result in results] == [0, 0], [result.stderr for result in results]
    assert len(made) == len(set(made)) == 40
    assert one["state"] == other["state"] == "completed"
    assert one["calls_this_run"] + other["calls_this_run"] == 40
    assert one["provider_calls"] == other["provider_calls"] == 40
    assert one["published"] == other["published"]
    assert [path.name for path in Path(one["published"]).parent.iterdir()] == [one["action_set"]]
    assert sorted(result.document.get("existing", False) for result in results) == [False, True]


def test_commands_that_start_at_once_over_a_new_home_make_one_ledger(tmp_path: Path) -> None:
    rulegen = Rulegen(home=tmp_path / "home")
    started = [rulegen.start("tenant", "add", f"tenant-{number}", "--json") for number in range(4)]

    results = [ended(process) for process in started]

    assert [result.exit_code for result in results] == [0] * 4, [result.stderr for result in results]
    listed = rulegen.run("tenant", "list", "--json").document["tenants"]
    assert listed == ["default", *(f"tenant-{number}" for number in range(4))]
