"""A worker that stands still beyond its lease (a suspended machine, a long collection) and then goes on."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rulegen_dagster.domain.identity import JobName
from rulegen_dagster.domain.retry import RetryPolicy
from rulegen_dagster.domain.states import AttemptOutcome
from rulegen_dagster.ledger.audit import Rows, audit_job
from rulegen_dagster.ledger.store import Ledger, open_ledger
from tests.acceptance.processes import Rulegen, calls, ended, wait_until, write_script

pytestmark = pytest.mark.acceptance

POLICY = "\n".join(f"Meals are limited to ${50 + number} per day." for number in range(4))
COST_MICROS = 1_200
PAID = [{"do": "ok", "tokens_in": 300, "tokens_out": 40, "cost_micros": COST_MICROS}]
SLOW_ONCE = [{**PAID[0], "delay_ms": 1_500}, *PAID]


@pytest.fixture
def rulegen(ledger_url: str, tmp_path: Path) -> Rulegen:
    home = tmp_path / "home"
    (tmp_path / "policy.md").write_text(POLICY, encoding="utf-8")
    variables = {
        **write_script(home, {}, default=PAID),
        "RULEGEN_DATABASE_URL": ledger_url,
        "RULEGEN_SLOTS": "1",
        "RULEGEN_LEASE_MS": "1000",
    }
    return Rulegen(home=home, variables=variables)


@pytest.fixture
def real_ledger(ledger_url: str) -> Iterator[Ledger]:
    """The ledger on the database's own clock, which the processes share."""
    opened = open_ledger(ledger_url, RetryPolicy())
    yield opened
    opened.close()


def _run(home: Path) -> tuple[str, ...]:
    return ("run", str(home.parent / "policy.md"), "--key", "k", "--json")


def _rows(ledger: Ledger) -> Rows:
    job = ledger.reads.job(JobName(tenant="default", submission_key="k"))
    return audit_job(ledger.database, job.job_id)


def _stands_still(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _first_attempt(rows: Rows, item: str) -> dict[str, Any]:
    of_item = [row for row in rows["attempt"] if (row["stage"], row["item_key"]) == ("generate_rules", item)]
    return min(of_item, key=lambda row: row["attempt"])


def _without(rows: Rows, row: dict[str, Any]) -> Rows:
    return {**rows, "attempt": [other for other in rows["attempt"] if other["token"] != row["token"]]}


def test_a_worker_that_stood_still_with_a_paid_answer_changes_nothing_and_leaves_one_late_result(
    rulegen: Rulegen, real_ledger: Ledger
) -> None:
    # It sends itself SIGSTOP between the provider's third answer and the completion: the worst of all moments.
    stopping = {**rulegen.variables, "RULEGEN_FAILPOINT": "provider.after_answer:3:stop"}
    paused = Rulegen(home=rulegen.home, variables=stopping).start(*_run(rulegen.home))
    wait_until(lambda: _stands_still(paused.pid), "the worker to stand still")

    other = rulegen.run(*_run(rulegen.home))
    before = _rows(real_ledger)
    os.kill(paused.pid, signal.SIGCONT)
    late = ended(paused)
    after = _rows(real_ledger)

    assert (other.exit_code, other.document["state"]) == (0, "awaiting_confirmation"), other.stderr
    assert (late.exit_code, late.document["state"]) == (0, "awaiting_confirmation"), late.stderr
    guessed, known = _first_attempt(before, "rule-03"), _first_attempt(after, "rule-03")
    assert _without(after, known) == _without(before, guessed)
    assert (guessed["outcome"], guessed["cost_micros"]) == (AttemptOutcome.CRASHED, None)
    assert (known["outcome"], known["error_code"]) == (AttemptOutcome.STALE, "stale_claim")
    assert (known["tokens_in"], known["tokens_out"], known["cost_micros"]) == (300, 40, COST_MICROS)
    assert [row["outcome"] for row in after["attempt"]].count(AttemptOutcome.STALE) == 1
    assert calls(rulegen.home).count("generate_rules/rule-03") == 2


def test_a_worker_that_is_suspended_in_the_middle_of_a_call_changes_nothing(
    rulegen: Rulegen, real_ledger: Ledger
) -> None:
    write_script(rulegen.home, {"generate_rules/rule-03": SLOW_ONCE}, default=PAID)
    paused = rulegen.start(*_run(rulegen.home))
    wait_until(lambda: "generate_rules/rule-03" in calls(rulegen.home), "the call to begin")
    os.kill(paused.pid, signal.SIGSTOP)
    wait_until(lambda: _stands_still(paused.pid), "the worker to stand still")

    other = rulegen.run(*_run(rulegen.home))
    before = _rows(real_ledger)
    os.kill(paused.pid, signal.SIGCONT)
    late = ended(paused)
    after = _rows(real_ledger)

    assert (other.exit_code, late.exit_code) == (0, 0), late.stderr
    lost = _first_attempt(after, "rule-03")
    assert _without(after, lost) == _without(before, _first_attempt(before, "rule-03"))
    # Its engine finds the lease gone and ends the call, or the answer is there first and is kept as late.
    assert lost["outcome"] in {AttemptOutcome.CRASHED, AttemptOutcome.STALE}
