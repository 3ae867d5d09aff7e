"""The adapter against servers that this project did not write: llmock from PyPI, aimock from npm."""

import json
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from llmock.pytest_plugin import LLMock

from rulegen_dagster.domain.errors import (
    ProviderAccountError,
    ProviderAmbiguousError,
    ProviderError,
    ProviderPermanentError,
    ProviderRateLimitedError,
    ProviderRetryableError,
)
from rulegen_dagster.providers.model import ModelProvider
from rulegen_dagster.providers.port import AnswerProblem
from tests.conftest import PROJECT
from tests.providers.model_requests import CLAUSE, anthropic_at, ask, openai_at, request_of

AIMOCK = PROJECT / ".venv" / "aimock" / "node_modules" / "@copilotkit" / "aimock" / "dist" / "cli.js"
STATUSES: dict[int, tuple[type[ProviderError], str]] = {
    400: (ProviderPermanentError, "provider_rejected"),
    401: (ProviderAccountError, "provider_account_refused"),
    402: (ProviderAccountError, "provider_quota_exhausted"),
    403: (ProviderAccountError, "provider_account_refused"),
    404: (ProviderPermanentError, "provider_model_not_found"),
    408: (ProviderAmbiguousError, "provider_timeout"),
    409: (ProviderRetryableError, "provider_unavailable"),
    413: (ProviderPermanentError, "provider_input_too_large"),
    418: (ProviderPermanentError, "provider_rejected"),
    422: (ProviderPermanentError, "provider_rejected"),
    425: (ProviderRetryableError, "provider_unavailable"),
    500: (ProviderAmbiguousError, "provider_server_error"),
    502: (ProviderAmbiguousError, "provider_server_error"),
    503: (ProviderRetryableError, "provider_unavailable"),
    504: (ProviderAmbiguousError, "provider_server_error"),
    529: (ProviderRetryableError, "provider_unavailable"),
}


def _at(llmock: LLMock, dialect: str) -> ModelProvider:
    return anthropic_at(llmock.base_url(dialect)) if dialect == "anthropic" else openai_at(llmock.base_url(dialect))


def _raised(provider: ModelProvider, **changes: Any) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        ask(provider, request_of(**changes))
    return caught.value


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
@pytest.mark.parametrize("status", STATUSES)
def test_llmock_each_status_is_one_request_and_its_row(llmock: LLMock, status: int, dialect: str) -> None:
    llmock.fail(status)

    error = _raised(_at(llmock, dialect))

    assert (type(error), error.code) == STATUSES[status]
    assert [record.status for record in llmock.requests] == [status]


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
def test_llmock_a_rate_limit_says_how_long_to_wait(llmock: LLMock, dialect: str) -> None:
    llmock.rate_limit(retry_after=3)

    error = _raised(_at(llmock, dialect))

    assert (type(error), error.retry_after_ms) == (ProviderRateLimitedError, 3_000)


def test_llmock_an_exhausted_quota_and_a_full_context_window_are_told_apart(llmock: LLMock) -> None:
    provider = _at(llmock, "openai")
    llmock.fail(429, code="insufficient_quota")
    quota = _raised(provider)
    llmock.context_overflow()
    window = _raised(provider)

    assert (type(quota), quota.code) == (ProviderAccountError, "provider_quota_exhausted")
    assert (type(window), window.code) == (ProviderPermanentError, "provider_input_too_large")


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
def test_llmock_a_late_answer_is_ambiguous(llmock: LLMock, dialect: str) -> None:
    llmock.delay(2)

    assert type(_raised(_at(llmock, dialect), timeout_ms=200)) is ProviderAmbiguousError


def test_llmock_what_is_left_of_its_limits_comes_with_each_answer(llmock: LLMock) -> None:
    llmock.limits(rpm=2, tpm=90_000)
    llmock.reply('{"rules": []}', times=2)
    provider = _at(llmock, "openai")

    left = [ask(provider).remaining for _ in range(2)]
    error = _raised(provider)

    assert [each.requests for each in left if each is not None] == [1, 0]
    assert all(each is not None and 0 < (each.tokens or 0) < 90_000 for each in left)
    assert (type(error), error.remaining is not None) == (ProviderRateLimitedError, True)
    assert error.retry_after_ms


def test_llmock_finds_nothing_to_blame_in_a_client_that_leaves_retries_to_the_ledger(llmock: LLMock) -> None:
    llmock.fail(400).fail(404)
    provider = _at(llmock, "openai")
    for number in range(2):
        _raised(provider, operation_key=f"default/policy/generate_rules/rule-0{number}/v1")

    llmock.assert_resilient(strict=True)


@pytest.fixture(scope="module")
def aimock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a running aimock."""
    node = shutil.which("node")
    if node is None or not AIMOCK.is_file():
        pytest.skip(f"aimock is not here ({AIMOCK.relative_to(PROJECT)}); .ci/setup installs it where there is npm")
    fixtures = tmp_path_factory.mktemp("aimock") / "fixtures.json"
    answers = {"stop": '{"rules": []}', "length": '{"ru', "content_filter": ""}
    told = [
        {
            "match": {"userMessage": CLAUSE, "model": f"ends-by-{finish}"},
            "response": {
                "content": text,
                "finishReason": finish,
                "usage": {"prompt_tokens": 120, "completion_tokens": 9},
            },
        }
        for finish, text in answers.items()
    ]
    fixtures.write_text(json.dumps({"fixtures": told}), encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [node, str(AIMOCK), "--port", str(port), "--fixtures", str(fixtures), "--log-level", "silent"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_for(f"{url}/__aimock/chaos", process)
        yield url
    finally:
        process.terminate()
        process.wait(10)


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    while True:
        assert process.poll() is None, "the server has ended"
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except OSError:
            continue
        return


def _chaos(url: str, **rates: float) -> None:
    data = json.dumps(rates).encode()
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{url}/__aimock/chaos", data=data, headers=headers, method="POST")
    urllib.request.urlopen(request, timeout=5).close()


@pytest.mark.parametrize(
    ("finish", "problem"),
    [("stop", None), ("length", AnswerProblem.TRUNCATED), ("content_filter", AnswerProblem.REFUSED)],
)
def test_aimock_how_an_answer_ended_decides_whether_its_draft_is_read(
    aimock: str, finish: str, problem: AnswerProblem | None
) -> None:
    _chaos(aimock)

    reply = ask(openai_at(f"{aimock}/v1", model=f"ends-by-{finish}"))

    assert (reply.problem, reply.tokens_in, reply.tokens_out) == (problem, 120, 9)


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
@pytest.mark.parametrize(
    ("rates", "raised", "code"),
    [
        ({"disconnectRate": 1}, ProviderAmbiguousError, "provider_connection_lost"),
        ({"dropRate": 1}, ProviderAmbiguousError, "provider_server_error"),
        ({"rateLimitRate": 1}, ProviderRateLimitedError, "provider_rate_limited"),
        ({"malformedRate": 1}, None, AnswerProblem.UNREADABLE),
    ],
    ids=["disconnect", "drop", "rate limit", "malformed"],
)
def test_aimock_its_chaos_comes_to_the_rows_of_the_table(
    aimock: str, rates: dict[str, float], raised: type[ProviderError] | None, code: str, dialect: str
) -> None:
    _chaos(aimock, **rates)
    provider = anthropic_at(aimock) if dialect == "anthropic" else openai_at(f"{aimock}/v1")

    if raised is None:
        assert ask(provider).problem == code
        return
    error = _raised(provider)
    assert (type(error), error.code) == (raised, code)
