"""Whole jobs with a model behind them: a server that answers as the pattern extractor would, and fails as told."""

import hashlib
import re
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from pydantic import SecretStr

from rulegen_dagster.domain.clause import Clause
from rulegen_dagster.domain.errors import ProviderPermanentError
from rulegen_dagster.domain.states import Stage
from rulegen_dagster.ledger.database import ManualClock
from rulegen_dagster.ledger.reads import JobRecord
from rulegen_dagster.providers.pattern import PatternProvider
from rulegen_dagster.providers.port import ProviderReply, ProviderRequest
from rulegen_dagster.rules.packs import load_vocabulary
from rulegen_dagster.specs.document import read_document
from rulegen_dagster.workflow.drive import drive
from rulegen_dagster.workflow.runtime import Runtime
from tests.providers.model_server import Completion, Heard, Play

PLANTED_KEY = "sk-planted-77c1"
_CLAUSE = re.compile(r"<<[0-9a-f]{16} clause>>\n(.*?)\n<<[0-9a-f]{16} end>>", re.DOTALL)
_NO_TESTS = '{"tests": [{"name": "nothing", "kind": "normal", "facts": [], "expect": "no_match"}]}'


class Drafter:
    """Answers with the pattern extractor's draft for the clause that a request shows.

    It knows the clauses of one policy, and reads everything else (stage, item) from the request.
    """

    def __init__(self, data: bytes, file_name: str = "policy.md") -> None:
        clauses = read_document(data, file_name, max_bytes=10**6).clauses
        self._clauses: dict[str, list[Clause]] = {}
        for clause in clauses:
            self._clauses.setdefault(clause.text, []).append(clause)
        self._pattern = PatternProvider()
        self._vocabulary = load_vocabulary("expense")

    def __call__(self, heard: Heard) -> Play:
        shown = _CLAUSE.search(heard.user)
        assert shown is not None, "each request shows one clause between its marks"
        _, _, stage, item_key, _ = heard.operation_key.split("/")
        request = ProviderRequest(
            stage=Stage(stage),
            job="default/policy",
            item_key=item_key,
            attempt=1,
            operation_key=heard.operation_key,
            timeout_ms=1_000,
            clause=self._clauses[shown[1]][0],
            context=(),
            vocabulary=self._vocabulary,
        )
        try:
            draft = _at_once(self._pattern.call(request)).draft
        except ProviderPermanentError:
            draft = _NO_TESTS
        tokens_in, tokens_out = 1_000 + len(heard.user), len(draft) // 3
        return Completion(text=draft, tokens_in=tokens_in, tokens_out=tokens_out, cached=0)


def _at_once(call: Coroutine[Any, Any, ProviderReply]) -> ProviderReply:
    """Return what a call gives that waits for nothing; the server's loop runs already."""
    try:
        call.send(None)
    except StopIteration as done:
        reply: ProviderReply = done.value
        return reply
    raise AssertionError("the extractor waits for something")


class Once:
    """Plays a fault for the first request of those operation keys that `fault_of` names one for, then the rest."""

    def __init__(self, fault_of: Callable[[str], Play | None], otherwise: Callable[[Heard], Play]) -> None:
        self._fault_of = fault_of
        self._otherwise = otherwise
        self._seen: set[str] = set()

    def __call__(self, heard: Heard) -> Play:
        key = heard.operation_key
        if key not in self._seen:
            self._seen.add(key)
            if (fault := self._fault_of(key)) is not None:
                return fault
        return self._otherwise(heard)


def share_of(operation_key: str) -> float:
    """Return a number in [0, 1) that belongs to an operation key, so that rates need no chance."""
    return int(hashlib.sha256(operation_key.encode()).hexdigest()[:8], 16) / 2**32


def modelled(runtime: Runtime, base_url: str, **changes: object) -> Runtime:
    """Give the runtime a model at an address."""
    usual: dict[str, object] = {
        "provider": "openai-compatible",
        "model": "small-model",
        "base_url": base_url,
        "api_key": SecretStr(PLANTED_KEY),
        "price_in": 250_000,
        "price_out": 2_000_000,
        "lease_ms": 60_000,
    }
    return replace(runtime, settings=runtime.settings.model_copy(update=usual | changes))


def drive_on(runtime: Runtime, clock: ManualClock, job: JobRecord) -> JobRecord:
    """Drive a job, with waits that pass on the test's clock."""

    def sleep(seconds: float) -> None:
        clock.now_ms += max(1, round(seconds * 1_000))

    return drive(runtime, job, observe=lambda _outcome: None, on_wait=lambda _reason: None, sleep=sleep)
