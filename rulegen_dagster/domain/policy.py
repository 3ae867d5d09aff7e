"""Validation policy: what a job has to show before a person can confirm it."""

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

ANY_REASON: Final = "*"
"""In a list of accepted abstentions: whatever the reason."""

Percent = Annotated[int, Field(strict=True, ge=0, le=100)]


class ValidationPolicy(BaseModel):
    """Thresholds, versioned; a job freezes one with its behaviour.

    `accepted_abstentions` are the reasons for "no rule" that need no waiver; `ANY_REASON` accepts all. With `proofs` a
    theorem prover decides what the rules say against each other; it is an optional part of the installation.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,31}$")]
    version: Annotated[int, Field(strict=True, ge=1)]
    description: str
    minimum_mutation_percent: Percent
    allowed_conflicts: Annotated[int, Field(strict=True, ge=0)]
    minimum_coverage_percent: Percent
    accepted_abstentions: Annotated[tuple[str, ...], Field(max_length=64)]
    maximum_abstention_percent: Percent
    proofs: bool = False

    @model_serializer(mode="wrap")
    def _without_defaults(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what is not asked for: a policy of an earlier release keeps its digest."""
        content: dict[str, Any] = serialize(self)
        if not self.proofs:
            del content["proofs"]
        return content

    @property
    def label(self) -> str:
        """Name and version, as a job's behaviour states them."""
        return f"{self.name}@{self.version}"

    def accepts(self, reason: str) -> bool:
        """Return whether a clause may end without a rule for this reason, with no waiver."""
        return ANY_REASON in self.accepted_abstentions or reason in self.accepted_abstentions
