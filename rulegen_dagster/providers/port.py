"""The provider port: one call for one work item, and what comes back."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from rulegen_dagster.domain.clause import Clause, ContextEntry
from rulegen_dagster.domain.prompt import Prompt
from rulegen_dagster.domain.quota import CallCost, Remaining
from rulegen_dagster.domain.refusal import ANSWER_TRUNCATED, Refusal
from rulegen_dagster.domain.states import Stage
from rulegen_dagster.domain.vocabulary import Vocabulary

NOT_A_MODEL = "not a language model"
"""Label of every output that was made without a language model."""


@dataclass(frozen=True, kw_only=True)
class ProviderIdentity:
    """Who makes the drafts; frozen into each job's behaviour.

    `can_repair` is false where the same request always gets the same draft, so that asking again is no use. `prompts`
    are those that it asks with, by task; empty where nobody is asked in words. `call_cost` is what a call may use at
    most, None where it uses nothing that anybody counts; it is no part of the behaviour, for a price may change.
    """

    name: str
    model_id: str
    is_language_model: bool
    can_repair: bool = True
    settings: Mapping[str, str | int | bool] = field(default_factory=dict)
    prompts: Mapping[str, Prompt] = field(default_factory=dict)
    call_cost: CallCost | None = None

    @property
    def label(self) -> str | None:
        """The label to show beside each output, or None for a language model."""
        return None if self.is_language_model else NOT_A_MODEL


@dataclass(frozen=True, kw_only=True)
class ProviderRequest:
    """One call: rules (or tests) for one clause.

    `stage` is `generate_rules` or `generate_tests`. `operation_key` is stable over the attempts of one work item,
    `attempt` counts from 1. `timeout_ms` is the budget of this call. `repair` is empty unless an earlier draft was
    refused: then it says why, in codes and JSON paths and in no word of that draft. `longer_answer` allows the answer
    more tokens than usual. The reply may repeat `item_key` and `tenant` as `clause_id` and `tenant`; other ones are
    refused.
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
    longer_answer: bool = False

    @property
    def tenant(self) -> str:
        """Whose job it is."""
        return self.job.partition("/")[0]


class AnswerProblem(StrEnum):
    """What is wrong with an answer before anybody reads its draft; the values are failure codes, a closed set."""

    #: No answer of the protocol: not JSON, a proxy's page, fields of other types.
    UNREADABLE = "answer_unreadable"
    #: Cut off at the limit of its tokens.
    TRUNCATED = ANSWER_TRUNCATED
    #: The model or its filter declined; a person looks at the clause, and nobody asks again.
    REFUSED = "answer_refused"


ANSWER_PROBLEMS: Mapping[AnswerProblem, str] = {
    AnswerProblem.UNREADABLE: "the endpoint answered with something that is no completion",
    AnswerProblem.TRUNCATED: "the answer was cut off at its limit of tokens",
    AnswerProblem.REFUSED: "the model or its content filter declined to answer",
}
"""Each problem in words for people."""


@dataclass(frozen=True, kw_only=True)
class ProviderReply:
    """What a provider returned; `draft` is JSON text and untrusted. Tokens and cost are None where unknown.

    With a `problem` there is no draft to be read, and the call is paid for nevertheless.

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
    problem: AnswerProblem | None = None


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
