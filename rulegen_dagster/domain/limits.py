"""Limits: how many items may be in flight at once, over all processes of a ledger."""

from dataclasses import dataclass
from enum import StrEnum

from rulegen_dagster.domain.states import Stage


class Group(StrEnum):
    """Stages that share one limit."""

    EXTRACTION = "extraction"
    GENERATION = "generation"
    VALIDATION = "validation"
    ACTIONS = "actions"


STAGES_OF_GROUP = {
    Group.EXTRACTION: (Stage.PARSE, Stage.RETRIEVE),
    Group.GENERATION: (Stage.GENERATE_RULES, Stage.GENERATE_TESTS),
    Group.VALIDATION: (Stage.VALIDATE,),
    Group.ACTIONS: (Stage.PUBLISH, Stage.NOTIFY),
}
"""Which stages each group bounds together."""

GROUP_OF_STAGE = {stage: group for group, stages in STAGES_OF_GROUP.items() for stage in stages}
"""The group of each stage."""

TENANT_LIMITED = Group.GENERATION
"""The group in which a tenant's own limit counts: what calls a provider."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How many items of each group may be in flight at once; None is no limit.

    They hold over all processes of a ledger only where all of them are given the same.
    """

    extraction: int | None = None
    generation: int | None = None
    validation: int | None = None
    actions: int | None = None

    def of(self, group: Group) -> int | None:
        """Return the limit of a group."""
        return {
            Group.EXTRACTION: self.extraction,
            Group.GENERATION: self.generation,
            Group.VALIDATION: self.validation,
            Group.ACTIONS: self.actions,
        }[group]


NO_LIMITS = Limits()
"""Nothing is limited."""
