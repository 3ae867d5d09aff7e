"""The endpoint of a model: address, key and output mode, checked before anything is sent."""

from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, urlsplit

from pydantic import SecretStr

from rulegen_dagster.domain.errors import ProviderConfigError
from rulegen_dagster.domain.provider_settings import OutputMode, ProviderSettings
from rulegen_dagster.providers.registry import ANTHROPIC, OPENAI_COMPATIBLE

_DEFAULT_URLS: Final = {
    OPENAI_COMPATIBLE: "https://api.openai.com/v1",
    ANTHROPIC: "https://api.anthropic.com",
}
_OPENAI_HOSTS: Final = (".openai.com", ".openai.azure.com", ".services.ai.azure.com")
_ANTHROPIC_HOSTS: Final = (".anthropic.com",)
_NO_KEY: Final = "no-key"
_MAX_KEY: Final = 8_192


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where a model is asked, and how; the key stays out of every text that is made of this value."""

    provider: str
    model: str
    base_url: str
    key: SecretStr = field(repr=False)
    mode: OutputMode

    @property
    def is_anthropic(self) -> bool:
        """Whether it speaks the protocol of Anthropic."""
        return self.provider == ANTHROPIC

    @property
    def is_openai(self) -> bool:
        """Whether it is OpenAI's own service, or Azure's; others take older names of some settings."""
        return not self.is_anthropic and _is_of(urlsplit(self.base_url), _OPENAI_HOSTS)


def endpoint_of(provider: str, settings: ProviderSettings) -> Endpoint:
    """Return the endpoint that the settings name. Raises `ProviderConfigError`, with no key in its message.

    The mode may still be `auto`: what a model of Anthropic can do is known to its client alone.
    """
    if not settings.model:
        raise ProviderConfigError(f"the provider {provider} needs a model; set RULEGEN_MODEL to its name")
    base_url = _checked_url(settings.base_url or _DEFAULT_URLS[provider])
    found = urlsplit(base_url)
    key = _key_of(settings)
    if key is None:
        if _is_of(found, (*_OPENAI_HOSTS, *_ANTHROPIC_HOSTS)):
            raise ProviderConfigError(
                f"{found.hostname} needs a key; set RULEGEN_API_KEY, or RULEGEN_API_KEY_FILE to a file that holds it"
            )
        # A server of one's own mostly takes none, and the client wants one.
        key = SecretStr(_NO_KEY)
    mode = settings.output_mode
    if provider == ANTHROPIC and mode is OutputMode.JSON_OBJECT:
        raise ProviderConfigError("anthropic has no output mode json_object; set RULEGEN_OUTPUT_MODE to auto")
    endpoint = Endpoint(provider=provider, model=settings.model, base_url=base_url, key=key, mode=mode)
    if mode is OutputMode.AUTO and provider != ANTHROPIC:
        # Some servers answer 500 to a native schema; all that are known take the object with the schema as a hint.
        chosen = OutputMode.NATIVE if endpoint.is_openai else OutputMode.JSON_OBJECT
        return Endpoint(provider=provider, model=settings.model, base_url=base_url, key=key, mode=chosen)
    return endpoint


def _checked_url(text: str) -> str:
    try:
        found = urlsplit(text.strip())
        port = found.port
    except ValueError:
        raise ProviderConfigError("RULEGEN_BASE_URL is no address; give one like http://127.0.0.1:8000/v1") from None
    if found.scheme not in {"http", "https"} or not found.hostname or port == 0:
        raise ProviderConfigError("RULEGEN_BASE_URL is no http or https address; give one like https://host/v1")
    if found.username is not None or found.password is not None:
        raise ProviderConfigError("RULEGEN_BASE_URL holds credentials; give the key as RULEGEN_API_KEY instead")
    if found.query or found.fragment:
        raise ProviderConfigError("RULEGEN_BASE_URL has a query or a fragment; give the address without it")
    return text.strip().rstrip("/")


def _is_of(address: SplitResult, hosts: tuple[str, ...]) -> bool:
    return f".{address.hostname or ''}".endswith(hosts)


def _key_of(settings: ProviderSettings) -> SecretStr | None:
    given = settings.api_key.get_secret_value() if settings.api_key is not None else None
    if settings.api_key_file is not None:
        if given:
            raise ProviderConfigError("RULEGEN_API_KEY and RULEGEN_API_KEY_FILE are both set; keep one of them")
        name = settings.api_key_file.name
        try:
            with settings.api_key_file.open(encoding="utf-8") as file:
                given = file.read(_MAX_KEY + 1)
        except UnicodeDecodeError:
            raise ProviderConfigError(f"the key file {name} is not text") from None
        except OSError as error:
            raise ProviderConfigError(f"the key file {name} cannot be read: {error.strerror}") from error
        if not given.strip():
            raise ProviderConfigError(f"the key file {name} is empty")
    given = (given or "").strip()
    if len(given) > _MAX_KEY or not given.isascii() or not given.isprintable():
        raise ProviderConfigError("the key is too long, or has characters that no header takes; is it the right one?")
    return SecretStr(given) if given else None
