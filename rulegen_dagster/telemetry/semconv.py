"""Names of spans and attributes: one table, in two profiles of OpenTelemetry's GenAI conventions.

The GenAI names are being renamed upstream: what dashboards and clients use today is `otel-1.36+`; `genai-repo` has the
names of the conventions' own repository, which is still in development.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class Profile(StrEnum):
    """Which names are used: a closed set, chosen by `RULEGEN_TRACE_PROFILE`."""

    OTEL_1_36 = "otel-1.36+"
    GENAI_REPO = "genai-repo"


class Work(StrEnum):
    """What a span is of: a closed set."""

    #: A submission, from its bytes to its job.
    INTAKE = "intake"
    #: What one process did of one stage of one job.
    STAGE = "stage"
    #: One attempt at a work item, from its claim to what the ledger made of it.
    ATTEMPT = "attempt"
    #: One request to a language model.
    CHAT = "chat"
    #: One call of a provider that is not a language model; it has no GenAI attributes.
    EXTRACT = "extract"
    #: The publication of a confirmed action set, from its claim to its receipt.
    PUBLISH = "publish"


class Key(StrEnum):
    """What an attribute says: a closed set. None of them holds text of a specification, a prompt or a draft."""

    JOB = "job"
    STAGE = "stage"
    ITEM = "item"
    ATTEMPT = "attempt"
    IS_REPAIR = "is_repair"
    OPERATION_KEY = "operation_key"
    OUTCOME = "outcome"
    WORKER = "worker"
    RUN = "run"
    EXISTING = "existing"
    UPLOAD_BYTES = "upload_bytes"
    REUSED = "reused"
    ERROR_TYPE = "error_type"
    PROVIDER = "provider"
    OPERATION = "operation"
    OUTPUT_TYPE = "output_type"
    CONVERSATION = "conversation"
    REQUEST_MODEL = "request_model"
    REQUEST_MAX_TOKENS = "request_max_tokens"
    REQUEST_TEMPERATURE = "request_temperature"
    REQUEST_SEED = "request_seed"
    PROMPT_NAME = "prompt_name"
    PROMPT_VERSION = "prompt_version"
    RESPONSE_MODEL = "response_model"
    RESPONSE_ID = "response_id"
    FINISH_REASONS = "finish_reasons"
    INPUT_TOKENS = "input_tokens"
    OUTPUT_TOKENS = "output_tokens"
    CACHE_READ_TOKENS = "cache_read_tokens"
    CACHE_WRITE_TOKENS = "cache_write_tokens"
    COST_MICROS = "cost_micros"
    TIMEOUT_MS = "timeout_ms"
    SERVER_ADDRESS = "server_address"
    SERVER_PORT = "server_port"


Value = str | int | float | bool | tuple[str, ...]
"""What an attribute may hold."""

# Each name in the order of `_COLUMNS`; a single one is the same in both.
_COLUMNS: Final = (Profile.OTEL_1_36, Profile.GENAI_REPO)
_TABLE: Final[Mapping[Work | Key, tuple[str, ...]]] = {
    Work.INTAKE: ("rulegen.intake",),
    Work.STAGE: ("rulegen.stage",),
    Work.ATTEMPT: ("rulegen.attempt",),
    Work.CHAT: ("chat",),
    Work.EXTRACT: ("rulegen.extract",),
    Work.PUBLISH: ("rulegen.publish",),
    Key.JOB: ("rulegen.job.id",),
    Key.STAGE: ("rulegen.stage",),
    Key.ITEM: ("rulegen.item",),
    Key.ATTEMPT: ("rulegen.attempt",),
    Key.IS_REPAIR: ("rulegen.attempt.is_repair",),
    Key.OPERATION_KEY: ("rulegen.operation.key",),
    Key.OUTCOME: ("rulegen.outcome",),
    Key.WORKER: ("rulegen.worker",),
    Key.RUN: ("rulegen.dagster.run_id",),
    Key.EXISTING: ("rulegen.submission.existing",),
    Key.UPLOAD_BYTES: ("rulegen.upload.bytes",),
    Key.REUSED: ("rulegen.publication.reused",),
    Key.ERROR_TYPE: ("error.type",),
    Key.PROVIDER: ("gen_ai.provider.name",),
    Key.OPERATION: ("gen_ai.operation.name",),
    Key.OUTPUT_TYPE: ("gen_ai.output.type",),
    Key.CONVERSATION: ("gen_ai.conversation.id",),
    Key.REQUEST_MODEL: ("gen_ai.request.model",),
    Key.REQUEST_MAX_TOKENS: ("gen_ai.request.max_tokens",),
    Key.REQUEST_TEMPERATURE: ("gen_ai.request.temperature",),
    Key.REQUEST_SEED: ("gen_ai.request.seed",),
    Key.PROMPT_NAME: ("gen_ai.prompt.name",),
    Key.PROMPT_VERSION: ("rulegen.prompt.version", "gen_ai.prompt.version"),
    Key.RESPONSE_MODEL: ("gen_ai.response.model",),
    Key.RESPONSE_ID: ("gen_ai.response.id",),
    Key.FINISH_REASONS: ("gen_ai.response.finish_reasons",),
    Key.INPUT_TOKENS: ("gen_ai.usage.input_tokens",),
    Key.OUTPUT_TOKENS: ("gen_ai.usage.output_tokens",),
    Key.CACHE_READ_TOKENS: ("gen_ai.usage.cache_read.input_tokens",),
    Key.CACHE_WRITE_TOKENS: ("gen_ai.usage.cache_creation.input_tokens", "gen_ai.usage.cache_write.input_tokens"),
    Key.COST_MICROS: ("rulegen.cost.micros",),
    Key.TIMEOUT_MS: ("rulegen.timeout_ms",),
    Key.SERVER_ADDRESS: ("server.address",),
    Key.SERVER_PORT: ("server.port",),
}

# The extractor is no language model: what it shares with one has a name of its own.
_OF_EXTRACTION: Final[Mapping[Key, str]] = {Key.PROVIDER: "rulegen.provider"}


def name_of(profile: Profile, what: Work | Key, *, of: Work | None = None) -> str:
    """Return how a profile calls a span, or an attribute of a span of the given work."""
    if of is Work.EXTRACT and isinstance(what, Key) and what in _OF_EXTRACTION:
        return _OF_EXTRACTION[what]
    names = _TABLE[what]
    return names[min(_COLUMNS.index(profile), len(names) - 1)]
