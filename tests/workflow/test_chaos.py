"""Chaos: its points are all reached, it finds nothing here, and it does find a guard that is broken."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rulegen_dagster.domain import failpoints
from rulegen_dagster.domain.failpoints import Failpoint
from rulegen_dagster.workflow.chaos_endings import check_others, play
from rulegen_dagster.workflow.chaos_invariants import Evidence, check
from rulegen_dagster.workflow.chaos_job import (
    CANCELLED,
    EXPIRED,
    OTHER_JOBS,
    SUCCESSOR,
    TENANT,
    Call,
    Scene,
    SharedClock,
    ending,
    snapshot,
)
from rulegen_dagster.workflow.chaos_plan import PARTS_OF_COURSE, Course, Kind, course_of, plan
from tests.acceptance.processes import Rulegen
from tests.conftest import PROJECT

FEW_POINTS = (
    Failpoint.FAILURE_BEFORE_COMMIT,
    Failpoint.BARRIER_BEFORE_COMMIT,
    Failpoint.BUNDLE_WRITTEN,
)


@pytest.fixture(autouse=True)
def unarmed() -> Iterator[None]:
    yield
    failpoints.disarm()


@pytest.fixture
def scene(ledger_url: str, tmp_path: Path) -> Scene:
    return Scene(url=ledger_url, home=tmp_path / "run", key="k", clock=SharedClock(10_000))


def _reached(scene: Scene) -> set[Failpoint]:
    scene.prepare()
    runtime = scene.open()
    runtime.ledger.submissions.add_tenant(TENANT)
    counts = failpoints.record()
    play(scene, runtime)
    failpoints.disarm()
    runtime.close()
    return set(counts)


def _undisturbed(scene: Scene) -> Evidence:
    """Run the job without a failure, and gather what chaos would gather."""
    scene.prepare()
    runtime = scene.open()
    runtime.ledger.submissions.add_tenant(TENANT)
    job = play(scene, runtime)
    after = snapshot(scene, runtime)
    evidence = Evidence(
        before=(),
        frozen=(),
        after=after,
        calls=scene.calls(),
        ending=ending(scene, runtime, job),
        bystander=("same", "same"),
        killed=False,
    )
    runtime.close()
    return evidence


def _broken(evidence: Evidence) -> set[int]:
    return {violation.invariant for violation in check(evidence)}


def _guarded(database: str, *arguments: str) -> dict[str, Any]:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.workflow.token_blind_guard", database, *arguments],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    report: dict[str, Any] = json.loads(ended.stdout)
    return report


@pytest.mark.parametrize("course", Course)
def test_the_job_reaches_every_failpoint(scene: Scene, course: Course) -> None:
    reached = _reached(replace(scene, **PARTS_OF_COURSE[course]))

    assert reached >= {point for point in Failpoint if course_of(point) is course}


def test_a_job_that_nothing_disturbed_breaks_no_invariant(scene: Scene) -> None:
    evidence = _undisturbed(scene)

    violations = check(evidence)

    assert violations == []


def test_the_checks_see_what_they_are_there_for(scene: Scene) -> None:
    evidence = _undisturbed(scene)
    after = evidence.after

    def with_rows(**tables: list[dict[str, Any]]) -> Evidence:
        return replace(evidence, after=replace(after, rows={**after.rows, **tables}))

    attempts, log = after.rows["attempt"], after.rows["transition"]
    stale = [{**row, "outcome": "stale"} if row["outcome"] == "accepted" else row for row in attempts]
    misnamed = [{**row, "error_code": "ledger_unavailable"} if row["error_code"] else row for row in attempts]
    again = [*log, {**log[-1], "subject": "job", "from_state": "completed", "to_state": "executing"}]
    held = [{**row, "state": "running", "token": "lost"} for row in after.rows["work_item"]]

    assert 1 in _broken(with_rows(attempt=stale))
    assert 1 in _broken(with_rows(outbox=after.rows["outbox"][1:]))
    assert 1 in _broken(replace(evidence, ending=replace(evidence.ending, events=evidence.ending.events[1:])))
    assert 1 in _broken(replace(evidence, ending=replace(evidence.ending, events=evidence.ending.events * 2)))
    assert 2 in _broken(replace(evidence, calls=[*evidence.calls, evidence.calls[0]]))
    assert 2 in _broken(replace(evidence, before=(replace(after, calls=0),), killed=True))
    assert 4 in _broken(with_rows(transition=again))
    assert 5 in _broken(with_rows(work_item=after.rows["work_item"][:-1]))
    lost = replace(after, rows={**after.rows, "work_item": held}, calls=len(evidence.calls))
    assert 6 in _broken(replace(evidence, before=(lost,), killed=True))
    assert 7 in _broken(replace(evidence, ending=replace(evidence.ending, same_job=False)))
    assert 8 in _broken(with_rows(behaviour=[{**after.rows["behaviour"][0], "content": "{}"}]))
    assert 9 in _broken(replace(evidence, bystander=("same", "changed")))
    assert 10 in _broken(replace(evidence, ending=replace(evidence.ending, bundles=("one", "two"))))
    assert 11 in _broken(with_rows(attempt=misnamed))
    assert 12 in _broken(replace(evidence, before=(replace(after, reason=None, calls=len(evidence.calls)),)))


def test_other_jobs_that_nothing_disturbed_break_no_invariant(scene: Scene) -> None:
    evidence = _undisturbed(replace(scene, endings=True))

    violations = [*check(evidence), *check_others(evidence)]

    validated = [row for row in evidence.after.others[SUCCESSOR]["work_item"] if row["stage"] == "validate"]
    assert evidence.after.others.keys() == set(OTHER_JOBS)
    assert sorted((row["stage_version"], row["state"]) for row in validated) == [(1, "succeeded"), (2, "succeeded")]
    assert violations == []


def test_the_checks_of_the_other_jobs_see_what_they_are_there_for(scene: Scene) -> None:
    evidence = _undisturbed(replace(scene, endings=True))
    after = evidence.after

    def broken(changed: Evidence) -> set[int]:
        return {violation.invariant for violation in check_others(changed)}

    def with_rows(kind: str, table: str, rows: list[dict[str, Any]]) -> Evidence:
        others = {**after.others, kind: {**after.others[kind], table: rows}}
        return replace(evidence, after=replace(after, others=others))

    cancelled, successor = after.others[CANCELLED], after.others[SUCCESSOR]
    revived = [{**row, "state": "pending"} for row in cancelled["work_item"]]
    of_successor = Call(job=f"{TENANT}/{scene.key}-{SUCCESSOR}", stage="generate_rules", item="rule-01", attempt=1)
    unended = [{**row, "outcome": None} for row in cancelled["attempt"]]
    bequeathed = [{**row, "output_digest": "another"} for row in successor["work_item"]]

    assert 1 in broken(with_rows(CANCELLED, "attempt", []))
    assert 2 in broken(replace(evidence, calls=[*evidence.calls, of_successor]))
    assert 2 in broken(with_rows(SUCCESSOR, "work_item", bequeathed))
    assert 4 in broken(with_rows(CANCELLED, "work_item", revived))
    assert 4 in broken(replace(evidence, after=replace(after, others={EXPIRED: after.others[EXPIRED]})))
    assert 4 in broken(replace(with_rows(CANCELLED, "transition", cancelled["transition"][:-1]), before=(after,)))
    assert 6 in broken(with_rows(CANCELLED, "attempt", unended))
    assert 8 in broken(with_rows(SUCCESSOR, "job", [{**successor["job"][0], "behaviour_digest": "another"}]))
    assert 8 in broken(with_rows(CANCELLED, "needed_decision", []))
    assert 8 in broken(with_rows(SUCCESSOR, "job_behaviour", [{"job_id": 1}]))
    assert 10 in broken(with_rows(SUCCESSOR, "confirmation", []))


def test_the_random_runs_are_the_same_for_the_same_seed() -> None:
    random_runs = [[run for run in plan((), {}, seed) if run.kind is Kind.RANDOM] for seed in (7, 7, 8)]

    assert random_runs[0] == random_runs[1] != random_runs[2]
    assert list(plan((), {}, None)) == []


@pytest.mark.acceptance
def test_a_few_points_are_survived_by_real_processes(ledger_url: str, tmp_path: Path) -> None:
    points = [f"--point={point}" for point in FEW_POINTS]
    rulegen = Rulegen(home=tmp_path / "home")

    ended = rulegen.run("chaos", "--database", ledger_url, *points, "--json")

    assert (ended.exit_code, ended.stderr) == (0, ""), ended.stdout
    report = ended.document
    assert (report["points"], report["violations"], report["folder"]) == (len(FEW_POINTS), [], None)
    assert report["runs"] == report["kills"] + report["stops"] > len(FEW_POINTS)
    assert not rulegen.home.exists()


@pytest.mark.acceptance
def test_a_ledger_that_holds_jobs_of_others_is_left_alone(
    ledger_url: str, tmp_path: Path, example_policy: Path
) -> None:
    rulegen = Rulegen(home=tmp_path / "home", variables={"RULEGEN_DATABASE_URL": ledger_url})
    rulegen.run("submit", str(example_policy))

    ended = rulegen.run("chaos", "--database", ledger_url, "--json")

    assert (ended.exit_code, ended.document["error"]["code"]) == (1, "ledger_in_use")
    assert len(rulegen.run("list", "--json").document["jobs"]) == 1


@pytest.mark.acceptance
def test_a_guard_that_does_not_look_at_the_token_is_found(ledger_url: str) -> None:
    blind = _guarded(ledger_url)
    intact = _guarded(ledger_url, "intact")

    # The database refuses a second acceptance where the guard does not, and the process that tried it is broken by it.
    assert [violation["point"] for violation in blind["violations"]] == ["provider.after_answer"]
    assert (intact["stops"], intact["violations"]) == (2, [])
