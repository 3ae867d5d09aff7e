"""One call to a model over a real socket: what is sent, what is kept of the answer, and how it ends when cut off."""

import asyncio
import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, replace

import pydantic_ai.settings
import pytest

from rulegen_dagster.domain.clause import ContextEntry, ContextRelation
from rulegen_dagster.domain.errors import ProviderAmbiguousError, ProviderConfigError, ProviderPermanentError
from rulegen_dagster.domain.prompt import Prompt
from rulegen_dagster.domain.provider_settings import OutputMode, ProviderSettings, as_frozen
from rulegen_dagster.domain.quota import Remaining
from rulegen_dagster.domain.refusal import Refusal
from rulegen_dagster.domain.states import Stage
from rulegen_dagster.providers.client_check import check_client
from rulegen_dagster.providers.model import ModelProvider, open_model
from rulegen_dagster.providers.port import ProviderReply
from rulegen_dagster.providers.probe import probe
from tests.providers.model_requests import (
    CLAUSE,
    KEY,
    OPERATION_KEY,
    anthropic_at,
    ask,
    clause_of,
    openai_at,
    request_of,
    settings_of,
)
from tests.providers.model_server import ANTHROPIC_MODEL, OPENAI_MODEL, Completion, Cut, Heard, ModelServer, Play

LIMITS = {
    "x-ratelimit-remaining-requests": "7",
    "x-ratelimit-remaining-tokens": "900",
    "anthropic-ratelimit-requests-remaining": "7",
    "anthropic-ratelimit-tokens-remaining": "900",
}


def _echo(heard: Heard) -> Play:
    """Answer with the operation key, and limits that tell one call from another."""
    number = heard.operation_key.rpartition("-")[2]
    return Completion(
        text=json.dumps({"asked": heard.operation_key}), headers=LIMITS | {"x-request-id": f"id-{number}"}
    )


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with ModelServer(_echo) as running:
        yield running


def _both(server: ModelServer) -> list[ModelProvider]:
    return [openai_at(server.url), anthropic_at(server.anthropic_url)]


@pytest.mark.parametrize("number", [0, 1], ids=["openai-compatible", "anthropic"])
def test_a_call_carries_its_keys_and_brings_back_what_the_answer_says_of_itself(
    server: ModelServer, number: int
) -> None:
    provider = _both(server)[number]

    reply = ask(provider, request_of(attempt=2))

    heard = server.heard[-1]
    assert heard.headers["idempotency-key"] == OPERATION_KEY
    assert heard.headers["x-client-request-id"] == f"{OPERATION_KEY}.2"
    assert heard.headers["authorization"] == f"Bearer {KEY}"
    assert (heard.body["max_tokens"], heard.body["temperature"], heard.body.get("tools")) == (4096, 0, None)
    assert (reply.tokens_in, reply.tokens_out) == (111, 22)
    assert reply.model_id == (OPENAI_MODEL, ANTHROPIC_MODEL)[number]
    assert reply.remaining == Remaining(requests=7, tokens=900)
    assert reply.report["finish_reason"] == "stop"
    assert reply.report["http_requests"] == 1
    assert (reply.report["sent_max_tokens"], reply.report["sent_temperature"]) == (4096, 0)
    assert reply.report["cache_read_tokens"] == 10
    assert reply.cost_micros is None
    assert KEY not in repr(reply) + repr(asdict(provider.identity))
    assert CLAUSE not in repr(reply.report)


def test_concurrent_calls_keep_their_own_headers(server: ModelServer) -> None:
    provider = openai_at(server.url)
    requests = [request_of(operation_key=f"default/policy/generate_rules/rule-01/v-{number}") for number in range(8)]

    async def all_at_once() -> list[ProviderReply]:
        return await asyncio.gather(*(provider.call(request) for request in requests))

    replies = asyncio.run(all_at_once())

    assert [reply.request_id for reply in replies] == [f"id-{number}" for number in range(8)]
    assert [json.loads(reply.draft)["asked"] for reply in replies] == [request.operation_key for request in requests]


def test_each_attempt_at_a_request_sends_the_same_body_under_its_key(server: ModelServer) -> None:
    """A gateway may refuse a key that comes with another body; another process goes on after a crash."""
    first, second = openai_at(server.url), openai_at(server.url)

    ask(first, request_of(attempt=1))
    ask(second, request_of(attempt=2))
    ask(second, request_of(clause=replace(request_of().clause, text="Taxis are reimbursed up to $20.")))

    one, again, other = (json.dumps(heard.body, sort_keys=True) for heard in server.heard[-3:])
    mark, other_mark = (re.findall(r"<<([0-9a-f]{16}) clause>>", body)[0] for body in (one, other))
    assert one == again
    assert mark != other_mark


def test_a_repair_has_a_key_of_its_own_so_that_no_gateway_answers_it_with_the_refused_draft(
    server: ModelServer,
) -> None:
    refusal = Refusal(code="rule_does_not_match_schema", path="/when")

    ask(openai_at(server.url), request_of(attempt=2, repair=(refusal,)))
    ask(openai_at(server.url), request_of(attempt=3, repair=(refusal,)))

    assert [heard.headers["idempotency-key"] for heard in server.heard[-2:]] == [f"{OPERATION_KEY}/repair"] * 2


@pytest.mark.parametrize(
    ("mode", "form"),
    [(OutputMode.NATIVE, "json_schema"), (OutputMode.JSON_OBJECT, "json_object"), (OutputMode.PROMPTED, None)],
)
def test_each_rung_of_the_ladder_asks_in_its_own_way(server: ModelServer, mode: OutputMode, form: str | None) -> None:
    ask(openai_at(server.url, output_mode=mode))

    heard = server.heard[-1]
    told = heard.body.get("response_format", {})
    assert told.get("type") == form
    assert ('"additionalProperties":false' in heard.system) is (mode is not OutputMode.NATIVE)
    if mode is OutputMode.NATIVE:
        assert told["json_schema"]["strict"] is True
        assert told["json_schema"]["schema"]["required"] == ["rules", "no_rule", "proposed_facts"]


def test_the_ladder_begins_at_the_rung_that_an_endpoint_is_known_to_have(server: ModelServer) -> None:
    chosen = {
        provider.identity.settings["output_mode"]
        for provider in (openai_at(server.url), openai_at("http://gpu-1:8000/v1"))
    }
    official = open_model("openai-compatible", settings_of("https://api.openai.com/v1"), None)

    assert chosen == {"json_object"}
    assert official.identity.settings["output_mode"] == "native"
    assert anthropic_at(server.anthropic_url).identity.settings["output_mode"] == "native"
    old = anthropic_at(server.anthropic_url, model="claude-of-old")
    assert old.identity.settings["output_mode"] == "prompted"


def test_a_probe_asks_once_for_each_rung_that_the_protocol_has(server: ModelServer) -> None:
    before = len(server.heard)

    found = probe(
        "anthropic", settings_of(server.anthropic_url, model="claude-sonnet-4-6"), timeout_s=10, clock=lambda: 0.0
    )

    assert [rung.mode for rung in found.rungs] == [OutputMode.NATIVE, OutputMode.PROMPTED]
    assert (found.mode, found.works, len(server.heard) - before) == (OutputMode.NATIVE, True, 2)


def test_the_tests_of_a_clause_are_asked_for_without_any_rule(server: ModelServer) -> None:
    ask(openai_at(server.url), request_of(stage=Stage.GENERATE_TESTS))

    heard = server.heard[-1]
    assert "write test cases" in heard.system
    assert "applies_when" not in json.dumps(heard.body)


def test_a_repair_is_told_codes_and_places_and_has_twice_the_room_where_that_is_reserved(server: ModelServer) -> None:
    provider = openai_at(server.url, max_tokens=500)
    wrong = Refusal(code="quote_not_verbatim", path="$.rules[0].quote")

    ask(provider, request_of(repair=(wrong,)))
    ask(provider, request_of(repair=(Refusal(code="answer_truncated", path="$"),), longer_answer=True))

    first, second = server.heard[-2:]
    assert "- `quote_not_verbatim` at `$.rules[0].quote`" in first.user
    assert first.body["max_tokens"] == 500
    assert second.body["max_tokens"] == 1000


def test_policy_text_stands_between_marks_that_are_each_requests_own(server: ModelServer) -> None:
    other = clause_of("A meal is food that is eaten on a trip, and it must be shared.")
    context = (ContextEntry(relation=ContextRelation.DEFINES, clause=other),)
    provider = openai_at(server.url)

    ask(provider, request_of(context=context))
    ask(provider, request_of(context=()))

    first, second = (heard.user.splitlines() for heard in server.heard[-2:])
    mark, again = (lines[0].removesuffix(".").rpartition(" ")[2] for lines in (first, second))
    assert mark != again
    assert first[first.index(f"<<{mark} clause>>") : first.index(f"<<{mark} clause>>") + 3] == [
        f"<<{mark} clause>>",
        CLAUSE,
        f"<<{mark} end>>",
    ]
    assert f"<<{mark} context clause {other.ordinal}, defines>>" in first


def test_a_clause_that_holds_the_mark_of_its_request_is_not_sent(server: ModelServer) -> None:
    client = openai_at(server.url)._client
    prompts = openai_at(server.url).identity.prompts
    provider = ModelProvider(client, settings_of(server.url), prompts, mark=lambda _request: "limited")
    before = len(server.heard)

    with pytest.raises(ProviderPermanentError, match="mark") as caught:
        ask(provider)

    assert CLAUSE not in caught.value.message
    assert len(server.heard) == before


def test_a_job_is_asked_with_the_prompts_that_it_froze(server: ModelServer) -> None:
    text = "<!-- system -->\nFrozen words.\n<!-- user -->\n{{clause}}"
    frozen = {"rules": Prompt(task="rules", version="0", text=text)}
    provider = open_model("openai-compatible", settings_of(server.url), frozen)

    ask(provider)

    assert server.heard[-1].system.strip() == "Frozen words."
    assert server.heard[-1].user == CLAUSE
    assert provider.identity.prompts == frozen
    with pytest.raises(ProviderConfigError, match="no prompt for tests"):
        ask(provider, request_of(stage=Stage.GENERATE_TESTS))


@pytest.mark.parametrize("cut", [Cut.DRIBBLE, Cut.SILENCE])
def test_a_cancelled_call_closes_its_socket(cut: Cut) -> None:
    with ModelServer(lambda _heard: cut) as running:
        provider = openai_at(running.url)

        async def cancelled() -> None:
            call = asyncio.create_task(provider.call(request_of(timeout_ms=60_000)))
            await asyncio.to_thread(lambda: _heard_by(running).began.wait(10))
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call

        asyncio.run(cancelled())

        assert running.heard[0].closed.wait(1), "within a second"


def _heard_by(server: ModelServer) -> Heard:
    while not server.heard:
        pass
    return server.heard[0]


def test_a_dribbling_answer_ends_with_the_budget_of_its_call_and_closes_its_socket() -> None:
    with ModelServer(lambda _heard: Cut.DRIBBLE) as running:
        with pytest.raises(ProviderAmbiguousError) as caught:
            ask(openai_at(running.url), request_of(timeout_ms=200))

        assert caught.value.code == "provider_timeout"
        assert running.heard[0].closed.wait(1)


def test_a_model_that_takes_no_temperature_is_sent_none(server: ModelServer) -> None:
    provider = openai_at(server.url, model="gpt-5-mini")

    ask(provider)

    assert "temperature" not in server.heard[-1].body
    assert provider.identity.settings["temperature"] == "not sent"


def test_a_price_of_the_settings_is_reckoned_before_and_after_a_call(server: ModelServer) -> None:
    provider = openai_at(server.url, price_in=250_000, price_out=2_000_000)

    assert ask(provider).cost_micros == (111 * 250_000 + 22 * 2_000_000 + 500_000) // 1_000_000
    cost = provider.identity.call_cost
    assert cost is not None
    assert (cost.price_in, cost.price_out, cost.max_tokens) == (250_000, 2_000_000, 4096)


def test_what_a_prompt_takes_is_never_more_than_what_is_reckoned_for_it(server: ModelServer) -> None:
    provider = openai_at(server.url)
    cost = provider.identity.call_cost
    assert cost is not None
    many = tuple(Refusal(code="quote_not_sentence_aligned", path="$.rules[0].quote") for _ in range(20))
    for stage, repair in itertools.product((Stage.GENERATE_RULES, Stage.GENERATE_TESTS), ((), many)):
        ask(provider, request_of(stage=stage, repair=repair))

        sent = len((server.heard[-1].system + server.heard[-1].user).encode())
        assert sent / 3 <= cost.overhead_tokens + len(CLAUSE) / 3


def test_what_a_job_froze_opens_the_same_model_again(server: ModelServer) -> None:
    before = openai_at(server.url, model="gpt-5-mini", max_tokens=700, output_mode=OutputMode.PROMPTED)
    now = ProviderSettings(model="another", base_url=server.url, max_tokens=9, temperature=1.0)

    again = open_model(
        "openai-compatible",
        as_frozen(now, model_id=before.identity.model_id, settings=before.identity.settings),
        before.identity.prompts,
    )

    assert (again.identity.model_id, again.identity.settings) == (before.identity.model_id, before.identity.settings)


def test_a_client_without_what_the_classification_rests_on_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_client()
    monkeypatch.delattr("pydantic_ai.exceptions.ModelConnectionError")
    monkeypatch.delitem(pydantic_ai.settings.ModelSettings.__annotations__, "max_retries")

    with pytest.raises(ProviderConfigError, match=r"no ModelConnectionError, max_retries; install pydantic-ai-slim\["):
        check_client()
