"""The probe of a model: one tiny request for each rung of the output ladder, with the account as it is configured."""

import asyncio
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rulegen_dagster.domain.provider_settings import OutputMode, ProviderSettings
from rulegen_dagster.domain.quota import Remaining
from rulegen_dagster.providers.classification import classify
from rulegen_dagster.providers.endpoint import endpoint_of
from rulegen_dagster.providers.model_client import CallFailedError, ModelClient, Shape
from rulegen_dagster.providers.outcomes import Kind, Next, Seen
from rulegen_dagster.providers.prices import Prices, TokenPrice
from rulegen_dagster.providers.prompts import Rendered

_SHAPE: Final = Shape(
    name="probe",
    schema={
        "type": "object",
        "properties": {"ready": {"type": "boolean"}},
        "required": ["ready"],
        "additionalProperties": False,
    },
)
_QUESTION: Final = Rendered(
    system="You answer with one JSON object and nothing else.",
    user='This checks the connection. Answer with the JSON object {"ready": true}.',
)
_MAX_TOKENS: Final = 256
_HOPELESS: Final = frozenset(
    {"provider_unreachable", "provider_model_not_found", "provider_redirects", "provider_timeout"}
)
"""What the next rung would meet as well."""


@dataclass(frozen=True, kw_only=True)
class Rung:
    """What one request found out: `accepted` by the endpoint, and `obeyed` by the model.

    `code` and `message` say why not; both are None where it was accepted.
    """

    mode: OutputMode
    accepted: bool
    obeyed: bool
    latency_ms: int
    code: str | None = None
    message: str | None = None
    model_id: str | None = None
    request_id: str | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    cost_micros: int | None = None
    remaining: Remaining | None = None


@dataclass(frozen=True, kw_only=True)
class Probe:
    """What a configured model can do; `mode` is the rung that jobs use with these settings."""

    provider: str
    model: str
    base_url: str
    mode: OutputMode
    temperature: float | None
    price: TokenPrice | None
    rungs: tuple[Rung, ...]

    @property
    def works(self) -> bool:
        """Whether jobs would get answers: the rung that they use was accepted."""
        return any(rung.accepted for rung in self.rungs if rung.mode is self.mode)


def probe(name: str, settings: ProviderSettings, *, timeout_s: float, clock: Callable[[], float]) -> Probe:
    """Try the ladder from its top, one request a rung; stops where the next one would meet the same.

    `clock` measures seconds. Raises `ProviderConfigError` before anything is sent.
    """
    endpoint = endpoint_of(name, settings)
    client = ModelClient(endpoint, temperature=settings.temperature)
    prices = Prices(settings, model=endpoint.model, base_url=endpoint.base_url)
    ladder = [OutputMode.NATIVE, OutputMode.JSON_OBJECT, OutputMode.PROMPTED]
    if endpoint.is_anthropic:
        ladder.remove(OutputMode.JSON_OBJECT)
    rungs: list[Rung] = []
    for mode in ladder:
        # The rung is asked for as it is, even where the client knows that the model has none: that is the question.
        rungs.append(asyncio.run(_try(client.on_rung(mode), prices, timeout_s, clock)))
        if rungs[-1].code is not None and _is_hopeless(rungs[-1].code):
            break
    return Probe(
        provider=name,
        model=endpoint.model,
        base_url=endpoint.base_url,
        mode=client.endpoint.mode,
        temperature=client.temperature,
        price=prices.estimate(),
        rungs=tuple(rungs),
    )


def _is_hopeless(code: str) -> bool:
    account = {classify(Seen(kind=kind)).code for kind in Kind if classify(Seen(kind=kind)).next is Next.OPERATOR}
    return code in _HOPELESS | account


async def _try(client: ModelClient, prices: Prices, timeout_s: float, clock: Callable[[], float]) -> Rung:
    mode, began = client.endpoint.mode, clock()
    key = f"rulegen-probe/{secrets.token_hex(8)}"
    try:
        answer = await client.send(
            _QUESTION,
            shape=_SHAPE,
            max_tokens=_MAX_TOKENS,
            timeout_s=timeout_s,
            headers={"Idempotency-Key": key, "X-Client-Request-Id": f"{key}.1"},
        )
    except CallFailedError as failed:
        row, took = classify(failed.seen), clock() - began
        status = f" (HTTP {failed.seen.status})" if failed.seen.status is not None else ""
        return Rung(
            mode=mode,
            accepted=False,
            obeyed=False,
            latency_ms=round(took * 1000),
            code=row.code,
            message=f"{row.message}{status}",
            request_id=failed.seen.request_id,
            remaining=failed.seen.remaining,
        )
    usage = answer.usage
    return Rung(
        mode=mode,
        accepted=True,
        obeyed=answer.kind is None and _says_ready(answer.text),
        latency_ms=round((clock() - began) * 1000),
        model_id=answer.model_id,
        request_id=answer.request_id,
        tokens_in=usage.tokens_in if usage else None,
        tokens_out=usage.tokens_out if usage else None,
        cost_micros=prices.cost_micros(usage, reported_model=answer.model_id) if usage else None,
        remaining=answer.remaining,
    )


def _says_ready(text: str) -> bool:
    try:
        return bool(json.loads(text) == {"ready": True})
    except (ValueError, RecursionError):
        return False
