"""Language models behind the port: `openai-compatible` and `anthropic`.

A call renders the frozen prompts for one clause, sends one request, and turns what came of it into a reply or an error
by the table of `classification`. Nothing of a draft is believed here; that is the validation's work.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Final

from rulegen_dagster.domain.errors import ProviderPermanentError
from rulegen_dagster.domain.prompt import Prompt
from rulegen_dagster.domain.provider_settings import NOT_SENT, OutputMode, ProviderSettings
from rulegen_dagster.domain.quota import BYTES_PER_TOKEN, LONGER_ANSWER, CallCost
from rulegen_dagster.providers.answer_shape import ANSWER_SHAPE, answer_schema, answer_schema_text, to_draft
from rulegen_dagster.providers.classification import MOST_REPEATS, classify, error_of
from rulegen_dagster.providers.endpoint import Endpoint, endpoint_of
from rulegen_dagster.providers.model_client import Answer, CallFailedError, ModelClient, Shape
from rulegen_dagster.providers.outcomes import Seen, Verdict
from rulegen_dagster.providers.port import AnswerProblem, ProviderIdentity, ProviderReply, ProviderRequest
from rulegen_dagster.providers.prices import Prices
from rulegen_dagster.providers.prompts import TASK_OF_STAGE, mark_of, release_prompts, render

_GIVEN_WITH_THE_REQUEST: Final = "The shape is given with the request, as a JSON schema."
_VOCABULARY_BYTES: Final = 9_000
"""What the facts of a vocabulary take in a prompt at most; the largest pack of this release takes half of it."""


class ModelProvider:
    """A model at an endpoint; see the module's docstring."""

    def __init__(
        self,
        client: ModelClient,
        settings: ProviderSettings,
        prompts: Mapping[str, Prompt],
        *,
        mark: Callable[[ProviderRequest], str] = mark_of,
    ) -> None:
        """Ask with these prompts, by task; `mark` makes the mark of a request's blocks."""
        endpoint = client.endpoint
        self._client = client
        self._max_tokens = settings.max_tokens
        self._prompts = prompts
        self._mark = mark
        self._prices = Prices(settings, model=endpoint.model, base_url=endpoint.base_url)
        self._complaints: tuple[str, int] = ("", 0)
        temperature = NOT_SENT if client.temperature is None else f"{client.temperature:g}"
        price = self._prices.estimate()
        self._identity = ProviderIdentity(
            name=endpoint.provider,
            model_id=endpoint.model,
            is_language_model=True,
            settings={
                "base_url": endpoint.base_url,
                "max_tokens": settings.max_tokens,
                "temperature": temperature,
                "output_mode": endpoint.mode.value,
                "answer_shape": ANSWER_SHAPE,
            },
            prompts=prompts,
            call_cost=CallCost(
                overhead_tokens=_overhead_tokens(prompts),
                max_tokens=settings.max_tokens,
                price_in=price.micros_in if price else None,
                price_out=price.micros_out if price else None,
            ),
        )

    @property
    def identity(self) -> ProviderIdentity:
        """Who this is, for behaviour and labels."""
        return self._identity

    async def call(self, request: ProviderRequest) -> ProviderReply:
        """Send one request and return its draft, or what is wrong with the answer. Raises as the port says."""
        task = TASK_OF_STAGE.get(request.stage)
        if task is None:
            raise ProviderPermanentError(f"a model drafts rules and tests, not {request.stage.value}")
        native = self._client.endpoint.mode is OutputMode.NATIVE
        rendered = render(
            self._prompts,
            request,
            mark=self._mark(request),
            schema=_GIVEN_WITH_THE_REQUEST if native else answer_schema_text(task),
        )
        try:
            answer = await self._client.send(
                rendered,
                shape=Shape(name=task, schema=answer_schema(task)),
                max_tokens=self._max_tokens * (LONGER_ANSWER if request.longer_answer else 1),
                timeout_s=request.timeout_ms / 1000,
                headers={
                    "Idempotency-Key": _idempotency_key(request),
                    "X-Client-Request-Id": f"{request.operation_key}.{request.attempt}",
                },
            )
        except CallFailedError as failed:
            return self._failed(failed)
        self._complaints = ("", 0)
        return self._reply(answer)

    def _failed(self, failed: CallFailedError) -> ProviderReply:
        """Return the reply of an answer that is none; raise whatever else it was, by the table."""
        seen = replace(failed.seen, repeats=self._repeats(failed.complaint))
        row = classify(seen)
        if row.verdict is not Verdict.INVALID_OUTPUT:
            raise error_of(row, seen)
        return ProviderReply(
            draft="",
            model_id=self._identity.model_id,
            request_id=seen.request_id,
            remaining=seen.remaining,
            problem=AnswerProblem(row.code),
        )

    def _repeats(self, complaint: str | None) -> int:
        """Count equal complaints in a row; this process remembers them as long as it has the provider open."""
        last, count = self._complaints
        count = 0 if complaint is None else min(count + 1, MOST_REPEATS) if complaint == last else 1
        self._complaints = (complaint or "", count)
        return count

    def _reply(self, answer: Answer) -> ProviderReply:
        usage = answer.usage
        problem = AnswerProblem(classify(Seen(kind=answer.kind)).code) if answer.kind is not None else None
        return ProviderReply(
            draft="" if problem else to_draft(answer.text),
            model_id=answer.model_id or self._identity.model_id,
            request_id=answer.request_id,
            tokens_in=usage.tokens_in if usage else None,
            tokens_out=usage.tokens_out if usage else None,
            cost_micros=self._prices.cost_micros(usage, reported_model=answer.model_id) if usage else None,
            report=answer.report,
            remaining=answer.remaining,
            problem=problem,
        )


def _idempotency_key(request: ProviderRequest) -> str:
    """Return one key for equal requests: a repair is another request, to be answered anew and not with the old draft.

    A gateway that honours the key replays the first answer, or refuses the key with another body:
    https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/
    """
    return f"{request.operation_key}/repair" if request.repair else request.operation_key


@lru_cache(maxsize=8)
def _client_of(endpoint: Endpoint, temperature: float | None) -> ModelClient:
    """Return the client of an endpoint, which the jobs of this process share; another key is another endpoint."""
    return ModelClient(endpoint, temperature=temperature)


def _overhead_tokens(prompts: Mapping[str, Prompt]) -> int:
    """Return how many tokens a prompt has at most beside the clause and its context; more than it will."""
    repair = len(prompts["repair"].text.encode()) if "repair" in prompts else 0
    asked = [prompt for task, prompt in prompts.items() if task in TASK_OF_STAGE.values()]
    fixed = max((len(prompt.text.encode()) + len(answer_schema_text(prompt.task)) for prompt in asked), default=0)
    return -(-(fixed + repair + _VOCABULARY_BYTES) // BYTES_PER_TOKEN)


def open_model(name: str, settings: ProviderSettings, prompts: Mapping[str, Prompt] | None) -> ModelProvider:
    """Open a model by the settings; nothing is sent. Raises `ProviderConfigError`.

    Without `prompts` it asks with the release's own.
    """
    client = _client_of(endpoint_of(name, settings), settings.temperature)
    return ModelProvider(client, settings, release_prompts() if prompts is None else prompts)
