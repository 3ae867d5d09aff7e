"""The registry of providers: a name, as a job's behaviour keeps it, to an object that answers calls."""

from collections.abc import Callable
from pathlib import Path

from rulegen_dagster.domain.errors import ProviderConfigError
from rulegen_dagster.providers.port import NOT_A_MODEL, Provider


# A provider is imported by whoever opens it: a worker that goes on after a crash needs one of them, most commands none.
def _pattern(_script: Path | None) -> Provider:
    from rulegen_dagster.providers.pattern import PatternProvider  # noqa: PLC0415

    return PatternProvider()


def _scripted(script: Path | None) -> Provider:
    from rulegen_dagster.providers.scripted import ScriptedProvider, load_script  # noqa: PLC0415

    return ScriptedProvider(load_script(script))


_PROVIDERS: dict[str, Callable[[Path | None], Provider]] = {
    "rulegen-pattern": _pattern,
    "rulegen-scripted": _scripted,
}

_WITHOUT_A_MODEL = frozenset({"rulegen-pattern", "rulegen-scripted"})

PROVIDER_NAMES = tuple(_PROVIDERS)
"""Every provider that this release can open."""


def open_provider(name: str, *, script: Path | None) -> Provider:
    """Open a provider by name; there is no fallback from one to another.

    `script` is read by `rulegen-scripted` alone. Raises `ProviderConfigError`.
    """
    if name not in _PROVIDERS:
        raise ProviderConfigError(f"there is no provider '{name[:64]}'; this release has {', '.join(PROVIDER_NAMES)}")
    return _PROVIDERS[name](script)


def is_language_model(name: str) -> bool:
    """Tell whether a provider's outputs come from a language model.

    An unknown name counts as one: a label that says otherwise has to be earned.
    """
    return name not in _WITHOUT_A_MODEL


def label_of(name: str) -> str | None:
    """Return the label to show beside a provider's outputs, without opening it (its script may be gone by now)."""
    return None if is_language_model(name) else NOT_A_MODEL
