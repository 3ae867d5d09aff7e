"""Waivers: what a person's word that a clause needs no rule makes of the clause's two outputs."""

from typing import TYPE_CHECKING, Final

from rulegen_dagster.domain.canonical import canonical_json
from rulegen_dagster.domain.states import Stage

if TYPE_CHECKING:
    from rulegen_dagster.domain.rule import RuleOutput, SuiteOutput

WAIVED: Final = "waived"
"""The reason of a clause that has no rule because a person waived it."""


def waived_rules(reason: str) -> "RuleOutput":
    """Return the output of a waived clause's rule item; `reason` is what the person said."""
    # Every ledger knows waivers, and few write one; the models of outputs take a tenth of a second to build.
    from rulegen_dagster.domain.rule import NoRuleDraft, RuleOutput  # noqa: PLC0415

    return RuleOutput(no_rule=NoRuleDraft(reason=WAIVED, detail=reason))


def waived_suite(reason: str) -> "SuiteOutput":
    """Return the output of a waived clause's test item."""
    from rulegen_dagster.domain.rule import NoRuleDraft, SuiteOutput  # noqa: PLC0415

    return SuiteOutput(no_tests=NoRuleDraft(reason=WAIVED, detail=reason))


def waived_output(stage: Stage, reason: str) -> str:
    """Return the output of a waived clause's item of a generating stage, as it is stored."""
    output = waived_suite(reason) if stage is Stage.GENERATE_TESTS else waived_rules(reason)
    return canonical_json(output.model_dump(mode="json"))
