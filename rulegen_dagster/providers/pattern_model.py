"""The values of a reading: what a clause demands, of what, from which amount or time on, and when not."""

from dataclasses import dataclass
from enum import StrEnum

from rulegen_dagster.domain.rule import Modality


class Demand(StrEnum):
    """What a clause demands."""

    LIMIT = "limit"
    RECEIPT = "receipt"
    APPROVAL = "approval"
    REFUSAL = "refusal"
    DEADLINE = "deadline"
    RATE = "rate"
    PERMISSION = "permission"


class Comparator(StrEnum):
    """When a threshold is passed."""

    ABOVE = ">"
    AT_LEAST = ">="
    BELOW = "<"
    AT_MOST = "<="

    def passed_by(self, value: int, threshold: int) -> bool:
        """Tell whether a value passes a threshold."""
        return {
            Comparator.ABOVE: value > threshold,
            Comparator.AT_LEAST: value >= threshold,
            Comparator.BELOW: value < threshold,
            Comparator.AT_MOST: value <= threshold,
        }[self]


@dataclass(frozen=True, kw_only=True)
class FactIs:
    """A fact that has one of some values."""

    fact: str
    values: tuple[str | bool, ...]


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """A number that a fact is compared with, as the clause states it.

    `value` is the number that the clause states and `factor` how many of the fact's units it counts (7 for weeks of a
    fact in days, else 1). `currency` is None for a plain number.
    """

    fact: str
    comparator: Comparator
    value: int
    unit: str
    currency: str | None = None
    factor: int = 1
    quote: str

    @property
    def limit(self) -> int:
        """The threshold in the fact's own unit."""
        return self.value * self.factor


@dataclass(frozen=True, kw_only=True)
class Share:
    """A percentage of an amount; the fact `whole` is what it is taken of.

    With a comparator the fact `part` is compared with that share. Without one the share is what is paid of the
    expense itself, and `part` and `whole` are the same.
    """

    part: str
    whole: str
    percent: int
    comparator: Comparator | None
    quote: str


@dataclass(frozen=True, kw_only=True)
class Rate:
    """A price per unit that a fact counts, in micros of the major unit."""

    measure: str
    per: str
    micros: int
    currency: str
    quote: str


@dataclass(frozen=True, kw_only=True)
class ExceptionReading:
    """A case in which the demand does not hold."""

    facts: tuple[FactIs, ...] = ()
    threshold: Threshold | None = None
    quote: str


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a clause demands, complete: nothing in the clause narrows it further.

    `spent` names amounts or counts of which one has to be above zero, where the clause names no threshold.
    """

    demand: Demand
    modality: Modality
    facts: tuple[FactIs, ...]
    threshold: Threshold | None = None
    share: Share | None = None
    rate: Rate | None = None
    approver: str | None = None
    spent: tuple[str, ...] = ()
    exceptions: tuple[ExceptionReading, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Abstention:
    """Why a clause gives no rule: a stable reason, and a few words for people."""

    reason: str
    detail: str = ""
