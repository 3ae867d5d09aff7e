"""The provider port: one call for one work item, and what comes back."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from rulegen_dagster.domain.clause import Clause, ContextEntry
from rulegen_dagster.domain.quota import Remaining
from rulegen_dagster.domain.refusal import Refusal
from rulegen_dagster.domain.states import Stage
from rulegen_dagster.domain.vocabulary import Vocabulary

NOT_A_MODEL = "not a language model"
"""Label of every output that was made without a language model."""


@dataclass(frozen=True, kw_only=True)
class ProviderIdentity:
    """Who makes the drafts; frozen into each job's behaviour.

    `can_repair` is false where the same request always gets the same draft, so that asking again is no use.
    """

    name: str
    model_id: str
    is_language_model: bool
    can_repair: bool = True
    settings: Mapping[str, str | int | bool] = field(default_factory=dict)

    @property
    def label(self) -> str | None:
        """The label to show beside each output, or None for a language model."""
        return None if self.is_language_model else NOT_A_MODEL


@dataclass(frozen=True, kw_only=True)
class ProviderRequest:
    """One call: rules (or tests) for one clause.

    `stage` is `generate_rules` or `generate_tests`. `operation_key` is stable over the attempts of one work item,
    `attempt` counts from 1. `timeout_ms` is the budget of this call. `repair` is empty unless an earlier draft was
    refused: then it says why, in codes and JSON paths and in no word of that draft. The reply may repeat `item_key` and
    `tenant` as `clause_id` and `tenant`; other ones are refused.
    """

    stage: Stage
    job: str
    item_key: str
    attempt: int
    operation_key: str
    timeout_ms: int
    clause: Clause
    context: tuple[ContextEntry, ...]
    vocabulary: Vocabulary
    repair: tuple[Refusal, ...] = ()

    @property
    def tenant(self) -> str:
        """Whose job it is."""
        return self.job.partition("/")[0]


@dataclass(frozen=True, kw_only=True)
class ProviderReply:
    """What a provider returned; `draft` is JSON text and untrusted. Tokens and cost are None where unknown.

    `report` is what else the answer said of itself (raw usage, effective settings, finish reason): names and numbers,
    no content. `remaining` is what it said is left of the provider's limits.
    """

    draft: str
    model_id: str
    request_id: str | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    cost_micros: int | None = None
    report: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)
    remaining: Remaining | None = None


class Provider(Protocol):
    """Makes drafts; one `call` is at most one request to whatever stands behind it."""

    @property
    def identity(self) -> ProviderIdentity:
        """Who this is, for behaviour and labels."""
        ...

    async def call(self, request: ProviderRequest) -> ProviderReply:
        """Return the draft for one request.

        Raises `ProviderRetryableError`, `ProviderRateLimitedError`, `ProviderAmbiguousError`,
        `ProviderPermanentError` or `ProviderAccountError`; anything else that escapes is treated as ambiguous.
        """
        ...
