"""The endpoint of a model, its prices and prompts, and the shape of its answers: all that needs no request."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from rulegen_dagster.domain.errors import DraftRejectedError, ProviderConfigError
from rulegen_dagster.domain.prompt import Prompt
from rulegen_dagster.domain.provider_settings import OutputMode, ProviderSettings
from rulegen_dagster.domain.rule import RulesReply, TestsReply
from rulegen_dagster.providers.answer_shape import answer_schema, to_draft
from rulegen_dagster.providers.endpoint import endpoint_of
from rulegen_dagster.providers.prices import Prices, TokenUsage
from rulegen_dagster.providers.prompts import RELEASE_VERSIONS, load_prompt, release_prompts, render
from rulegen_dagster.rules.replies import read_reply
from rulegen_dagster.settings import Settings
from tests.providers.model_requests import request_of

KEY = "sk-planted-c0de"
LOCAL = "http://127.0.0.1:8000/v1"


def _settings(**changes: Any) -> ProviderSettings:
    usual: dict[str, Any] = {"model": "small-model", "base_url": LOCAL, "api_key": SecretStr(KEY)}
    return ProviderSettings(**(usual | changes))


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("ftp://host/v1", "no http or https address"),
        ("host:8000", "no http or https address"),
        ("http://", "no http or https address"),
        ("http://[::1", "no address"),
        ("http://host:99999/v1", "no address"),
        (f"https://user:{KEY}@host/v1", "holds credentials"),
        (f"https://{KEY}@host/v1", "holds credentials"),
        (f"https://host/v1?key={KEY}", "query"),
        ("https://host/v1#part", "query or a fragment"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_without_being_repeated(url: str, told: str) -> None:
    with pytest.raises(ProviderConfigError, match=told) as caught:
        endpoint_of("openai-compatible", _settings(base_url=url))

    assert KEY not in caught.value.message
    assert url not in caught.value.message


def test_a_key_is_in_no_text_that_is_made_of_the_settings() -> None:
    settings = _settings()
    environment = Settings(api_key=SecretStr(KEY))

    for value in (settings, endpoint_of("openai-compatible", settings), environment, environment.provider_settings):
        assert KEY not in f"{value!r} {value}"
    assert KEY not in environment.model_dump_json()


def test_a_temperature_may_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RULEGEN_TEMPERATURE", "none")
    assert Settings().provider_settings.temperature is None
    monkeypatch.setenv("RULEGEN_TEMPERATURE", "0.7")
    assert Settings().provider_settings.temperature == 0.7


def test_a_key_is_read_from_its_file_when_the_model_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(f"{KEY}\n", encoding="utf-8")

    endpoint = endpoint_of("openai-compatible", _settings(api_key=None, api_key_file=path))

    assert endpoint.key.get_secret_value() == KEY


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "is empty"),
        (b"\xff\xfe", "is not text"),
        (f"{KEY}\nX-Other: 1".encode(), "no header takes"),
        (b"k" * 9_000, "too long"),
    ],
)
def test_a_key_file_that_holds_no_key_is_refused_without_its_content(tmp_path: Path, content: bytes, told: str) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)

    with pytest.raises(ProviderConfigError, match=told) as caught:
        endpoint_of("openai-compatible", _settings(api_key=None, api_key_file=path))

    assert KEY not in caught.value.message


def test_a_missing_key_file_and_two_keys_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ProviderConfigError, match="cannot be read"):
        endpoint_of("anthropic", _settings(api_key=None, api_key_file=tmp_path / "none"))
    with pytest.raises(ProviderConfigError, match="both set"):
        endpoint_of("anthropic", _settings(api_key_file=tmp_path / "none"))


def test_a_server_of_ones_own_needs_no_key_and_a_known_host_does() -> None:
    assert endpoint_of("openai-compatible", _settings(api_key=None)).key.get_secret_value()
    for name, url in (
        ("openai-compatible", None),
        ("anthropic", None),
        ("openai-compatible", "https://x.openai.azure.com/openai/v1"),
    ):
        with pytest.raises(ProviderConfigError, match="RULEGEN_API_KEY"):
            endpoint_of(name, _settings(api_key=None, base_url=url))


def test_a_rung_that_a_protocol_lacks_is_refused() -> None:
    with pytest.raises(ProviderConfigError, match="no output mode json_object"):
        endpoint_of("anthropic", _settings(output_mode=OutputMode.JSON_OBJECT))
    with pytest.raises(ProviderConfigError, match="set RULEGEN_MODEL"):
        endpoint_of("anthropic", _settings(model=None))


def test_a_listed_price_counts_for_the_host_that_lists_it_alone() -> None:
    usage = TokenUsage(tokens_in=1_000, tokens_out=200)
    listed = Prices(_settings(), model="gpt-5-mini", base_url="https://api.openai.com/v1")
    elsewhere = Prices(_settings(), model="gpt-5-mini", base_url=LOCAL)
    unheard = Prices(_settings(), model="no-such-model", base_url="https://api.openai.com/v1")

    estimate = listed.estimate()
    assert listed.cost_micros(usage) == 650
    assert estimate is not None
    assert estimate.cost_micros(1_000, 200) == 650
    for unknown in (elsewhere, unheard):
        assert unknown.cost_micros(usage) is None
        assert unknown.estimate() is None


def test_cached_tokens_cost_what_the_list_says() -> None:
    prices = Prices(_settings(), model="gpt-5-mini", base_url="https://api.openai.com/v1")
    whole = prices.cost_micros(TokenUsage(tokens_in=1_000, tokens_out=0))
    cached = prices.cost_micros(TokenUsage(tokens_in=1_000, tokens_out=0, cache_read=1_000))

    assert whole is not None
    assert cached is not None
    assert 0 < cached < whole


def test_half_a_price_is_refused() -> None:
    with pytest.raises(ProviderConfigError, match="belong together"):
        Prices(_settings(price_in=1), model="m", base_url=LOCAL)


def test_every_prompt_of_the_release_is_there_and_names_itself_by_its_digest() -> None:
    prompts = release_prompts()

    assert set(prompts) == {"rules", "tests", "repair"} == set(RELEASE_VERSIONS)
    assert all(re.fullmatch("[0-9a-f]{64}", prompt.digest) for prompt in prompts.values())
    assert len({prompt.digest for prompt in prompts.values()}) == 3


@pytest.mark.parametrize(
    ("task", "version"), [("rules", "999"), ("../policies", "1"), ("rules", "../1"), ("Rules", "1")]
)
def test_a_prompt_that_is_not_there_or_is_a_path_is_refused(task: str, version: str) -> None:
    with pytest.raises(ProviderConfigError):
        load_prompt(task, version)


def test_a_clause_that_looks_like_a_placeholder_is_left_as_it_is() -> None:
    text = "<!-- system -->\n{{schema}}\n<!-- user -->\n{{clause}} {{fence}}"
    request = request_of()
    hostile = request.clause.__class__(**{**vars(request.clause), "text": "Pay {{schema}} and {{vocabulary}}."})

    rendered = render(
        {"rules": Prompt(task="rules", version="1", text=text)}, request_of(clause=hostile), mark="00ff", schema="S"
    )

    assert rendered.user == "Pay {{schema}} and {{vocabulary}}. 00ff"


def test_a_prompt_with_a_placeholder_that_nobody_fills_is_refused() -> None:
    text = "<!-- system -->\n{{secrets}}\n<!-- user -->\n{{clause}}"

    with pytest.raises(ProviderConfigError, match="unknown placeholder secrets"):
        render({"rules": Prompt(task="rules", version="1", text=text)}, request_of(), mark="00ff", schema="S")


@pytest.mark.parametrize("task", ["rules", "tests"])
def test_the_schema_of_answers_is_closed_and_has_no_free_keys(task: str) -> None:
    def objects(value: Any) -> list[dict[str, Any]]:
        if isinstance(value, list):
            return [found for item in value for found in objects(item)]
        if not isinstance(value, dict):
            return []
        own = [value] if value.get("type") == "object" else []
        return own + [found for item in value.values() for found in objects(item)]

    found = objects(answer_schema(task))

    assert len(found) > 2
    for each in found:
        assert each["additionalProperties"] is False
        assert each["required"] == list(each["properties"])
    assert not {"pattern", "patternProperties", "oneOf", "const", "default"} & set(
        re.findall(r'"(\w+)":', json.dumps(answer_schema(task)))
    )


def _example(task: str) -> list[dict[str, Any]]:
    """Return the answers that a prompt shows as examples."""
    text = load_prompt(task, RELEASE_VERSIONS[task]).text
    found, end = [], 0
    for match in re.finditer(r'^\{"', text, re.MULTILINE):
        if match.start() >= end:
            value, end = json.JSONDecoder().raw_decode(text, match.start())
            found.append(value)
    return found


def test_the_examples_of_the_prompts_are_answers_of_the_shape_that_they_ask_for() -> None:
    rules, tests = _example("rules"), _example("tests")

    assert [len(each["rules"]) for each in rules] == [1, 0]
    for each in rules:
        assert set(each) == set(answer_schema("rules")["properties"])
        read_reply(RulesReply, to_draft(json.dumps(each)))
    (only,) = tests
    assert len(read_reply(TestsReply, to_draft(json.dumps(only))).tests) == 3


def _one_case(facts: list[Any]) -> str:
    return json.dumps({"tests": [{"name": "n", "kind": "normal", "facts": facts, "expect": "deny"}]})


def test_lists_of_names_and_values_become_the_drafts_own_objects() -> None:
    answer = {"tests": [{"facts": [{"name": "a.b", "value": 1}, {"name": "a.c", "value": True}]}]}

    assert json.loads(to_draft(json.dumps(answer))) == {"tests": [{"facts": {"a.b": 1, "a.c": True}}]}
    assert read_reply(TestsReply, to_draft(_one_case([{"name": "a.b", "value": 1}]))).tests[0].facts == {"a.b": 1}
    assert json.loads(to_draft('{"tests": [{"facts": {"a.b": 1}}]}')) == {"tests": [{"facts": {"a.b": 1}}]}
    assert to_draft('```json\n{"rules": []}\n```') == '{"rules": []}'


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "Sure! Here is the JSON.",
        "[]",
        '{"rules": [',
        _one_case([{"name": "a.b", "value": 1}, {"name": "a.b", "value": 2}]),
        _one_case([{"key": "a.b", "value": 1}]),
        _one_case(["a.b"]),
        "[" * 100_000,
        '{"a":' * 50_000,
    ],
)
def test_what_is_no_such_answer_is_left_for_the_validation_to_refuse(answer: str) -> None:
    with pytest.raises(DraftRejectedError):
        read_reply(TestsReply, to_draft(answer))
