"""What the names of a rule mean: facts of a vocabulary and parameters, with their types and bounds."""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from typing import Final

from rulegen_dagster.domain.errors import RuleLanguageError
from rulegen_dagster.domain.rule import IntParam, MoneyParam, Param, RateParam
from rulegen_dagster.domain.vocabulary import BoolFact, EnumFact, Fact, IntFact, MoneyFact, Vocabulary

PARAM_PREFIX: Final = "p."
INT64_MAX: Final = 2**63 - 1


class Kind(StrEnum):
    """The types of the rule language; the text is what a message calls them."""

    BOOL = "a bool"
    INT = "a number"
    MONEY = "money"
    RATE = "a rate"
    MICROS = "micros of money"
    ENUM = "an enum"
    STRING = "a string"


@dataclass(frozen=True, slots=True)
class ValueType:
    """The type of an expression: its kind, the interval of a number, the fact and values of an enum."""

    kind: Kind
    low: int = 0
    high: int = 0
    fact: str = ""
    values: tuple[str, ...] = ()


class Symbols:
    """What the names of one rule mean: the facts of a vocabulary and the rule's own parameters.

    All amounts of a rule are in one currency; money facts take it. Raises `RuleLanguageError` with the code
    `mixed_currencies` where the parameters name two.
    """

    def __init__(self, vocabulary: Vocabulary, params: Mapping[str, Param]) -> None:
        """Keep both tables and find the rule's currency."""
        currencies = sorted({param.currency for param in params.values() if not isinstance(param, IntParam)})
        if len(currencies) > 1:
            raise RuleLanguageError("mixed_currencies", f"one rule names {' and '.join(currencies)}")
        self.vocabulary = vocabulary
        self.params = params
        self.currency = currencies[0] if currencies else None

    def type_of(self, name: str, position: int | None = None) -> ValueType:
        """Return the type of a fact or parameter; raises `unknown_fact` or `undeclared_parameter`."""
        if name.startswith(PARAM_PREFIX):
            param = self.params.get(name.removeprefix(PARAM_PREFIX))
            if param is None:
                raise RuleLanguageError("undeclared_parameter", f"{name[:60]} is not declared in params", position)
            return _param_type(param)
        fact = self.vocabulary.facts.get(name)
        if fact is None:
            raise unknown_fact(name, self.vocabulary, position)
        return fact_type(name, fact)

    def parameter_values(self) -> dict[str, int]:
        """Return the value of each parameter under the name that a condition reads."""
        return {PARAM_PREFIX + name: param_value(param) for name, param in self.params.items()}


def unknown_fact(name: str, vocabulary: Vocabulary, position: int | None = None) -> RuleLanguageError:
    """Return the error for a name that the vocabulary lacks, with its nearest neighbour."""
    near = get_close_matches(name[:80], vocabulary.facts, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return RuleLanguageError("unknown_fact", f"the vocabulary has no fact {name[:60]!a}{hint}", position)


def unknown_enum_value(value: str, fact: str, values: tuple[str, ...], position: int | None) -> RuleLanguageError:
    """Return the error for a value that an enum lacks, with its nearest neighbour."""
    near = get_close_matches(value[:80], values, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return RuleLanguageError("unknown_enum_value", f"{value[:60]!a} is not a value of {fact}{hint}", position)


def fact_type(name: str, fact: Fact) -> ValueType:
    """Return the type of a fact, with its bounds or values."""
    match fact:
        case BoolFact():
            return ValueType(Kind.BOOL)
        case IntFact(min=low, max=high):
            return ValueType(Kind.INT, low, high)
        case MoneyFact(min=low, max=high):
            return ValueType(Kind.MONEY, low, high)
        case EnumFact(values=values):
            return ValueType(Kind.ENUM, fact=name, values=tuple(values))


def param_value(param: Param) -> int:
    """Return the whole number that stands for a parameter: minor units, a count, or micros."""
    match param:
        case MoneyParam(minor=value) | IntParam(value=value) | RateParam(micros=value):
            return value


def _param_type(param: Param) -> ValueType:
    value = param_value(param)
    match param:
        case MoneyParam():
            return ValueType(Kind.MONEY, value, value)
        case RateParam():
            return ValueType(Kind.RATE, value, value)
        case IntParam():
            return ValueType(Kind.INT, value, value)
