"""The values of a reading: what a clause demands, of what, from which amount or time on, and when not."""

from dataclasses import dataclass
from enum import StrEnum

from rulegen_dagster.domain.rule import Modality

AMOUNT = "expense.amount_minor"
RECEIPT = "expense.has_receipt"
DAYS_SINCE_EXPENSE = "claim.days_since_expense"
DAYS_SINCE_TRIP = "claim.days_since_trip_end"
DAYS_AHEAD = "trip.booked_days_ahead"
FLIGHT_HOURS = "flight.duration_hours"
MILES = "travel.distance_miles"
KILOMETRES = "travel.distance_km"
CATEGORY = "expense.category"


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

    The number is in the fact's own unit, so that a rule needs no other number than the clause states. `currency` is
    None for a plain number.
    """

    fact: str
    comparator: Comparator
    value: int
    unit: str
    currency: str | None = None
    quote: str


@dataclass(frozen=True, kw_only=True)
class Rate:
    """A price per unit of distance, in micros of the major unit."""

    distance_fact: str
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

    `needs_amount` asks for an amount above zero where the clause names no threshold.
    """

    demand: Demand
    modality: Modality
    facts: tuple[FactIs, ...]
    threshold: Threshold | None = None
    rate: Rate | None = None
    approver: str | None = None
    needs_amount: bool = False
    exceptions: tuple[ExceptionReading, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Abstention:
    """Why a clause gives no rule: a stable reason, and a few words for people."""

    reason: str
    detail: str = ""
