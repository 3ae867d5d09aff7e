"""Jobs whose drafts come from a model over a real socket: faults, accounts that add up, calls that are cut off."""

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from rulegen_dagster.domain.rule import RuleOutput
from rulegen_dagster.domain.states import AttemptOutcome, JobState, Stage, WorkState
from rulegen_dagster.ledger.attempts import AttemptRecord
from rulegen_dagster.ledger.claims import Scope
from rulegen_dagster.ledger.database import DatabaseClock, ManualClock
from rulegen_dagster.ledger.quota_schema import quota_reservation
from rulegen_dagster.settings import Settings
from rulegen_dagster.workflow.drive import generate
from rulegen_dagster.workflow.runtime import Runtime, open_runtime
from tests.conftest import LENIENT
from tests.providers.model_server import Completion, Cut, Error, Heard, ModelServer, Play
from tests.workflow.conftest import RULES, open_rules, policy, run_stage, submit
from tests.workflow.model_jobs import Drafter, Once, drive_on, modelled, share_of
from tests.workflow.test_injected_clauses import GOOD, OBEYING, PHRASES

FAULTS: tuple[tuple[float, Play, AttemptOutcome], ...] = (
    (0.10, Error(status=429, kind="rate_limit_exceeded", headers={"retry-after": "1"}), AttemptOutcome.RATE_LIMITED),
    (0.20, Error(status=503), AttemptOutcome.RETRYABLE),
    (0.30, Error(status=500), AttemptOutcome.AMBIGUOUS),
    (0.35, Cut.RESET, AttemptOutcome.AMBIGUOUS),
    (0.40, Cut.MIDWAY, AttemptOutcome.AMBIGUOUS),
    (0.50, Completion(text="Sure! Here are the rules.", tokens_in=1_500, tokens_out=9), AttemptOutcome.INVALID_OUTPUT),
    (0.60, Completion(text='{"rules": [', finish="length", tokens_in=1_500), AttemptOutcome.INVALID_OUTPUT),
)
"""What the first request of an operation meets, up to which share of all, and what its attempt becomes."""


def _fault_of(operation_key: str) -> Play | None:
    return next((play for share, play, _ in FAULTS if share_of(operation_key) < share), None)


def _generate(runtime: Runtime, job_id: int) -> None:
    generate(runtime, Scope(stages=RULES, job_ids=(job_id,)), observe=lambda _outcome: None)


def _attempts(runtime: Runtime, job_id: int) -> list[AttemptRecord]:
    stages = {Stage.GENERATE_RULES, Stage.GENERATE_TESTS}
    return [made for made in runtime.ledger.reads.attempts(job_id) if made.key.stage in stages]


def test_a_whole_job_with_faults_ends_complete_and_its_accounts_are_those_of_the_server(
    local_runtime: Runtime, clock: ManualClock, example_policy: Path
) -> None:
    data = example_policy.read_bytes()
    with ModelServer(Once(_fault_of, Drafter(data, example_policy.name))) as server:
        runtime = modelled(local_runtime, server.url, max_attempts=4)
        job = drive_on(runtime, clock, submit(runtime, data, file_name=example_policy.name))

        assert job.state is JobState.AWAITING_CONFIRMATION
        items = [
            item
            for stage in (Stage.GENERATE_RULES, Stage.GENERATE_TESTS)
            for item in runtime.ledger.reads.items(job.job_id, stage)
        ]
        assert len(items) == 40
        assert {item.state for item in items} == {WorkState.SUCCEEDED}

        made = _attempts(runtime, job.job_id)
        assert (
            len(made)
            == len(server.heard)
            == 40 + sum(_fault_of(heard.operation_key) is not None for heard in _first(server.heard))
        )
        expected = Counter(
            next((outcome for share, _, outcome in FAULTS if share_of(key) < share), None)
            for key in {heard.operation_key for heard in server.heard}
        )
        assert Counter(attempt.outcome for attempt in made if attempt.outcome is not AttemptOutcome.ACCEPTED) == {
            outcome: count for outcome, count in expected.items() if outcome is not None
        }
        assert all(
            attempt.report["sent_max_tokens"] in {4096, 8192}
            for attempt in made
            if attempt.outcome is AttemptOutcome.ACCEPTED
        )
        answered = [heard.play for heard in server.heard if isinstance(heard.play, Completion)]
        assert sum(attempt.tokens_in or 0 for attempt in made) == sum(play.tokens_in for play in answered)
        assert sum(attempt.tokens_out or 0 for attempt in made) == sum(play.tokens_out for play in answered)
        assert sum(attempt.cost_micros or 0 for attempt in made) == sum(_cost(play) for play in answered)
        assert {attempt.operation_key for attempt in made} == {heard.operation_key for heard in server.heard}
        assert all(heard.headers["x-client-request-id"].startswith(f"{heard.operation_key}.") for heard in server.heard)


def _first(heard: list[Heard]) -> list[Heard]:
    return list({each.operation_key: each for each in reversed(heard)}.values())


def _cost(play: Completion) -> int:
    return (play.tokens_in * 250_000 + play.tokens_out * 2_000_000 + 500_000) // 1_000_000


@pytest.fixture
def timed(tmp_path: Path, sqlite_template: Path) -> Iterator[Runtime]:
    """A runtime on the database's own clock, with leases that outlive the test, as does the wait for a retry."""
    path = tmp_path / "timed.sqlite3"
    path.write_bytes(sqlite_template.read_bytes())
    settings = Settings(
        home=tmp_path / "home",
        database_url=f"sqlite:///{path}",
        slots=2,
        lease_ms=600_000,
        first_retry_ms=600_000,
        max_retry_ms=600_000,
        policy=LENIENT,
    )
    opened = replace(open_runtime(settings, clock=DatabaseClock()), jitter=lambda: 1.0)
    yield opened
    opened.close()


def test_a_cancelled_job_closes_the_socket_of_a_dribbling_answer_and_owns_up_to_the_call(timed: Runtime) -> None:
    with ModelServer(lambda _heard: Cut.DRIBBLE) as server, ThreadPoolExecutor(1) as pool:
        runtime = modelled(timed, server.url)
        job = open_rules(runtime, policy(1))
        work = pool.submit(_generate, runtime, job.job_id)
        while not server.heard:
            assert not work.done()
        assert server.heard[0].began.wait(10)

        runtime.ledger.cancellations.cancel(job.job_id, actor="ann", reason="wrong edition")

        assert server.heard[0].closed.wait(2), "half a second until an engine looks, and then at once"
        work.result(20)
        (made,) = _attempts(runtime, job.job_id)
        assert (made.outcome, made.provider_called) == (AttemptOutcome.CANCELLED, True)
        (unused,) = runtime.ledger.reads.unused_calls(job.job_id, limit=5).latest
        assert unused.outcome is AttemptOutcome.CANCELLED


def test_a_dribbling_answer_that_outlasts_its_budget_is_ambiguous_and_closes_its_socket(timed: Runtime) -> None:
    with ModelServer(lambda _heard: Cut.DRIBBLE) as server:
        runtime = modelled(timed, server.url, call_timeout_ms=200)
        job = open_rules(runtime, policy(1))

        _generate(runtime, job.job_id)

        (made,) = _attempts(runtime, job.job_id)
        assert (made.outcome, made.error_code) == (AttemptOutcome.AMBIGUOUS, "provider_timeout")
        assert server.heard[0].closed.wait(1)
        assert runtime.ledger.reads.unused_calls(job.job_id, limit=5).total == 1


@pytest.mark.parametrize(
    ("play", "outcome", "code", "state"),
    [
        (Completion(text=None, refusal="no"), AttemptOutcome.INVALID_OUTPUT, "answer_refused", WorkState.FAILED),
        (Completion(text="{", finish="length"), AttemptOutcome.INVALID_OUTPUT, "answer_truncated", WorkState.WAITING),
        (Error(status=404), AttemptOutcome.PERMANENT, "provider_model_not_found", WorkState.FAILED),
        (
            Error(status=503, headers={"retry-after": "7"}),
            AttemptOutcome.RETRYABLE,
            "provider_unavailable",
            WorkState.WAITING,
        ),
        (Error(status=401), AttemptOutcome.RETRYABLE, "provider_account_refused", WorkState.WAITING),
    ],
    ids=["refused", "truncated", "no such model", "unavailable", "account"],
)
def test_what_a_model_answers_becomes_an_outcome_of_the_ledger(
    local_runtime: Runtime, play: Play, outcome: AttemptOutcome, code: str, state: WorkState
) -> None:
    with ModelServer(lambda _heard: play) as server:
        runtime = modelled(local_runtime, server.url)
        job = open_rules(runtime, policy(1))

        _generate(runtime, job.job_id)

        (made,) = _attempts(runtime, job.job_id)
        (item,) = runtime.ledger.reads.items(job.job_id, Stage.GENERATE_RULES)
        assert (made.outcome, made.error_code, item.state) == (outcome, code, state)
        assert made.request_id == "req_1"
        if isinstance(play, Completion):
            assert made.cost_micros == _cost(play)
            assert made.report["http_requests"] == 1
            assert made.report["finish_reason"] in {"length", "content_filter"}


def test_a_second_cut_answer_ends_its_item(local_runtime: Runtime, clock: ManualClock) -> None:
    with ModelServer(lambda _heard: Completion(text="{", finish="length")) as server:
        runtime = modelled(local_runtime, server.url, max_tokens=500)
        job = open_rules(runtime, policy(1))
        for _ in range(3):
            _generate(runtime, job.job_id)
            clock.now_ms += 60_000

        (item,) = runtime.ledger.reads.items(job.job_id, Stage.GENERATE_RULES)
        assert (item.state, item.error_code) == (WorkState.FAILED, "answer_truncated")
        assert [heard.body["max_tokens"] for heard in server.heard] == [500, 1000]
        with runtime.ledger.database.read() as connection:
            of_calls = sa.select(quota_reservation.c.tokens).order_by(quota_reservation.c.created_at)
            first, repair = connection.execute(of_calls).scalars()
        assert repair == first + 500


def test_a_model_that_obeys_what_stands_in_a_policy_changes_no_accepted_rule(
    local_runtime: Runtime, clock: ManualClock
) -> None:
    hostile = [reply for reply, _code in OBEYING.values()]
    clean = GOOD[3]
    data = "\n\n".join([*(f"{GOOD[0]} {phrase}" for phrase in PHRASES), clean]).encode()
    drafter = Drafter(data, "policy.txt")
    obeyed: list[str] = []

    def obey(heard: Heard) -> Play:
        _, _, stage, item_key, _ = heard.operation_key.split("/")
        if stage != Stage.GENERATE_RULES or f"\n{clean}\n" in heard.user:
            return drafter(heard)
        obeyed.append(item_key)
        return Completion(text=json.dumps(hostile[int(item_key.rpartition("-")[2]) % len(hostile)]))

    with ModelServer(obey) as server:
        runtime = modelled(local_runtime, server.url)
        job = submit(runtime, data, file_name="policy.txt")
        run_stage(runtime, job, Stage.PARSE)
        run_stage(runtime, job, Stage.RETRIEVE)
        for _ in range(3):
            _generate(runtime, job.job_id)
            clock.now_ms += 60_000

        items = runtime.ledger.reads.items(job.job_id, Stage.GENERATE_RULES)
        accepted = [RuleOutput.model_validate_json(item.output) for item in items if item.output]
        assert len(set(obeyed)) == len(items) - 1 >= len(PHRASES)
        assert [rule.source.quote for output in accepted for rule in output.rules] == [clean]
        assert Counter(item.state for item in items) == {WorkState.FAILED: len(items) - 1, WorkState.SUCCEEDED: 1}
