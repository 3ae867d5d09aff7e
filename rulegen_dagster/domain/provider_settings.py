"""Provider settings: with what a provider is opened, whoever decided it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from pydantic import SecretStr

DEFAULT_MAX_TOKENS = 4_096
"""Most tokens of one answer, where nobody says otherwise."""


class OutputMode(StrEnum):
    """How a model is held to the shape of its answer: the rungs of a ladder, and `auto`; a closed set."""

    #: The highest rung that the endpoint is known to have.
    AUTO = "auto"
    #: The endpoint enforces the JSON schema.
    NATIVE = "native"
    #: The endpoint enforces JSON, and takes the schema as a hint.
    JSON_OBJECT = "json_object"
    #: The prompt alone asks for it.
    PROMPTED = "prompted"


@dataclass(frozen=True, kw_only=True)
class ProviderSettings:
    """What a provider is opened with; each reads what concerns it.

    `script` is for `rulegen-scripted`, the rest for models. The key stays out of every text that is made of this value;
    `api_key_file` names a file that holds it and nothing else. Prices are micro-USD for a million tokens; None means
    that a list price is looked up.
    """

    script: Path | None = None
    model: str | None = None
    base_url: str | None = None
    api_key: SecretStr | None = field(default=None, repr=False)
    api_key_file: Path | None = None
    max_tokens: int = DEFAULT_MAX_TOKENS
    temperature: float | None = 0.0
    output_mode: OutputMode = OutputMode.AUTO
    price_in: int | None = None
    price_out: int | None = None


NOT_SENT = "not sent"
"""What a behaviour says of a temperature that its model is not sent."""


def as_frozen(
    current: ProviderSettings, *, model_id: str, settings: Mapping[str, str | int | bool]
) -> ProviderSettings:
    """Return the settings of this process with what a job froze put over them, as far as it can be.

    `settings` are those of the frozen identity. Key, prices and script stay current, and so does the address: a key is
    never sent to a host that only some earlier job named. Where the addresses differ, the identities do.
    """
    max_tokens, temperature, mode = (settings.get(name) for name in ("max_tokens", "temperature", "output_mode"))
    if not isinstance(max_tokens, int) or not isinstance(temperature, str) or mode not in set(OutputMode):
        return current
    return replace(
        current,
        model=model_id,
        max_tokens=max_tokens,
        temperature=None if temperature == NOT_SENT else float(temperature),
        output_mode=OutputMode(mode),
    )
