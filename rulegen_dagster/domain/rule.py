"""Rules and tests: what a provider drafts, and what it becomes once it is validated.

A draft names its quote only; the validated value carries exact offsets. Amounts are integers in minor units with a
currency; rates are micros (10^-6) of the major unit.
"""

from datetime import date
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, model_validator
from pydantic_core import PydanticCustomError

from rulegen_dagster.domain.money import MAX_MINOR
from rulegen_dagster.domain.vocabulary import FactName, FactValue

OUTPUT_SCHEMA_VERSION = "rules-and-tests-v3"
"""Version of the draft and output shapes in this module; part of each job's behaviour."""

READABLE_OUTPUT_SCHEMAS = frozenset({OUTPUT_SCHEMA_VERSION, "rules-and-tests-v2"})
"""Versions whose accepted outputs the models of this module read as they are: a job may be migrated from them."""

MAX_RULES = 8
"""Most rules of one clause."""

Currency = Annotated[str, Field(pattern=r"^[A-Z]{3}$")]
Condition = Annotated[str, Field(min_length=1, max_length=2000)]
Quote = Annotated[str, Field(min_length=1, max_length=4000)]
ItemEcho = Annotated[str, Field(max_length=80)]
TenantEcho = Annotated[str, Field(max_length=80)]
QuotedFrom = Annotated[int, Field(strict=True, ge=0)] | None
"""The ordinal of the context clause that holds a quote, where it is not the clause itself."""


class Decision(StrEnum):
    """What a rule decides where its condition holds."""

    ALLOW = "allow"
    DENY = "deny"
    REQUIRE_APPROVAL = "require_approval"
    REQUIRE_RECEIPT = "require_receipt"
    FLAG = "flag"
    REIMBURSE_UP_TO = "reimburse_up_to"


class Modality(StrEnum):
    """How strongly the clause speaks; a `should` clause may flag, never deny."""

    MUST = "must"
    SHOULD = "should"
    MAY = "may"


class TestKind(StrEnum):
    """Why a test case exists."""

    __test__ = False

    NORMAL = "normal"
    BOUNDARY = "boundary"
    NEGATIVE = "negative"
    EXCEPTION = "exception"
    MUTATION = "mutation"


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class MoneyParam(_Frozen):
    """A named amount of the clause, in minor units; `quote` is the words that state it.

    Where they stand in a clause of the context, `clause_ordinal` names it, and they are its whole sentences.
    """

    type: Literal["money"]
    currency: Currency
    minor: Annotated[int, Field(strict=True, ge=0, le=MAX_MINOR)]
    quote: Quote
    clause_ordinal: QuotedFrom = None


class IntParam(_Frozen):
    """A named whole number of the clause (days, persons, percent).

    In a unit that is known it may stand in the quote in another one: 120 minutes as "two hours".
    """

    type: Literal["int"]
    value: Annotated[int, Field(strict=True, ge=-(10**12), le=10**12)]
    unit: str | None = None
    quote: Quote
    clause_ordinal: QuotedFrom = None


class RateParam(_Frozen):
    """A named price per unit, in micros of the major unit (0.545 USD per mile is 545,000).

    An amount made from it is cut to whole minor units, towards zero.
    """

    type: Literal["rate"]
    currency: Currency
    micros: Annotated[int, Field(strict=True, ge=0, le=10**12)]
    per: Annotated[str, Field(pattern=r"^[a-z][a-z_]{0,31}$")]
    quote: Quote
    clause_ordinal: QuotedFrom = None


Param = Annotated[MoneyParam | IntParam | RateParam, Field(discriminator="type")]
ParamName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")]


class ExceptionDraft(_Frozen):
    """A case in which the rule does not hold, with the words that say so.

    Where they stand in a clause of the context, `clause_ordinal` names it, and they are its whole sentences.
    """

    condition: Condition
    quote: Quote
    clause_ordinal: QuotedFrom = None


class RuleDraft(_Frozen):
    """A rule as a provider drafts it; untrusted.

    `applies_when` and `unless` are conditions of the rule language; parameters are read as `p.<name>`.
    `cap` is a money expression, present exactly for `reimburse_up_to`.
    """

    quote: Quote
    modality: Modality
    subject: Annotated[str, Field(min_length=1, max_length=64)]
    decision: Decision
    applies_when: Condition
    cap: Condition | None = None
    params: Annotated[dict[ParamName, Param], Field(max_length=16)] = {}
    unless: Annotated[tuple[ExceptionDraft, ...], Field(max_length=8)] = ()
    approver: Annotated[str, Field(min_length=1, max_length=120)] | None = None
    priority: Annotated[int, Field(strict=True, ge=0, le=100)] = 50
    effective_from: date | None = None
    effective_to: date | None = None

    @model_validator(mode="after")
    def _shape(self) -> "RuleDraft":
        if (self.decision is Decision.REIMBURSE_UP_TO) != (self.cap is not None):
            raise ValueError("a cap belongs to reimburse_up_to and only there")
        if self.modality is Modality.SHOULD and self.decision is Decision.DENY:
            raise PydanticCustomError("should_denies", "a should clause may flag, never deny")
        return self


class NoRuleDraft(_Frozen):
    """A provider's statement that a clause gives no rule, with a typed reason."""

    reason: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
    detail: Annotated[str, Field(max_length=500)] = ""


class FactProposal(_Frozen):
    """A fact that the clause speaks of and the vocabulary lacks; for a person to take up, never used by a rule."""

    name: FactName
    type: Literal["bool", "int", "money", "enum"]
    description: Annotated[str, Field(min_length=1, max_length=200)]
    quote: Annotated[str, Field(min_length=1, max_length=500)]


class RulesReply(_Frozen):
    """What a provider returns for one clause: rules, or the reason why there are none.

    `clause_id` and `tenant` may repeat which item and whose it was asked for; they must then be these.
    """

    rules: Annotated[tuple[RuleDraft, ...], Field(max_length=MAX_RULES)] = ()
    no_rule: NoRuleDraft | None = None
    proposed_facts: Annotated[tuple[FactProposal, ...], Field(max_length=5)] = ()
    clause_id: ItemEcho | None = None
    tenant: TenantEcho | None = None

    @model_validator(mode="after")
    def _one_of(self) -> "RulesReply":
        if bool(self.rules) == (self.no_rule is not None):
            raise ValueError("either rules or no_rule, exactly one of them")
        return self


class TestCase(_Frozen):
    """One case: facts (those not named keep the vocabulary's default) and the decision that the clause demands."""

    __test__ = False

    name: Annotated[str, Field(min_length=1, max_length=120)]
    kind: TestKind
    facts: Annotated[dict[FactName, FactValue], Field(max_length=64)]
    expect: Decision | Literal["no_match"]
    expect_cap_minor: Annotated[int, Field(strict=True, ge=0, le=MAX_MINOR)] | None = None


class TestsReply(_Frozen):
    """What a provider returns when it is asked for the tests of one clause; it never sees the rule."""

    __test__ = False

    tests: Annotated[tuple[TestCase, ...], Field(min_length=1, max_length=64)]
    clause_id: ItemEcho | None = None
    tenant: TenantEcho | None = None


class Source(_Frozen):
    """Where a quote stands: offsets into the canonical text, in code points."""

    clause_ordinal: int
    quote: Quote
    start: Annotated[StrictInt, Field(ge=0)]
    end: StrictInt

    @model_validator(mode="after")
    def _length(self) -> "Source":
        if self.end - self.start != len(self.quote):
            raise ValueError("end - start must equal the length of the quote")
        return self


class ExceptionClause(_Frozen):
    """An accepted exception with its place in the text."""

    condition: Condition
    source: Source


class Rule(_Frozen):
    """A rule whose schema, vocabulary and grounding were checked; its id is ours, never the provider's.

    `depends_on` are the ordinals of the clauses that were given to the provider as context: when one of them changes,
    the rule has to be looked at again.
    """

    id: Annotated[str, Field(pattern=r"^[a-z0-9_-]{1,80}$")]
    source: Source
    modality: Modality
    subject: StrictStr
    decision: Decision
    applies_when: Condition
    cap: Condition | None = None
    params: dict[ParamName, Param] = {}
    unless: tuple[ExceptionClause, ...] = ()
    approver: str | None = None
    priority: int = 50
    effective_from: date | None = None
    effective_to: date | None = None
    depends_on: tuple[int, ...] = ()

    @property
    def cited(self) -> frozenset[int]:
        """The ordinals of the other clauses whose words the rule quotes; each is among those it depends on."""
        exceptions = {item.source.clause_ordinal for item in self.unless}
        params = {param.clause_ordinal for param in self.params.values() if param.clause_ordinal is not None}
        return frozenset((exceptions | params) - {self.source.clause_ordinal})


class RuleOutput(_Frozen):
    """The accepted output of one `generate_rules` item: its rules, or the reason why the clause has none.

    `proposed_facts` are a provider's words to the reviewer; nothing reads them as facts.
    """

    rules: tuple[Rule, ...] = ()
    no_rule: NoRuleDraft | None = None
    proposed_facts: tuple[FactProposal, ...] = ()


class SuiteOutput(_Frozen):
    """The accepted output of one `generate_tests` item: the cases of a clause, or the reason why it has none."""

    tests: tuple[TestCase, ...] = ()
    no_tests: NoRuleDraft | None = None
