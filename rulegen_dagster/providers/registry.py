"""The registry of providers: a name, as a job's behaviour keeps it, to an object that answers calls."""

from collections.abc import Callable, Mapping

from rulegen_dagster.domain.errors import ProviderConfigError
from rulegen_dagster.domain.prompt import Prompt
from rulegen_dagster.domain.provider_settings import ProviderSettings
from rulegen_dagster.providers.port import NOT_A_MODEL, Provider

ANTHROPIC = "anthropic"
OPENAI_COMPATIBLE = "openai-compatible"

_Prompts = Mapping[str, Prompt] | None


# A provider is imported by whoever opens it: a worker that goes on after a crash needs one of them, most commands none.
def _pattern(_settings: ProviderSettings, _prompts: _Prompts) -> Provider:
    from rulegen_dagster.providers.pattern import PatternProvider  # noqa: PLC0415

    return PatternProvider()


def _scripted(settings: ProviderSettings, _prompts: _Prompts) -> Provider:
    from rulegen_dagster.providers.scripted import ScriptedProvider, load_script  # noqa: PLC0415

    return ScriptedProvider(load_script(settings.script))


def _anthropic(settings: ProviderSettings, prompts: _Prompts) -> Provider:
    from rulegen_dagster.providers.model import open_model  # noqa: PLC0415

    return open_model(ANTHROPIC, settings, prompts)


def _openai_compatible(settings: ProviderSettings, prompts: _Prompts) -> Provider:
    from rulegen_dagster.providers.model import open_model  # noqa: PLC0415

    return open_model(OPENAI_COMPATIBLE, settings, prompts)


_PROVIDERS: dict[str, Callable[[ProviderSettings, _Prompts], Provider]] = {
    "rulegen-pattern": _pattern,
    "rulegen-scripted": _scripted,
    OPENAI_COMPATIBLE: _openai_compatible,
    ANTHROPIC: _anthropic,
}

_WITHOUT_A_MODEL = frozenset({"rulegen-pattern", "rulegen-scripted"})

PROVIDER_NAMES = tuple(_PROVIDERS)
"""Every provider that this release can open."""


def open_provider(name: str, settings: ProviderSettings, prompts: Mapping[str, Prompt] | None = None) -> Provider:
    """Open a provider by name; there is no fallback from one to another.

    `prompts` are those that a job froze, by task; without them a model is asked with the release's own. Raises
    `ProviderConfigError`.
    """
    if name not in _PROVIDERS:
        raise ProviderConfigError(f"there is no provider '{name[:64]}'; this release has {', '.join(PROVIDER_NAMES)}")
    return _PROVIDERS[name](settings, prompts)


def is_language_model(name: str) -> bool:
    """Tell whether a provider's outputs come from a language model.

    An unknown name counts as one: a label that says otherwise has to be earned.
    """
    return name not in _WITHOUT_A_MODEL


def label_of(name: str) -> str | None:
    """Return the label to show beside a provider's outputs, without opening it (its script may be gone by now)."""
    return None if is_language_model(name) else NOT_A_MODEL
