"""The client of a model: one HTTP request, and what came of it. The only module that knows pydantic-ai's classes.

It uses `direct.model_request` alone: nothing that retries, repairs or loops by itself, for each request is an attempt
of the ledger. A connection of its own serves each request: one that is kept open may be closed by the other side in the
very moment in which it is used again, and such a call counts as possibly billed.
"""

import json
import math
import re
from collections.abc import Mapping
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Final, cast

from rulegen_dagster.domain.errors import ProviderConfigError
from rulegen_dagster.domain.provider_settings import OutputMode
from rulegen_dagster.domain.quota import Remaining
from rulegen_dagster.providers.client_check import check_client, missing_client
from rulegen_dagster.providers.endpoint import Endpoint
from rulegen_dagster.providers.outcomes import Kind, Seen
from rulegen_dagster.providers.prices import TokenUsage
from rulegen_dagster.providers.prompts import Rendered

# The order matters: a class stands before its bases.
_KIND_OF: Final = (
    ("ModelRequestTimeout", Kind.OUT_OF_TIME),
    ("ModelConnectionError", Kind.CONNECTION),
    ("ModelQuotaExceededError", Kind.QUOTA),
    ("ModelRateLimitError", Kind.RATE_LIMIT),
    ("ModelOverloadedError", Kind.OVERLOADED),
    ("ModelUnavailableError", Kind.UNAVAILABLE),
    ("ModelServerError", Kind.SERVER),
    ("ModelContextWindowExceededError", Kind.CONTEXT_WINDOW),
    ("ModelAuthenticationError", Kind.AUTHENTICATION),
    ("ModelNotFoundError", Kind.NOT_FOUND),
    ("ModelRequestRejectedError", Kind.REJECTED),
    ("ModelHTTPError", Kind.STATUS),
    ("UserError", Kind.CONFIGURATION),
)
_UNSUPPORTED: Final = re.compile(
    r"unsupported|not supported|input should be|validation error|unknown field|extra input"
)
_ID: Final = re.compile(r"[\w.:/@+-]{1,128}")
_SHORTEST_SECRET: Final = 12
_MOST_DETAILS: Final = 40
_REPORTED_SETTINGS: Final = ("max_tokens", "max_completion_tokens", "temperature", "stream")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The JSON schema that an answer is held to, and its name."""

    name: str
    schema: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A completion, whole or cut off; `usage` is None where it does not say what it used."""

    text: str
    model_id: str | None
    kind: Kind | None
    request_id: str | None
    usage: TokenUsage | None
    remaining: Remaining | None
    report: Mapping[str, str | int | float | bool | None]


class CallFailedError(Exception):
    """Raised when a call ended without a completion.

    `complaint` is a digest of the error's text where that speaks of something unsupported, so that equal ones can be
    told; the text itself is not kept.
    """

    def __init__(self, seen: Seen, complaint: str | None = None) -> None:
        """Keep what was seen."""
        super().__init__(seen.kind.value)
        self.seen = seen
        self.complaint = complaint


@dataclass
class _Exchange:
    """What the hooks saw of one request and its response."""

    requests: int = 0
    status: int | None = None
    request_id: str | None = None
    remaining: Remaining | None = None
    sent: dict[str, str | int | float | bool | None] = field(default_factory=dict)


# The client's answers have no headers; hooks run in the task of the call, and so find its exchange here.
_EXCHANGE: ContextVar[_Exchange | None] = ContextVar("rulegen_model_exchange", default=None)


class ModelClient:
    """Sends requests to one model at one endpoint; safe for concurrent calls and for one event loop after another."""

    def __init__(self, endpoint: Endpoint, *, temperature: float | None) -> None:
        """Build the client; nothing is sent. Raises `ProviderConfigError`."""
        check_client()
        self._model = _model_of(endpoint)
        self.endpoint = replace(endpoint, mode=_mode_of(endpoint, self._model.profile))
        self.temperature = temperature if _takes_temperature(endpoint, self._model.profile) else None

    def on_rung(self, mode: OutputMode) -> "ModelClient":
        """Return the same client on another rung of the ladder, whether or not its model has that."""
        other = copy(self)
        other.endpoint = replace(self.endpoint, mode=mode)
        return other

    async def send(
        self,
        rendered: Rendered,
        *,
        shape: Shape,
        max_tokens: int,
        timeout_s: float,
        headers: Mapping[str, str],
    ) -> Answer:
        """Send one request and return its completion. Raises `CallFailedError`, whatever happens but a cancellation."""
        from pydantic_ai.direct import model_request  # noqa: PLC0415
        from pydantic_ai.messages import ModelRequest  # noqa: PLC0415

        exchange = _Exchange()
        token = _EXCHANGE.set(exchange)
        try:
            response = await model_request(
                self._model,
                [ModelRequest.user_text_prompt(rendered.user, instructions=rendered.system)],
                model_settings=self._settings(shape, max_tokens, timeout_s, headers),
                model_request_parameters=self._parameters(shape),
                instrument=False,
            )
            return _answer(response, exchange, self.endpoint)
        except Exception as error:
            # Whatever a client makes of a broken answer, the call was made: it must not escape as a defect of ours.
            raise _failed(error, exchange) from None
        finally:
            _EXCHANGE.reset(token)

    def _settings(self, shape: Shape, max_tokens: int, timeout_s: float, headers: Mapping[str, str]) -> Any:
        settings: dict[str, Any] = {
            "max_retries": 0,
            "max_tokens": max_tokens,
            "timeout": timeout_s,
            "request_timeout": timeout_s,
            "extra_headers": dict(headers),
        }
        if self.temperature is not None:
            settings["temperature"] = self.temperature
        if self.endpoint.mode is OutputMode.JSON_OBJECT:
            form: dict[str, Any] = {"type": "json_object"}
            if not self.endpoint.is_openai:
                form["schema"] = shape.schema
            settings["extra_body"] = {"response_format": form}
        return settings

    def _parameters(self, shape: Shape) -> Any:
        from pydantic_ai.models import ModelRequestParameters  # noqa: PLC0415
        from pydantic_ai.output import OutputObjectDefinition  # noqa: PLC0415

        if self.endpoint.mode is not OutputMode.NATIVE:
            return ModelRequestParameters()
        wanted = OutputObjectDefinition(json_schema=shape.schema, name=shape.name, strict=True)
        return ModelRequestParameters(output_mode="native", output_object=wanted)


def _model_of(endpoint: Endpoint) -> Any:
    try:
        import httpx2  # noqa: PLC0415

        http = httpx2.AsyncClient(
            event_hooks={"request": [_on_request], "response": [_on_response]},
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
            follow_redirects=False,
        )
        # Each protocol's package takes seconds to import, so only the one that is spoken is.
        return _anthropic(endpoint, http) if endpoint.is_anthropic else _openai(endpoint, http)
    except ImportError as error:
        raise missing_client(error) from error


def _anthropic(endpoint: Endpoint, http: Any) -> Any:
    from pydantic_ai.models.anthropic import AnthropicModel  # noqa: PLC0415
    from pydantic_ai.providers.anthropic import AnthropicProvider  # noqa: PLC0415

    key = endpoint.key.get_secret_value()
    provider = AnthropicProvider(api_key=key, base_url=endpoint.base_url, http_client=http)
    return AnthropicModel(endpoint.model, provider=provider)


def _openai(endpoint: Endpoint, http: Any) -> Any:
    from pydantic_ai.models.openai import OpenAIChatModel  # noqa: PLC0415
    from pydantic_ai.profiles import merge_profile  # noqa: PLC0415
    from pydantic_ai.profiles.openai import OpenAIModelProfile  # noqa: PLC0415
    from pydantic_ai.providers.openai import OpenAIProvider  # noqa: PLC0415

    key = endpoint.key.get_secret_value()
    provider = OpenAIProvider(api_key=key, base_url=endpoint.base_url, http_client=http)
    if endpoint.is_openai:
        return OpenAIChatModel(endpoint.model, provider=provider)
    # Servers of other makers know the older name of the limit, and some ignore the newer one.
    profile = merge_profile(
        OpenAIProvider.model_profile(endpoint.model),
        OpenAIModelProfile(openai_chat_supports_max_completion_tokens=False),
    )
    return OpenAIChatModel(endpoint.model, provider=provider, profile=profile)


def _mode_of(endpoint: Endpoint, profile: Mapping[str, Any]) -> OutputMode:
    native = bool(profile.get("supports_json_schema_output", False))
    if endpoint.mode is OutputMode.AUTO:
        return OutputMode.NATIVE if native else OutputMode.PROMPTED
    if endpoint.is_anthropic and endpoint.mode is OutputMode.NATIVE and not native:
        raise ProviderConfigError(
            f"the model {endpoint.model[:100]} takes no native schema; set RULEGEN_OUTPUT_MODE to auto"
        )
    return endpoint.mode


def _takes_temperature(endpoint: Endpoint, profile: Mapping[str, Any]) -> bool:
    """Tell whether a model takes a temperature; the client would leave it out too, with a warning for each call."""
    if endpoint.is_anthropic:
        return not profile.get("anthropic_disallows_sampling_settings", False)
    if not profile.get("openai_supports_reasoning", False):
        return True
    may_rest = profile.get("openai_supports_reasoning_effort_none", False)
    return bool(may_rest) and not profile.get("thinking_enabled_by_default", False)


async def _on_request(request: Any) -> None:
    exchange = _EXCHANGE.get()
    if exchange is None:
        return
    exchange.requests += 1
    try:
        body = json.loads(request.content)
        exchange.sent = {name: body[name] for name in _REPORTED_SETTINGS if isinstance(body.get(name), int | float)}
    except (AttributeError, RuntimeError, TypeError, ValueError):
        exchange.sent = {}


async def _on_response(response: Any) -> None:
    exchange = _EXCHANGE.get()
    if exchange is None:
        return
    headers = response.headers
    exchange.status = response.status_code
    exchange.request_id = _identifier(headers.get("x-request-id") or headers.get("request-id"))
    requests = _count(
        headers.get("x-ratelimit-remaining-requests", headers.get("anthropic-ratelimit-requests-remaining"))
    )
    tokens = _count(headers.get("x-ratelimit-remaining-tokens", headers.get("anthropic-ratelimit-tokens-remaining")))
    if requests is not None or tokens is not None:
        exchange.remaining = Remaining(requests=requests, tokens=tokens)


def _answer(response: Any, exchange: _Exchange, endpoint: Endpoint) -> Answer:
    from pydantic_ai.messages import TextPart  # noqa: PLC0415

    usage = response.usage
    measured = not usage.unmeasured_requests and (usage.input_tokens or usage.output_tokens)
    kind = {"length": Kind.TRUNCATED, "content_filter": Kind.REFUSED}.get(response.finish_reason or "")
    report: dict[str, str | int | float | bool | None] = {
        "finish_reason": response.finish_reason,
        "output_mode": endpoint.mode.value,
        "response_id": _named(response.provider_response_id, endpoint),
        "http_requests": exchange.requests,
        "cache_read_tokens": usage.cache_read_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
        **{f"sent_{name}": value for name, value in exchange.sent.items()},
        # The provider's own words for what it counted, as it counted it.
        **{
            f"usage_{name}": value
            for name, value in sorted(usage.details.items())[:_MOST_DETAILS]
            if isinstance(value, int) and _ID.fullmatch(name)
        },
    }
    return Answer(
        text="".join(part.content for part in response.parts if isinstance(part, TextPart)),
        model_id=_named(response.model_name, endpoint),
        kind=kind,
        request_id=exchange.request_id,
        usage=TokenUsage(
            tokens_in=usage.input_tokens,
            tokens_out=usage.output_tokens,
            cache_read=usage.cache_read_tokens,
            cache_write=usage.cache_write_tokens,
        )
        if measured
        else None,
        remaining=exchange.remaining,
        report=report,
    )


def _failed(error: Exception, exchange: _Exchange) -> CallFailedError:
    from pydantic_ai import exceptions  # noqa: PLC0415

    kind = next((kind for name, kind in _KIND_OF if isinstance(error, getattr(exceptions, name))), Kind.UNREADABLE)
    told = cast(Any, error)
    is_http = isinstance(error, exceptions.ModelHTTPError)
    codes = (getattr(told, "provider_error_code", None), getattr(told, "provider_error_type", None))
    wait_s = getattr(told, "retry_after", None)
    seen = Seen(
        kind=kind,
        phase=getattr(told, "phase", None),
        status=told.status_code if is_http else _odd(exchange.status),
        error_codes=frozenset(code for code in codes if isinstance(code, str)),
        may_retry=told.provider_retry_hint if is_http else None,
        retry_after_ms=math.ceil(wait_s * 1000) if wait_s is not None and 0 <= wait_s < 10**9 else None,
        request_id=exchange.request_id,
        remaining=exchange.remaining,
    )
    complaint = None
    if kind in {Kind.SERVER, Kind.UNAVAILABLE} and _UNSUPPORTED.search(text := str(told.body).lower()):
        complaint = sha256(f"{seen.status} {text}".encode(errors="replace")).hexdigest()
    return CallFailedError(seen, complaint)


def _odd(status: int | None) -> int | None:
    # A good status of a response that turned out to be none says nothing that its kind does not say.
    return status if status is not None and status >= 300 else None


def _named(text: object, endpoint: Endpoint) -> str | None:
    """Return what an answer calls something, where that is a name: an endpoint may repeat the prompt, or the key."""
    found, key = _identifier(text), endpoint.key.get_secret_value()
    # A server of one's own may have a word for a key that is no secret, and that its model's name holds.
    return None if found is not None and len(key) >= _SHORTEST_SECRET and key in found else found


def _identifier(text: object) -> str | None:
    return text if isinstance(text, str) and _ID.fullmatch(text) else None


def _count(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 16 else None
