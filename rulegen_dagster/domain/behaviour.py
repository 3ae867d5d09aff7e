"""Behaviour: everything that shapes a job's output, frozen when the job is accepted."""

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from rulegen_dagster.domain.canonical import canonical_json, digest_of

PIPELINE_REVISION = "rules-and-tests-v2"
"""Changes when the stages, or what they hand on, change."""

RETRIEVAL_INDEX = "definitions-references-bm25/2"
"""How the context of a clause is found."""


class ContextPolicy(StrEnum):
    """Whether a clause may go on when its context could not be looked up; a closed set."""

    #: It may not: the stage is tried again, and then blocks the job.
    REQUIRED = "required"
    #: It may, and the reviewer is told so.
    OPTIONAL = "optional"


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """The versioned inputs of a job; two jobs with equal digests are made the same way.

    `None` means that the pipeline has no such part yet, so it cannot shape the output.
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
