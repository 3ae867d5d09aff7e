"""`rulegen provider`: which there are, and whether the configured one answers."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Command, document
from tests.providers.model_server import Completion, Error, Heard, ModelServer, Play

KEY = "sk-planted-9a44"


def _like_a_small_server(heard: Heard) -> Play:
    """Reject a native schema with a 500, as some servers do, and answer the rest."""
    form = heard.body.get("response_format", {}).get("type")
    if form == "json_schema":
        return Error(status=500, kind="internal", message="Input should be 'text' or 'json_object'")
    return Completion(text='{"ready": true}' if form == "json_object" else "I am ready!", tokens_in=40, tokens_out=8)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    with ModelServer(_like_a_small_server) as running:
        monkeypatch.setenv("RULEGEN_PROVIDER", "openai-compatible")
        monkeypatch.setenv("RULEGEN_MODEL", "small-model")
        monkeypatch.setenv("RULEGEN_BASE_URL", running.url)
        monkeypatch.setenv("RULEGEN_API_KEY", KEY)
        yield running


def test_the_check_tries_each_rung_once_and_adds_up_what_it_cost(
    rulegen: Command, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RULEGEN_PRICE_IN", "250000")
    monkeypatch.setenv("RULEGEN_PRICE_OUT", "2000000")

    result = rulegen("provider", "check", "--json")

    report = document(result)
    assert result.exit_code == 0
    assert [(rung["mode"], rung["accepted"], rung["obeyed"]) for rung in report["rungs"]] == [
        ("native", False, False),
        ("json_object", True, True),
        ("prompted", True, False),
    ]
    assert report["rungs"][0]["code"] == "provider_server_error"
    assert (report["mode"], report["requests"], len(server.heard)) == ("json_object", 3, 3)
    assert report["model_reported"] == "fake-model-2026-11-01"
    assert report["cost_micros"] == 2 * (40 * 250_000 + 8 * 2_000_000) // 1_000_000
    assert KEY not in result.output


def test_the_check_says_in_words_what_it_sent_and_what_jobs_use(rulegen: Command, server: ModelServer) -> None:
    result = rulegen("provider", "check")

    assert result.exit_code == 0
    assert "3 requests were sent, which cost unknown" in result.stdout
    assert "* json_object" in result.stdout
    assert "set RULEGEN_PRICE_IN and RULEGEN_PRICE_OUT" in result.stdout


def test_a_rung_that_jobs_use_and_that_is_rejected_fails_the_check(
    rulegen: Command, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RULEGEN_OUTPUT_MODE", "native")

    result = rulegen("provider", "check")

    assert result.exit_code == 1
    assert "jobs use the output mode native (*), and would get no answer" in result.stdout


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [(401, "invalid_api_key", "provider_account_refused"), (404, "model_not_found", "provider_model_not_found")],
)
def test_what_every_rung_would_meet_is_asked_for_once(
    rulegen: Command, monkeypatch: pytest.MonkeyPatch, status: int, kind: str, code: str
) -> None:
    with ModelServer(lambda _heard: Error(status=status, kind=kind)) as running:
        monkeypatch.setenv("RULEGEN_PROVIDER", "openai-compatible")
        monkeypatch.setenv("RULEGEN_MODEL", "small-model")
        monkeypatch.setenv("RULEGEN_BASE_URL", running.url)
        monkeypatch.setenv("RULEGEN_API_KEY", KEY)

        result = rulegen("provider", "check", "--json")

        assert result.exit_code == 1
        assert [rung["code"] for rung in document(result)["rungs"]] == [code]
        assert len(running.heard) == 1
        assert KEY not in result.output


def test_a_refused_connection_is_told_as_one(rulegen: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("RULEGEN_PROVIDER", "openai-compatible")
        monkeypatch.setenv("RULEGEN_MODEL", "small-model")
        monkeypatch.setenv("RULEGEN_BASE_URL", f"http://127.0.0.1:{taken.getsockname()[1]}/v1")

        result = rulegen("provider", "check")

    assert result.exit_code == 1
    assert "could not be reached; nothing was sent [provider_unreachable]" in result.stdout


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({"RULEGEN_PROVIDER": "anthropic"}, "set RULEGEN_MODEL"),
        ({"RULEGEN_PROVIDER": "anthropic", "RULEGEN_MODEL": "m"}, "set RULEGEN_API_KEY"),
        ({"RULEGEN_PROVIDER": "gpt"}, "there is no provider 'gpt'"),
        ({"RULEGEN_PROVIDER": "openai-compatible", "RULEGEN_MODEL": "m"}, "api.openai.com needs a key"),
    ],
)
def test_what_is_missing_is_said_before_anything_is_sent(
    rulegen: Command, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], told: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    result = rulegen("provider", "check")

    assert result.exit_code == 1
    assert told in result.stderr


def test_a_provider_without_a_model_is_sent_nothing(rulegen: Command) -> None:
    result = rulegen("provider", "check")

    assert result.exit_code == 0
    assert "not a language model; nothing is sent anywhere" in result.stdout


def test_the_list_marks_the_configured_provider(rulegen: Command, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RULEGEN_PROVIDER", "anthropic")

    listed = document(rulegen("provider", "list", "--json"))["providers"]

    assert {each["name"]: each["is_configured"] for each in listed} == {
        "rulegen-pattern": False,
        "rulegen-scripted": False,
        "openai-compatible": False,
        "anthropic": True,
    }
    assert "* anthropic  language model" in rulegen("provider", "list").stdout
