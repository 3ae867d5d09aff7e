"""The opening scenario with real processes: the crash ends one, and others go on from what it committed."""

from pathlib import Path

import pytest

from tests.acceptance.processes import Rulegen

pytestmark = pytest.mark.acceptance

RULE_14_TO_20 = [f"rule-{number}" for number in range(14, 21)]
RULE_15_TO_20 = RULE_14_TO_20[1:]


@pytest.fixture
def rulegen(tmp_path: Path) -> Rulegen:
    return Rulegen(home=tmp_path / "home")


@pytest.fixture
def db(ledger_url: str, tmp_path: Path) -> str:
    """A path of a file that is not there yet, and the URL of a PostgreSQL ledger."""
    return str(tmp_path / "demo.sqlite3") if ledger_url.startswith("sqlite") else ledger_url


@pytest.fixture
def crashed(rulegen: Rulegen, db: str) -> str:
    """A ledger in which thirteen rules are saved and the process is lost in the call for rule 14."""
    crash = rulegen.run("demo", "crash", "--db", db, "--now", "10000")

    assert (crash.exit_code, crash.stdout) == (14, ""), crash.stderr
    return db


def test_a_resume_after_the_lease_calls_the_seven_that_are_missing_and_leaves_the_thirteen_alone(
    rulegen: Rulegen, crashed: str
) -> None:
    first = rulegen.run("demo", "resume", "--db", crashed, "--now", "12000")
    second = rulegen.run("demo", "resume", "--db", crashed, "--now", "12000", "--json")

    assert (first.exit_code, second.exit_code) == (0, 0)
    assert first.document == {"provider_calls": 7, "called": RULE_14_TO_20, "accepted": 20, "unchanged": 13}
    assert second.document == {"provider_calls": 0, "called": [], "accepted": 20, "unchanged": 20}
    assert second.stderr == ""


def test_a_resume_before_the_lease_ends_leaves_rule_14_to_it(rulegen: Rulegen, crashed: str) -> None:
    early = rulegen.run("demo", "resume", "--db", crashed, "--now", "10500")
    late = rulegen.run("demo", "resume", "--db", crashed, "--now", "11000")

    assert early.exit_code == 0
    assert early.document == {"provider_calls": 6, "called": RULE_15_TO_20, "accepted": 19, "unchanged": 13}
    assert late.document == {"provider_calls": 1, "called": ["rule-14"], "accepted": 20, "unchanged": 19}


def test_a_second_crash_needs_a_fresh_ledger(rulegen: Rulegen, crashed: str) -> None:
    again = rulegen.run("demo", "crash", "--db", crashed, "--now", "10000", "--json")

    assert (again.exit_code, again.document["error"]["code"]) == (1, "wrong_state")


def test_a_resume_waits_for_nothing(rulegen: Rulegen, crashed: str) -> None:
    # The clock of a resume stands still, so a wait for rule 14 would never end; the process ends by itself instead.
    results = [rulegen.run("demo", "resume", "--db", crashed, "--now", now).document for now in ("10001", "10999")]

    assert [result["provider_calls"] for result in results] == [6, 0]
