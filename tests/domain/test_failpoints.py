"""Failpoints: inert until a process is armed, and then at one point for one time."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from rulegen_dagster.domain import failpoints
from rulegen_dagster.domain.errors import InputError
from rulegen_dagster.domain.failpoints import Commit, Failpoint, reach, reach_after, reach_before

PROGRAM = """
from rulegen_dagster.domain.failpoints import Failpoint, reach
for number in range(1, 4):
    print(number, flush=True)
    reach(Failpoint.BUNDLE_WRITTEN)
"""


@pytest.fixture(autouse=True)
def unarmed() -> Iterator[None]:
    yield
    failpoints.disarm()


def _play(variable: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={"RULEGEN_FAILPOINT": variable},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_point_is_inert_in_a_process_that_nobody_armed() -> None:
    for point in Failpoint:
        reach(point)


def test_a_recording_counts_each_side_of_a_commit() -> None:
    counts = failpoints.record()

    reach_before([failpoints.CLAIM, failpoints.FAILURE])
    reach_after([failpoints.CLAIM])
    reach(Failpoint.PROVIDER_BEFORE_CALL)

    assert counts == {
        Failpoint.CLAIM_BEFORE_COMMIT: 1,
        Failpoint.FAILURE_BEFORE_COMMIT: 1,
        Failpoint.CLAIM_AFTER_COMMIT: 1,
        Failpoint.PROVIDER_BEFORE_CALL: 1,
    }


def test_every_commit_has_its_two_sides() -> None:
    commits = [value for value in vars(failpoints).values() if isinstance(value, Commit)]

    sides = [point for commit in commits for point in commit]

    assert sorted(sides) == sorted(point for point in Failpoint if point.endswith("_commit"))
    assert all(commit.before == commit.after.replace("after", "before") for commit in commits)


@pytest.mark.acceptance
@pytest.mark.parametrize(("variable", "said"), [("bundle.written", "1\n"), ("bundle.written:3", "1\n2\n3\n")])
def test_a_process_that_is_armed_by_its_environment_dies_at_the_point(variable: str, said: str) -> None:
    died = _play(variable)

    assert (died.returncode, died.stdout) == (-9, said)


@pytest.mark.acceptance
def test_a_point_that_is_reached_less_often_does_nothing() -> None:
    lived = _play("bundle.written:4")

    assert (lived.returncode, lived.stdout) == (0, "1\n2\n3\n")


@pytest.mark.parametrize("text", ["nowhere", "bundle.written:x", "bundle.written:1:explode"])
def test_a_point_that_cannot_be_armed_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="RULEGEN_FAILPOINT cannot be read") as refused:
        failpoints.arm_by_text(text)

    assert refused.value.code == "invalid_failpoint"
