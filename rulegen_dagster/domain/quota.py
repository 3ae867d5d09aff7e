"""Quotas: how many requests, tokens and how much money a scope may use."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Remaining:
    """What an answer said is left of the provider's own limits; None where it said nothing."""

    requests: int | None = None
    tokens: int | None = None
