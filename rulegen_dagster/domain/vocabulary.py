"""Vocabulary: the typed facts that a rule may read, and the phrases of a policy that name them."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, model_validator

from rulegen_dagster.domain.money import MAX_MINOR

FactName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+$", max_length=80)]
FactValue = StrictBool | StrictInt | StrictStr


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class BoolFact(_Frozen):
    """A yes-or-no fact."""

    type: Literal["bool"]
    description: str
    phrases: tuple[str, ...] = ()
    default: StrictBool = False


class IntFact(_Frozen):
    """A whole number with bounds (both inclusive) and a unit."""

    type: Literal["int"]
    min: StrictInt
    max: StrictInt
    unit: str | None = None
    description: str
    phrases: tuple[str, ...] = ()
    default: StrictInt = 0

    @model_validator(mode="after")
    def _default_in_range(self) -> "IntFact":
        if not self.min <= self.default <= self.max:
            raise ValueError(f"default {self.default} is outside {self.min}..{self.max}")
        return self


class MoneyFact(_Frozen):
    """An amount in minor units of the ruleset's currency."""

    type: Literal["money"]
    min: Annotated[int, Field(strict=True, ge=0)] = 0
    max: Annotated[int, Field(strict=True, ge=0, le=MAX_MINOR)] = MAX_MINOR
    description: str
    phrases: tuple[str, ...] = ()
    default: Annotated[int, Field(strict=True, ge=0)] = 0


class EnumFact(_Frozen):
    """One of a closed set of values; `values` maps each to the phrases that name it."""

    type: Literal["enum"]
    values: Annotated[dict[StrictStr, tuple[str, ...]], Field(min_length=1, max_length=64)]
    description: str
    phrases: tuple[str, ...] = ()
    default: StrictStr

    @model_validator(mode="after")
    def _default_is_a_value(self) -> "EnumFact":
        if self.default not in self.values:
            raise ValueError(f"default {self.default!r} is not one of the values")
        return self


Fact = Annotated[BoolFact | IntFact | MoneyFact | EnumFact, Field(discriminator="type")]


class Vocabulary(_Frozen):
    """A versioned pack of facts; rules read nothing else.

    `subjects` are the things a decision is about (meals, lodging, claim); two caps on one subject conflict.
    """

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,31}$")]
    version: Annotated[int, Field(strict=True, ge=1)]
    description: str
    subjects: Annotated[tuple[StrictStr, ...], Field(min_length=1)]
    facts: Annotated[dict[FactName, Fact], Field(min_length=1, max_length=256)]

    def defaults(self) -> Mapping[str, bool | int | str]:
        """Return the neutral value of each fact; a test case names only what it changes."""
        return {name: fact.default for name, fact in self.facts.items()}
