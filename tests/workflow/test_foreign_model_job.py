"""A whole job with a model that this project did not write: fakellm from PyPI, told by a file what to say when."""

import asyncio
import json
import os
import socket
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from rulegen_dagster.domain.states import AttemptOutcome, JobState, Stage
from rulegen_dagster.ledger.database import ManualClock
from rulegen_dagster.providers.pattern import PatternProvider
from rulegen_dagster.providers.port import ProviderRequest
from rulegen_dagster.rules.packs import load_vocabulary
from rulegen_dagster.specs.document import read_document
from rulegen_dagster.workflow.runtime import Runtime
from tests.workflow.conftest import submit
from tests.workflow.model_jobs import drive_on, modelled, share_of


@dataclass(frozen=True, kw_only=True)
class FakeLLM:
    """A running fakellm, and the file that tells it what to say."""

    url: str
    config: Path

    def tell(self, rules: list[dict[str, Any]]) -> None:
        self.config.write_text(yaml.safe_dump({"version": 1, "rules": rules}), encoding="utf-8")
        request = urllib.request.Request(f"{self.url}/_fakellm/reload", data=b"", method="POST")
        urllib.request.urlopen(request, timeout=5).close()

    def journal(self) -> dict[str, int]:
        """Return how often each rule answered."""
        with urllib.request.urlopen(f"{self.url}/_fakellm/stats", timeout=5) as answer:
            counted: dict[str, int] = json.load(answer)["by_rule"]
            return counted


@pytest.fixture(scope="module")
def fakellm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeLLM]:
    config = tmp_path_factory.mktemp("fakellm") / "fakellm.yaml"
    config.write_text("version: 1\nrules: []\n", encoding="utf-8")
    before = os.environ.get("FAKELLM_CONFIG")
    os.environ["FAKELLM_CONFIG"] = str(config)
    import uvicorn
    from fakellm.server import app

    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive()
        yield FakeLLM(url=f"http://127.0.0.1:{bound.getsockname()[1]}", config=config)
        server.should_exit = True
        thread.join(10)
    if before is None:
        del os.environ["FAKELLM_CONFIG"]
    else:
        os.environ["FAKELLM_CONFIG"] = before


FAULTS: tuple[tuple[float, dict[str, Any], AttemptOutcome], ...] = (
    (0.10, {"status": 429}, AttemptOutcome.RATE_LIMITED),
    (0.20, {"status": 503}, AttemptOutcome.RETRYABLE),
    (0.30, {"status": 500}, AttemptOutcome.AMBIGUOUS),
    (0.45, {"content": "Certainly! I have read the clause."}, AttemptOutcome.INVALID_OUTPUT),
)
"""What the first attempt at an item meets, up to which share of all items."""


def _script(data: bytes, file_name: str) -> tuple[list[dict[str, Any]], Counter[AttemptOutcome]]:
    """Return fakellm's rules for a policy: a fault for some first attempts, and the right draft for everything."""
    faults: list[dict[str, Any]] = []
    drafts: list[dict[str, Any]] = []
    expected: Counter[AttemptOutcome] = Counter()
    pattern, vocabulary = PatternProvider(), load_vocabulary("expense")
    for number, clause in enumerate(read_document(data, file_name, max_bytes=10**6).normative, start=1):
        for stage in (Stage.GENERATE_RULES, Stage.GENERATE_TESTS):
            item_key = f"rule-{number:02d}"
            key = f"default/policy/{stage}/{item_key}/v1"
            request = ProviderRequest(
                stage=stage,
                job="default/policy",
                item_key=item_key,
                attempt=1,
                operation_key=key,
                timeout_ms=1_000,
                clause=clause,
                context=(),
                vocabulary=vocabulary,
            )
            draft = asyncio.run(pattern.call(request)).draft
            sent = key
            for share, respond, outcome in FAULTS:
                if share_of(key) < share:
                    name = f"{key}.1"
                    faults.append({"name": name, "when": {"header.x-client-request-id": name}, "respond": respond})
                    expected[outcome] += 1
                    # The repair of a refused answer is another request.
                    sent = f"{key}/repair" if outcome is AttemptOutcome.INVALID_OUTPUT else key
                    break
            drafts.append({"name": sent, "when": {"header.idempotency-key": sent}, "respond": {"content": draft}})
    return [*faults, *drafts], expected


def test_fakellm_a_whole_job_with_faults_ends_complete_and_agrees_with_its_journal(
    fakellm: FakeLLM, local_runtime: Runtime, clock: ManualClock, example_policy: Path
) -> None:
    data = example_policy.read_bytes()
    rules, expected = _script(data, example_policy.name)
    fakellm.tell(rules)
    runtime = modelled(local_runtime, fakellm.url, provider="anthropic", model="claude-of-fakellm", max_attempts=4)

    job = drive_on(runtime, clock, submit(runtime, data, file_name=example_policy.name))

    made = [attempt for attempt in runtime.ledger.reads.attempts(job.job_id) if attempt.provider_called]
    answered = [attempt for attempt in made if attempt.tokens_in is not None]
    assert job.state is JobState.AWAITING_CONFIRMATION
    assert fakellm.journal() == {rule["name"]: 1 for rule in rules}
    assert len(made) == len(rules) == 40 + expected.total()
    assert Counter(attempt.outcome for attempt in made) == expected | {AttemptOutcome.ACCEPTED: 40}
    assert len(answered) == 40 + expected[AttemptOutcome.INVALID_OUTPUT]
    for attempt in answered:
        exact = (attempt.tokens_in or 0) * 250_000 + (attempt.tokens_out or 0) * 2_000_000
        assert attempt.cost_micros == (exact + 500_000) // 1_000_000
