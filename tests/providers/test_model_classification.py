"""The classification table: each row over a real socket, and what the rows say of one another."""

import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import pytest

from rulegen_dagster.domain.errors import (
    ProviderAccountError,
    ProviderAmbiguousError,
    ProviderError,
    ProviderPermanentError,
    ProviderRateLimitedError,
    ProviderRetryableError,
)
from rulegen_dagster.domain.failure_kinds import REPAIRABLE_KINDS, kind_of
from rulegen_dagster.domain.provider_settings import OutputMode
from rulegen_dagster.domain.retry import RetryPolicy, decide_retry
from rulegen_dagster.domain.states import AttemptOutcome
from rulegen_dagster.providers.classification import CLASSIFICATION, classify
from rulegen_dagster.providers.model import ModelProvider
from rulegen_dagster.providers.outcomes import Charge, Kind, Next, Row, Seen, Verdict
from rulegen_dagster.providers.port import AnswerProblem
from tests.providers.model_requests import KEY, anthropic_at, ask, openai_at, request_of
from tests.providers.model_server import Completion, Cut, Error, Heard, ModelServer, Play, Raw

SECRET_TEXT = "the body quotes the clause: sushi on Sundays"
NO_RETRY = {"x-should-retry": "false"}
SHAPE = "Input should be 'text' or 'json_object'"


@dataclass(frozen=True, kw_only=True)
class Case:
    """What a server does, in order, and the row that the last answer comes to."""

    row: str
    plays: Sequence[Play]
    raised: type[ProviderError] | None = None
    problem: AnswerProblem | None = None
    anthropic: bool = False
    timeout_ms: int = 10_000
    retry_after_ms: int | None = None


def _error(status: int, kind: str = "error", **headers: str) -> Error:
    told = {name.replace("_", "-"): value for name, value in headers.items()}
    return Error(status=status, kind=kind, message=SECRET_TEXT, headers=told)


def _permanent(row: str, *plays: Play, anthropic: bool = False) -> Case:
    return Case(row=row, plays=plays, raised=ProviderPermanentError, anthropic=anthropic)


def _account(row: str, *plays: Play, anthropic: bool = False) -> Case:
    return Case(row=row, plays=plays, raised=ProviderAccountError, anthropic=anthropic)


def _ambiguous(row: str, *plays: Play, timeout_ms: int = 10_000, anthropic: bool = False) -> Case:
    return Case(row=row, plays=plays, raised=ProviderAmbiguousError, timeout_ms=timeout_ms, anthropic=anthropic)


def _unreadable(*plays: Play, anthropic: bool = False) -> Case:
    return Case(row="unreadable", plays=plays, problem=AnswerProblem.UNREADABLE, anthropic=anthropic)


CASES = {
    "exhausted quota": _account("quota exhausted", _error(429, "insufficient_quota")),
    "payment required": _account("quota exhausted", _error(402)),
    "billing, Anthropic": _account("quota exhausted", _error(400, "billing_error"), anthropic=True),
    "billing behind a 429": _account("billing", _error(429, "billing_error")),
    "wrong key": _account("authentication", _error(401)),
    "forbidden, Anthropic": _account("authentication", _error(403, "permission_error"), anthropic=True),
    "reset": _ambiguous("connection lost", Cut.RESET),
    "closed": _ambiguous("connection lost", Cut.CLOSED),
    "cut midway, Anthropic": _ambiguous("connection lost", Cut.MIDWAY, anthropic=True),
    "dribble": _ambiguous("out of time", Cut.DRIBBLE, timeout_ms=300),
    "three equal complaints": _permanent(
        "server refuses the request's shape", *[Error(status=500, kind="internal", message=SHAPE)] * 3
    ),
    "context window": _permanent("too large", _error(400, "context_length_exceeded")),
    "413": _permanent("too large (413)", _error(413, "request_too_large"), anthropic=True),
    "404": _permanent("not found", _error(404, "model_not_found")),
    "400": _permanent("rejected", _error(400, "invalid_request_error")),
    "422, Anthropic": _permanent("rejected", _error(422, "invalid_request_error"), anthropic=True),
    "429 and never again": _permanent(
        "told not to retry, nothing done", _error(429, "rate_limit_exceeded", x_should_retry="false")
    ),
    "503 and never again": _permanent("told not to retry, nothing done", _error(503, x_should_retry="false")),
    "409 and never again": _permanent("told not to retry, conflict", _error(409, x_should_retry="false")),
    "500 and never again": _permanent("told not to retry, perhaps done", _error(500, x_should_retry="false")),
    "429": Case(
        row="rate limit",
        plays=[_error(429, "rate_limit_exceeded", retry_after="7")],
        raised=ProviderRateLimitedError,
        retry_after_ms=7_000,
    ),
    "429 in ms": Case(
        row="rate limit",
        plays=[_error(429, "rate_limit_error", retry_after_ms="1500")],
        raised=ProviderRateLimitedError,
        retry_after_ms=1_500,
        anthropic=True,
    ),
    "503": Case(
        row="overloaded or unavailable",
        plays=[_error(503, retry_after="2")],
        raised=ProviderRetryableError,
        retry_after_ms=2_000,
    ),
    "529": Case(
        row="overloaded or unavailable",
        plays=[_error(529, "overloaded_error")],
        raised=ProviderRetryableError,
        anthropic=True,
    ),
    "500": _ambiguous("server error", _error(500)),
    "502": _ambiguous("server error", _error(502)),
    "504, Anthropic": _ambiguous("server error", _error(504, "timeout_error"), anthropic=True),
    "500 with an invitation": _ambiguous("server error", _error(500, x_should_retry="true")),
    "408": _ambiguous("request timeout (408)", _error(408)),
    "409": Case(row="conflict or too early", plays=[_error(409)], raised=ProviderRetryableError),
    "425": Case(row="conflict or too early", plays=[_error(425)], raised=ProviderRetryableError),
    "redirect": _permanent("redirect", _error(307, location="/v1/elsewhere")),
    "418": _permanent("other status", _error(418)),
    "400 with an invitation": _permanent("rejected", _error(400, x_should_retry="true")),
    "truncated": Case(
        row="truncated", plays=[Completion(text='{"ru', finish="length")], problem=AnswerProblem.TRUNCATED
    ),
    "truncated, Anthropic": Case(
        row="truncated",
        plays=[Completion(text='{"ru', finish="length")],
        problem=AnswerProblem.TRUNCATED,
        anthropic=True,
    ),
    "refused": Case(row="refused", plays=[Completion(text=None, refusal="I will not.")], problem=AnswerProblem.REFUSED),
    "filtered before it was read": Case(
        row="input refused", plays=[_error(400, "content_filter")], problem=AnswerProblem.REFUSED
    ),
    "filtered": Case(
        row="refused", plays=[Completion(text="", finish="content_filter")], problem=AnswerProblem.REFUSED
    ),
    "refused, Anthropic": Case(
        row="refused",
        plays=[Completion(text="I will not.", finish="content_filter")],
        problem=AnswerProblem.REFUSED,
        anthropic=True,
    ),
    "a page": _unreadable(Raw(body=b"<html>log in here</html>", content_type="text/html")),
    "a page, Anthropic": _unreadable(Raw(body=b"<html>log in</html>", content_type="text/html"), anthropic=True),
    "half of JSON": _unreadable(Raw(body=b'{"id":"x","choices":[{"mess')),
    "a list": _unreadable(Raw(body=b"[]"), anthropic=True),
    "other fields": _unreadable(Raw(body=b'{"answer": 42}')),
    "nothing": _unreadable(Raw(body=b"")),
}
WITHOUT_A_REQUEST = {"not sent", "configuration"}


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with ModelServer(_Plays.next) as running:
        yield running


class _Plays:
    """What the server of this module does next."""

    left: list[Play]

    @classmethod
    def next(cls, _heard: Heard) -> Play:
        return cls.left.pop(0)


def _open(case: Case, server: ModelServer) -> ModelProvider:
    return anthropic_at(server.anthropic_url) if case.anthropic else openai_at(server.url)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_a_server_does_comes_to_its_row(case: Case, server: ModelServer) -> None:
    _Plays.left = list(case.plays)
    before = len(server.heard)
    provider = _open(case, server)
    request = request_of(timeout_ms=case.timeout_ms)
    row = next(row for row in CLASSIFICATION if row.name == case.row)
    for _ in case.plays[1:]:
        with pytest.raises(ProviderAmbiguousError):
            ask(provider, request)

    if case.raised is None:
        reply = ask(provider, request)
        assert (reply.problem, reply.draft) == (case.problem, "")
        assert reply.problem == row.code
        told = repr(reply)
    else:
        with pytest.raises(ProviderError) as caught:
            ask(provider, request)
        assert type(caught.value) is case.raised
        assert caught.value.code == row.code
        assert caught.value.retry_after_ms == case.retry_after_ms
        told = f"{caught.value!r} {caught.value.__cause__!r}"

    assert len(server.heard) - before == len(case.plays), "one request for each call, whatever happens"
    assert "sushi" not in told
    assert KEY not in told


def test_nothing_is_sent_where_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(ProviderRetryableError) as caught:
            ask(openai_at(f"http://127.0.0.1:{port}/v1"))

    assert caught.value.code == next(row.code for row in CLASSIFICATION if row.name == "not sent")


def test_what_the_client_refuses_to_send_is_a_matter_of_configuration(server: ModelServer) -> None:
    provider = anthropic_at(server.anthropic_url, model="claude-3-opus-of-old")
    provider._client = provider._client.on_rung(OutputMode.NATIVE)
    before = len(server.heard)

    with pytest.raises(ProviderPermanentError) as caught:
        ask(provider)

    assert caught.value.code == "provider_misconfigured"
    assert len(server.heard) == before


def test_each_row_is_reached() -> None:
    assert {case.row for case in CASES.values()} | WITHOUT_A_REQUEST == {row.name for row in CLASSIFICATION}


def test_another_answer_in_between_begins_the_count_of_complaints_anew(server: ModelServer) -> None:
    complaint = Error(status=500, kind="internal", message=SHAPE)
    provider = openai_at(server.url)
    _Plays.left = [complaint, complaint, Completion(text="{}"), complaint, complaint, replace(complaint, status=502)]

    caught: list[type[Exception] | None] = []
    for _ in range(6):
        try:
            ask(provider)
        except ProviderError as error:
            caught.append(type(error))
        else:
            caught.append(None)

    assert caught == [ProviderAmbiguousError] * 2 + [None] + [ProviderAmbiguousError] * 3


def _rows(of: Callable[[Row], bool]) -> set[str]:
    return {row.name for row in CLASSIFICATION if of(row)}


OUTCOMES = {
    Verdict.RETRYABLE: AttemptOutcome.RETRYABLE,
    Verdict.RATE_LIMITED: AttemptOutcome.RATE_LIMITED,
    Verdict.AMBIGUOUS: AttemptOutcome.AMBIGUOUS,
    Verdict.PERMANENT: AttemptOutcome.PERMANENT,
    Verdict.INVALID_OUTPUT: AttemptOutcome.INVALID_OUTPUT,
}


@pytest.mark.parametrize("row", [row for row in CLASSIFICATION if row.verdict in OUTCOMES], ids=lambda row: row.name)
def test_what_a_row_says_of_attempts_is_what_the_retry_policy_does(row: Row) -> None:
    decision = decide_retry(
        OUTCOMES[row.verdict], attempt=1, attempt_limit=3, policy=RetryPolicy(), jitter=0.5, retry_after_ms=None
    )

    assert decision.consumes_budget is row.consumes_attempt
    if row.verdict is not Verdict.INVALID_OUTPUT:
        assert (decision.delay_ms is not None) is (row.next is Next.BACKOFF)


def test_a_repair_is_asked_for_exactly_where_a_row_says_so() -> None:
    repaired = {problem for problem in AnswerProblem if kind_of(problem) in REPAIRABLE_KINDS}

    assert repaired == {row.code for row in CLASSIFICATION if row.next is Next.ONE_REPAIR}


def test_an_ambiguous_call_is_charged_as_estimated_and_one_that_was_not_made_is_free() -> None:
    assert _rows(lambda row: row.verdict is Verdict.AMBIGUOUS and row.charge is not Charge.ESTIMATE) == set()
    assert _rows(lambda row: row.verdict is Verdict.RETRYABLE and row.charge is not Charge.NOTHING) == set()
    assert _rows(lambda row: row.verdict is Verdict.ACCOUNT and row.charge is not Charge.NOTHING) == set()


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_has_a_row_whatever_else_is_unknown(kind: Kind) -> None:
    assert classify(Seen(kind=kind)) in CLASSIFICATION


@pytest.mark.parametrize("kind", Kind)
def test_an_invitation_to_retry_changes_nothing(kind: Kind) -> None:
    assert classify(Seen(kind=kind, may_retry=True)) == classify(Seen(kind=kind))
