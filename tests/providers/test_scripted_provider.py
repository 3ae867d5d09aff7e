"""The scripted provider: which step is played, how a script is refused, and the names of the registry."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from rulegen_dagster.domain.errors import (
    ProviderAmbiguousError,
    ProviderConfigError,
    ProviderPermanentError,
    ProviderRateLimitedError,
    ProviderRetryableError,
)
from rulegen_dagster.domain.provider_settings import ProviderSettings
from rulegen_dagster.domain.rule import RulesReply
from rulegen_dagster.domain.states import Stage
from rulegen_dagster.providers.port import NOT_A_MODEL, ProviderReply, ProviderRequest
from rulegen_dagster.providers.registry import PROVIDER_NAMES, is_language_model, label_of, open_provider
from rulegen_dagster.providers.scripted import Script, ScriptedProvider, load_script
from rulegen_dagster.rules.packs import load_vocabulary
from rulegen_dagster.specs.document import read_document

CLAUSE = read_document(b"Meals are limited to $50 per day.", "p.md", max_bytes=1_000).clauses[0]


def _request(item_key: str = "rule-01", *, attempt: int = 1, stage: Stage = Stage.GENERATE_RULES) -> ProviderRequest:
    return ProviderRequest(
        stage=stage,
        job="default/k",
        item_key=item_key,
        attempt=attempt,
        operation_key="o",
        timeout_ms=1_000,
        clause=CLAUSE,
        context=(),
        vocabulary=load_vocabulary("expense"),
    )


def _script(items: dict[str, Any], **more: Any) -> Script:
    return Script.model_validate({"items": items, **more})


def _call(script: Script, request: ProviderRequest) -> ProviderReply:
    return asyncio.run(ScriptedProvider(script).call(request))


def _write(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf-8")
    return path


def test_without_a_script_every_call_succeeds_with_what_the_extractor_makes() -> None:
    reply = _call(load_script(None), _request())

    assert len(RulesReply.model_validate_json(reply.draft).rules) == 1
    assert reply.model_id == "rulegen-scripted/1"


@pytest.mark.parametrize(("attempt", "played"), [(1, "timeout"), (2, "malformed"), (3, "ok"), (4, "ok"), (99, "ok")])
def test_each_attempt_plays_the_next_step_and_the_last_one_repeats(attempt: int, played: str) -> None:
    script = _script({"rule-01": ["timeout", "malformed", "ok"]})

    assert script.step(_request(attempt=attempt)).do == played


@pytest.mark.parametrize(
    ("item_key", "stage", "played"),
    [
        ("rule-03", Stage.GENERATE_RULES, "error"),
        ("rule-03", Stage.GENERATE_TESTS, "error"),
        ("rule-09", Stage.GENERATE_TESTS, "malformed"),
        ("rule-09", Stage.GENERATE_RULES, "timeout"),
        ("rule-12", Stage.GENERATE_RULES, "crash"),
        ("rule-31", Stage.GENERATE_RULES, "timeout"),
    ],
)
def test_the_first_entry_that_matches_is_played(item_key: str, stage: Stage, played: str) -> None:
    script = _script(
        {"rule-03": ["error"], "generate_tests/rule-09": ["malformed"], "rule-1*": ["crash"], "rule-12": ["ok"]},
        default=["timeout"],
    )

    assert script.step(_request(item_key, stage=stage)).do == played


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        ("timeout", ProviderAmbiguousError),
        ("error", ProviderPermanentError),
        ({"do": "error", "kind": "retryable"}, ProviderRetryableError),
        ({"do": "error", "kind": "ambiguous"}, ProviderAmbiguousError),
        ({"do": "error", "kind": "rate_limited"}, ProviderRateLimitedError),
    ],
    ids=str,
)
def test_a_fault_is_raised_as_its_own_error(step: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        _call(_script({"*": [step]}), _request())


def test_a_rate_limit_carries_the_wait_that_was_asked_for() -> None:
    script = _script({"*": [{"do": "error", "kind": "rate_limited", "retry_after_ms": 1_500}]})

    with pytest.raises(ProviderRateLimitedError) as caught:
        _call(script, _request())

    assert caught.value.retry_after_ms == 1_500


@pytest.mark.parametrize(("draft", "sent"), [({"a": "ü"}, '{"a": "ü"}'), ("no json", "no json")])
def test_a_draft_of_the_script_is_sent_as_it_stands(draft: Any, sent: str) -> None:
    reply = _call(_script({"*": [{"do": "ok", "draft": draft}]}), _request())

    assert reply.draft == sent


def test_the_journal_has_one_line_for_each_call_and_lies_beside_the_script(tmp_path: Path) -> None:
    path = _write(tmp_path / "script.yaml", {"items": {"rule-02": ["timeout"]}, "journal": "calls.log"})
    script = load_script(path)

    _call(script, _request())
    with pytest.raises(ProviderAmbiguousError):
        _call(script, _request("rule-02", attempt=3))

    assert (tmp_path / "calls.log").read_text(encoding="utf-8").splitlines() == [
        f"default/k generate_rules rule-01 1 ok {os.getpid()}",
        f"default/k generate_rules rule-02 3 timeout {os.getpid()}",
    ]


@pytest.mark.parametrize(
    ("content", "where"),
    [
        ("items: [", "not YAML"),
        ({"items": {"rule-01": [{"do": "explode"}]}}, "items.rule-01.0.do"),
        ({"items": {"rule-01": []}}, "items.rule-01"),
        ({"items": {"rule-01": [{"do": "ok", "delay_ms": -1}]}}, "delay_ms"),
        ({"nonesuch": 1}, "nonesuch"),
        (["ok"], "wrong"),
    ],
    ids=["no YAML", "unknown step", "no step", "negative delay", "unknown field", "a list"],
)
def test_a_script_that_cannot_be_played_says_where_it_is_wrong(tmp_path: Path, content: Any, where: str) -> None:
    path = _write(tmp_path / "script.yaml", content)

    with pytest.raises(ProviderConfigError, match=where):
        load_script(path)


def test_a_script_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")

    for path in (tmp_path / "gone.yaml", tmp_path, binary):
        with pytest.raises(ProviderConfigError):
            load_script(path)


def test_an_empty_script_is_the_one_in_which_every_call_succeeds(tmp_path: Path) -> None:
    assert load_script(_write(tmp_path / "empty.yaml", "")) == Script()


def test_there_is_no_fallback_for_an_unknown_provider() -> None:
    with pytest.raises(ProviderConfigError, match="rulegen-pattern, rulegen-scripted"):
        open_provider("gpt-nonesuch", ProviderSettings())


@pytest.mark.parametrize("name", PROVIDER_NAMES)
def test_the_label_of_a_name_is_the_one_that_the_provider_has_itself(name: str) -> None:
    settings = ProviderSettings(model="small-model", base_url="http://127.0.0.1:9/v1")
    identity = open_provider(name, settings).identity

    assert (identity.name, identity.label, identity.is_language_model) == (
        name,
        label_of(name),
        is_language_model(name),
    )


def test_an_unknown_name_has_not_earned_the_label() -> None:
    assert label_of("gpt-nonesuch") is None
    assert label_of("rulegen-pattern") == NOT_A_MODEL
