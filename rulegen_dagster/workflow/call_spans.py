"""Spans of provider calls: what was asked for and what it used, in numbers and names, never in words of either side."""

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from rulegen_dagster.domain.states import Stage
from rulegen_dagster.providers.port import Provider, ProviderIdentity, ProviderReply, ProviderRequest
from rulegen_dagster.telemetry.semconv import Key, Value, Work
from rulegen_dagster.telemetry.tracing import Attributes, Tracing

_TASK_OF_STAGE: Final = {Stage.GENERATE_RULES: "rules", Stage.GENERATE_TESTS: "tests"}
_REPAIR: Final = "repair"
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


async def traced_call(tracing: Tracing, provider: Provider, request: ProviderRequest) -> ProviderReply:
    """Call the provider, with a span around it where something is traced; raises what the call raises."""
    if not tracing.is_on:
        return await provider.call(request)
    identity = provider.identity
    work = Work.CHAT if identity.is_language_model else Work.EXTRACT
    target = identity.model_id if identity.is_language_model else request.stage.value
    with tracing.span(work, _asked(identity, request), target=target) as span:
        reply = await provider.call(request)
        span.set(_answered(identity, reply))
        if reply.problem is not None:
            span.fail(reply.problem.value)
        return reply


def _asked(identity: ProviderIdentity, request: ProviderRequest) -> Attributes:
    asked: dict[Key, Value | None] = {
        Key.JOB: request.job,
        Key.STAGE: request.stage.value,
        Key.ITEM: request.item_key,
        Key.ATTEMPT: request.attempt,
        Key.OPERATION_KEY: request.operation_key,
        Key.PROVIDER: identity.name,
        Key.TIMEOUT_MS: request.timeout_ms,
    }
    if not identity.is_language_model:
        return asked
    settings = identity.settings
    task = _TASK_OF_STAGE.get(request.stage, "")
    prompt = identity.prompts.get(_REPAIR if request.repair and _REPAIR in identity.prompts else task)
    return asked | {
        Key.OPERATION: "chat",
        Key.OUTPUT_TYPE: "json",
        Key.CONVERSATION: request.job,
        Key.REQUEST_MODEL: identity.model_id,
        Key.REQUEST_MAX_TOKENS: _number(settings, "max_tokens"),
        Key.REQUEST_TEMPERATURE: _number(settings, "temperature"),
        Key.REQUEST_SEED: _number(settings, "seed"),
        Key.PROMPT_NAME: prompt.task if prompt else None,
        Key.PROMPT_VERSION: prompt.version if prompt else None,
        **_server(settings.get("base_url")),
    }


def _answered(identity: ProviderIdentity, reply: ProviderReply) -> Attributes:
    answered: dict[Key, Value | None] = {Key.COST_MICROS: reply.cost_micros}
    if not identity.is_language_model:
        return answered
    finish = reply.report.get("finish_reason")
    return answered | {
        Key.RESPONSE_MODEL: reply.model_id,
        Key.RESPONSE_ID: str(reply.report.get("response_id") or reply.request_id or "") or None,
        Key.FINISH_REASONS: (str(finish),) if finish else None,
        Key.INPUT_TOKENS: reply.tokens_in,
        Key.OUTPUT_TOKENS: reply.tokens_out,
        Key.CACHE_READ_TOKENS: _number(reply.report, "cache_read_tokens"),
        Key.CACHE_WRITE_TOKENS: _number(reply.report, "cache_write_tokens"),
        # What was sent in the end; a client may have to leave a setting out.
        Key.REQUEST_MAX_TOKENS: _number(reply.report, "sent_max_tokens"),
    }


def _number(values: Mapping[str, str | int | float | bool | None], name: str) -> int | float | None:
    value = values.get(name)
    if isinstance(value, str):
        # A setting that is not sent stands there in words.
        try:
            return float(value)
        except ValueError:
            return None
    return None if isinstance(value, bool) else value


def _server(base_url: object) -> dict[Key, Value | None]:
    """Return host and port of an endpoint's address; whatever else stands in it may be a secret."""
    if not isinstance(base_url, str):
        return {}
    try:
        parts = urlsplit(base_url)
        return {Key.SERVER_ADDRESS: parts.hostname, Key.SERVER_PORT: parts.port or _DEFAULT_PORTS.get(parts.scheme)}
    except ValueError:
        return {}
