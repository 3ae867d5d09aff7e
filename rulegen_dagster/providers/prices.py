"""Prices: what a call costs in micro-USD, by the settings or by a list price; an unknown price stays unknown."""

from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Final

from rulegen_dagster.domain.errors import ProviderConfigError
from rulegen_dagster.domain.provider_settings import ProviderSettings

_MILLION: Final = 1_000_000
_PROBE: Final = 1_000


@dataclass(frozen=True, kw_only=True)
class TokenUsage:
    """What a call used; the cached tokens are part of `tokens_in`."""

    tokens_in: int
    tokens_out: int
    cache_read: int = 0
    cache_write: int = 0


@dataclass(frozen=True, kw_only=True)
class TokenPrice:
    """Micro-USD for a million tokens; a cached token counts like any other."""

    micros_in: int
    micros_out: int

    def cost_micros(self, tokens_in: int, tokens_out: int) -> int:
        """Return the cost of so many tokens, rounded to the nearest micro-USD (half up)."""
        return (tokens_in * self.micros_in + tokens_out * self.micros_out + _MILLION // 2) // _MILLION


class Prices:
    """The prices of one model at one endpoint: those of the settings, else a list price that came with the release."""

    def __init__(self, settings: ProviderSettings, *, model: str, base_url: str) -> None:
        """Take the settings' prices. Raises `ProviderConfigError` where only one of the two is given."""
        if (settings.price_in is None) != (settings.price_out is None):
            raise ProviderConfigError("RULEGEN_PRICE_IN and RULEGEN_PRICE_OUT belong together; give both or none")
        self._model = model
        self._base_url = base_url
        self._given = (
            TokenPrice(micros_in=settings.price_in, micros_out=settings.price_out)
            if settings.price_in is not None and settings.price_out is not None
            else None
        )

    def estimate(self) -> TokenPrice | None:
        """Return the price to reckon with before a call; None where it is unknown.

        A list price is that of a short call without a cache; models that charge less for some tokens cost less.
        """
        if self._given is not None:
            return self._given
        price_in = self._listed(self._model, TokenUsage(tokens_in=_PROBE, tokens_out=0))
        price_out = self._listed(self._model, TokenUsage(tokens_in=0, tokens_out=_PROBE))
        if price_in is None or price_out is None:
            return None
        return TokenPrice(micros_in=_micros(price_in * _PROBE), micros_out=_micros(price_out * _PROBE))

    def cost_micros(self, usage: TokenUsage, *, reported_model: str | None = None) -> int | None:
        """Return what a call cost; None where the price is unknown."""
        if self._given is not None:
            return self._given.cost_micros(usage.tokens_in, usage.tokens_out)
        listed = self._listed(reported_model, usage) if reported_model else None
        if listed is None:
            listed = self._listed(self._model, usage)
        return None if listed is None else _micros(listed)

    def _listed(self, model: str, usage: TokenUsage) -> Decimal | None:
        """Return a list price in USD; only that of the endpoint's own host, for others may serve the same name."""
        from genai_prices import Usage, calc_price  # noqa: PLC0415

        try:
            found = calc_price(
                Usage(
                    input_tokens=usage.tokens_in,
                    output_tokens=usage.tokens_out,
                    cache_read_tokens=usage.cache_read,
                    cache_write_tokens=usage.cache_write,
                ),
                model,
                provider_api_url=self._base_url,
            )
        except (LookupError, ValueError):
            return None
        return found.total_price


def _micros(dollars: Decimal) -> int:
    return int((dollars * _MILLION).to_integral_value(ROUND_HALF_UP))
