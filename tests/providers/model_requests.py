"""Requests to a model, and models opened against a server of the test."""

import asyncio
from typing import Any

from pydantic import SecretStr

from rulegen_dagster.domain.clause import Clause
from rulegen_dagster.domain.provider_settings import ProviderSettings
from rulegen_dagster.domain.states import Stage
from rulegen_dagster.providers.model import ModelProvider, open_model
from rulegen_dagster.providers.port import ProviderReply, ProviderRequest
from rulegen_dagster.rules.packs import load_vocabulary
from rulegen_dagster.specs.document import read_document

KEY = "sk-planted-5f2e"
OPERATION_KEY = "default/policy/generate_rules/rule-01/v1"
CLAUSE = "Meals are limited to $75 per day."


def clause_of(text: str = CLAUSE) -> Clause:
    return read_document(text.encode(), "policy.md", max_bytes=10**5).normative[0]


def request_of(**changes: Any) -> ProviderRequest:
    usual: dict[str, Any] = {
        "stage": Stage.GENERATE_RULES,
        "job": "default/policy",
        "item_key": "rule-01",
        "attempt": 1,
        "operation_key": OPERATION_KEY,
        "timeout_ms": 10_000,
        "clause": clause_of(),
        "context": (),
        "vocabulary": load_vocabulary("expense"),
    }
    return ProviderRequest(**(usual | changes))


def settings_of(base_url: str, **changes: Any) -> ProviderSettings:
    usual: dict[str, Any] = {"model": "small-model", "base_url": base_url, "api_key": SecretStr(KEY)}
    return ProviderSettings(**(usual | changes))


def openai_at(base_url: str, **changes: Any) -> ModelProvider:
    return open_model("openai-compatible", settings_of(base_url, **changes), None)


def anthropic_at(base_url: str, **changes: Any) -> ModelProvider:
    return open_model("anthropic", settings_of(base_url, **({"model": "claude-sonnet-4-6"} | changes)), None)


def ask(provider: ModelProvider, request: ProviderRequest | None = None) -> ProviderReply:
    return asyncio.run(provider.call(request or request_of()))
