"""Runtimes, policies and jobs for the tests of the use cases."""

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import yaml

from rulegen_dagster.domain.prompt import Prompt
from rulegen_dagster.domain.states import Stage
from rulegen_dagster.domain.work import Claim, FailedAttempt, Offer
from rulegen_dagster.ledger.claims import Claimant, Scope
from rulegen_dagster.ledger.database import ManualClock
from rulegen_dagster.ledger.reads import JobRecord
from rulegen_dagster.ledger.schema import submission as submission_table
from rulegen_dagster.providers.pattern import PatternProvider
from rulegen_dagster.providers.port import Provider, ProviderIdentity, ProviderReply, ProviderRequest
from rulegen_dagster.settings import Settings
from rulegen_dagster.workflow.documents import Reused, accept, prepare
from rulegen_dagster.workflow.drive import drive
from rulegen_dagster.workflow.engine import Engine, Outcome
from rulegen_dagster.workflow.frozen import freeze
from rulegen_dagster.workflow.intake import submit_upload
from rulegen_dagster.workflow.runtime import Runtime, open_runtime
from tests.conftest import LENIENT
from tests.ledger.conftest import parsed_spec, submission

RULES = (Stage.GENERATE_RULES,)
TESTS = (Stage.GENERATE_TESTS,)
BOTH = (*RULES, *TESTS)
OTHER = Claimant(worker="other", lease_ms=1_000)
# With the jitter of the fixtures (one half), what the retry policy makes of the first delay of 1,000 ms.
FIRST_DELAY_MS = 500


@pytest.fixture(autouse=True)
def _rules_in_process(rules_in_process: None) -> None:
    """Each test here; those that start real processes use the sandbox."""


@dataclass(frozen=True, kw_only=True)
class PlayedRuntime(Runtime):
    """A runtime whose provider is an object of the test."""

    played: Provider

    def has_provider(self, name: str) -> bool:
        return bool(name)

    def provider(
        self, name: str, prompts: Mapping[str, Prompt] | None = None, frozen: Mapping[str, Any] | None = None
    ) -> Provider:
        assert name
        return self.played


class Recorder:
    """The pattern extractor, with a list of the calls that reached it; `before` may do anything to a call."""

    def __init__(self, before: Callable[[ProviderRequest], None] = lambda _request: None) -> None:
        self.calls: list[str] = []
        self._before = before
        self._pattern = PatternProvider()

    @property
    def identity(self) -> ProviderIdentity:
        return self._pattern.identity

    async def call(self, request: ProviderRequest) -> ProviderReply:
        self.calls.append(f"{request.stage}/{request.item_key}/{request.attempt}")
        self._before(request)
        return await self._pattern.call(request)


def playing(runtime: Runtime, provider: Provider) -> PlayedRuntime:
    return PlayedRuntime(**{**vars(runtime), "played": provider})


def scripted(runtime: Runtime, items: dict[str, Any]) -> Runtime:
    """Give the runtime the scripted provider with a script; the same file again mends it."""
    home = runtime.settings.home_path
    home.mkdir(parents=True, exist_ok=True)
    path = home / "script.yaml"
    path.write_text(yaml.safe_dump({"items": items, "journal": str(home / "calls.log")}), encoding="utf-8")
    return replace(
        runtime, settings=runtime.settings.model_copy(update={"provider": "rulegen-scripted", "script": path})
    )


def journal(runtime: Runtime) -> list[str]:
    """Return the calls that the scripted provider saw, as `<stage>/<item>/<attempt>`."""
    path = runtime.settings.home_path / "calls.log"
    if not path.exists():
        return []
    return ["/".join(line.split()[1:4]) for line in path.read_text(encoding="utf-8").splitlines()]


def policy(clauses: int) -> bytes:
    """Return a policy of clauses that the pattern extractor reads."""
    return "\n".join(f"Meals are limited to ${50 + number} per day." for number in range(clauses)).encode()


def submit(runtime: Runtime, data: bytes, *, key: str = "policy", file_name: str = "policy.md") -> JobRecord:
    return submit_upload(runtime, data, file_name, tenant="default", key=key, actor="test").job


def run_stage(runtime: Runtime, job: JobRecord, stage: Stage) -> None:
    prepared = prepare(runtime, job.job_id, stage)
    assert isinstance(prepared, (Offer, Reused)), prepared
    if isinstance(prepared, Offer):
        accept(runtime, prepared)


def open_rules(runtime: Runtime, data: bytes, *, key: str = "policy") -> JobRecord:
    """Submit a policy and take it to where its rule items are open."""
    job = submit(runtime, data, key=key)
    run_stage(runtime, job, Stage.PARSE)
    run_stage(runtime, job, Stage.RETRIEVE)
    return runtime.ledger.reads.job_by_id(job.job_id)


def finish(runtime: Runtime, job: JobRecord) -> JobRecord:
    """Drive a job that needs no wait."""

    def no_wait(reason: object) -> None:
        raise AssertionError(f"the job waits: {reason}")

    return drive(runtime, job, observe=lambda _outcome: None, on_wait=no_wait)


def make_items(runtime: Runtime, count: int) -> int:
    """Make a job with open rule items, without parser or provider; return its number."""
    frozen = freeze(runtime)
    request = replace(submission(), behaviour=frozen.behaviour, prompts=frozen.prompts, packs=frozen.packs)
    job_id = runtime.ledger.submissions.submit(request, actor="test").job_id
    for stage, parsed in ((Stage.PARSE, parsed_spec(count)), (Stage.RETRIEVE, None)):
        (claim,) = claim_items(runtime, stage, 1)
        accept(runtime, Offer(claim=claim, output='{"context":{}}', parsed=parsed))
    return job_id


def claim_items(runtime: Runtime, stage: Stage, count: int, claimant: Claimant = OTHER) -> tuple[Claim, ...]:
    with runtime.ledger.turn(claimant) as turn:
        return turn.claim(Scope(stages=(stage,)), [runtime.tokens() for _ in range(count)])


def drain(
    runtime: Runtime,
    attempt: Callable[[Claim], Any],
    *,
    slots: int = 4,
    stages: tuple[Stage, ...] = RULES,
) -> list[Outcome]:
    """Drain the stages with an engine; return what it told."""
    outcomes: list[Outcome] = []
    engine = Engine(runtime, attempt, slots=slots, observe=outcomes.append)
    asyncio.run(engine.drain(Scope(stages=stages)))
    return outcomes


def offer_of(claim: Claim) -> Offer:
    output = json.dumps({"item": claim.key.item_key})
    return Offer(claim=claim, output=output, provider="test", provider_called=True)


def accepted(outcomes: list[Outcome]) -> list[str]:
    return sorted(o.claim.key.item_key for o in outcomes if not isinstance(o.result, FailedAttempt))


def stored_submissions(runtime: Runtime) -> int:
    with runtime.ledger.database.read() as connection:
        return int(connection.execute(sa.select(sa.func.count()).select_from(submission_table)).scalar_one())


def stored_blobs(runtime: Runtime) -> list[Path]:
    return [path for path in runtime.settings.blobs_path.rglob("*") if path.is_file()]


@pytest.fixture
def local_runtime(sqlite_template: Path, clock: ManualClock, tmp_path: Path) -> Iterator[Runtime]:
    """A runtime on SQLite alone, for what does not depend on the database."""
    path = tmp_path / "local.sqlite3"
    shutil.copyfile(sqlite_template, path)
    settings = Settings(
        home=tmp_path / "home", database_url=f"sqlite:///{path}", slots=4, lease_ms=1_000, policy=LENIENT
    )
    opened = replace(open_runtime(settings, clock=clock), jitter=lambda: 0.5)
    yield opened
    opened.close()
