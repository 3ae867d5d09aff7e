"""Behaviour: everything that shapes a job's output, frozen when the job is accepted."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from rulegen_dagster.domain.canonical import canonical_json, digest_of, sha256_hex
from rulegen_dagster.domain.prompt import Prompt

PIPELINE_REVISION = "rules-and-tests-v2"
"""Changes when the stages, or what they hand on, change."""

RETRIEVAL_INDEX = "definitions-references-neighbours-bm25/3"
"""How the context of a clause is found."""

_LONGEST_TOLD = 200


class ContextPolicy(StrEnum):
    """Whether a clause may go on when its context could not be looked up; a closed set."""

    #: It may not: the stage is tried again, and then blocks the job.
    REQUIRED = "required"
    #: It may, and the reviewer is told so.
    OPTIONAL = "optional"


class ModelDrift(StrEnum):
    """What follows where a provider reports another model than it first did for the same job; a closed set."""

    #: Each attempt keeps what was reported, and the status shows it.
    RECORD = "record"
    #: The job needs a decision, too.
    STOP = "stop"


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """The versioned inputs of a job; two jobs with equal digests are made the same way.

    `None` means that the pipeline has no such part yet, so it cannot shape the output. `prompt_versions` has
    `<version>@<digest of the text>` for each task.
    """

    application_release: str
    pipeline_revision: str
    provider: str
    model_id: str
    provider_settings: dict[str, str | int | bool] = field(default_factory=dict)
    prompt_versions: dict[str, str] = field(default_factory=dict)
    output_schema: str
    vocabulary: str
    vocabulary_digest: str
    retrieval_index: str
    context_policy: str = ContextPolicy.REQUIRED.value
    model_drift: str = ModelDrift.RECORD.value
    validation_policy: str
    validation_policy_digest: str
    tool_policy: str | None = None
    evaluation_suite: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain data, for canonical JSON."""
        return asdict(self)

    @property
    def content(self) -> str:
        """The canonical JSON that is stored with the job."""
        return canonical_json(self.as_dict())

    @property
    def digest(self) -> str:
        """The SHA-256 of `content`."""
        return digest_of(self.as_dict())


def prompt_label(prompt: Prompt) -> str:
    """Return what a behaviour says of a prompt: its version, and the digest of its text."""
    return f"{prompt.version}@{prompt.digest}"


def prompt_digest(label: str) -> str:
    """Return the digest that a behaviour's word on a prompt names."""
    return label.rpartition("@")[2]


class PackKind(StrEnum):
    """What a pack is; a closed set."""

    VOCABULARY = "vocabulary"
    VALIDATION_POLICY = "validation_policy"


@dataclass(frozen=True, kw_only=True)
class Pack:
    """A vocabulary or a validation policy as a job froze it: the canonical JSON of the checked pack."""

    kind: PackKind
    content: str

    @property
    def digest(self) -> str:
        """The SHA-256 of the content; what a behaviour names."""
        return sha256_hex(self.content)


@dataclass(frozen=True, kw_only=True)
class FrozenBehaviour:
    """A behaviour with the texts that its digests name, so that no deployment can lose them."""

    behaviour: Behaviour
    prompts: tuple[Prompt, ...] = ()
    packs: tuple[Pack, ...] = ()


class Part(StrEnum):
    """What can keep a release from going on with a job: parts of its behaviour, and what its provider said of itself.

    A closed set; the values are the names of the behaviour's fields.
    """

    PIPELINE_REVISION = "pipeline_revision"
    RETRIEVAL_INDEX = "retrieval_index"
    OUTPUT_SCHEMA = "output_schema"
    PROVIDER = "provider"
    MODEL_ID = "model_id"
    PROVIDER_SETTINGS = "provider_settings"
    PROMPT_VERSIONS = "prompt_versions"
    VOCABULARY = "vocabulary"
    VALIDATION_POLICY = "validation_policy"
    #: Not frozen, but observed: the model that the provider says it used.
    REPORTED_MODEL = "reported_model"


@dataclass(frozen=True, kw_only=True)
class Incompatibility:
    """One part that a release cannot honour: what the job froze, and what the release has (None: nothing that fits).

    For the reported model: what was reported first, and what is reported now.
    """

    part: Part
    was: str
    now: str | None

    @property
    def text(self) -> str:
        """The incompatibility in words, without an end."""
        if self.part is Part.REPORTED_MODEL:
            return f"its provider first reported the model {told(self.was)}, and now reports {told(self.now or '')}"
        has = told(self.now) if self.now is not None else "nothing that can honour it"
        return (
            f"it froze the {self.part.replace('_', ' ')} {told(self.was)}, and the release that is to go on has {has}"
        )


class Choice(StrEnum):
    """What a person may decide for a job that a release cannot go on with; a closed set."""

    #: It keeps what it froze, and goes on where that is honoured.
    RETAIN = "retain"
    #: It takes the running release's behaviour from here on.
    MIGRATE = "migrate"
    #: It ends.
    STOP = "stop"


@dataclass(frozen=True, kw_only=True)
class Change:
    """One difference between two behaviours: the field (`prompt_versions.rules`), and its two values."""

    field: str
    was: Any
    now: Any


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[Change, ...]:
    """Return what differs between two behaviours as they are stored, in the order of the fields.

    A field that one of them lacks (an older release knew none) counts as None there.
    """
    return tuple(_changes(old, new, ""))


def _changes(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str) -> Iterator[Change]:
    for name in sorted({*old, *new}):
        was, now = old.get(name), new.get(name)
        if was == now:
            continue
        if isinstance(was or {}, dict) and isinstance(now or {}, dict):
            yield from _changes(was or {}, now or {}, f"{prefix}{name}.")
        else:
            yield Change(field=f"{prefix}{name}", was=was, now=now)


def told(text: str) -> str:
    """Return a value for a sentence, shortened."""
    return text if len(text) <= _LONGEST_TOLD else f"{text[: _LONGEST_TOLD - 1]}…"
