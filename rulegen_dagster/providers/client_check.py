"""The check of the client for models: whether the installed one has what the classification of failures rests on."""

from importlib.metadata import PackageNotFoundError, version
from typing import Final

from rulegen_dagster.domain.errors import ProviderConfigError

_WANTED: Final = "pydantic-ai-slim[openai,anthropic]>=2.68,<3"
_CLASSES: Final = (
    "ModelRequestTimeout",
    "ModelConnectionError",
    "ModelTimeoutError",
    "ModelQuotaExceededError",
    "ModelRateLimitError",
    "ModelOverloadedError",
    "ModelUnavailableError",
    "ModelServerError",
    "ModelContextWindowExceededError",
    "ModelAuthenticationError",
    "ModelNotFoundError",
    "ModelRequestRejectedError",
    "ModelHTTPError",
    "UserError",
)
_SETTINGS: Final = ("max_retries", "request_timeout", "timeout", "max_tokens", "extra_headers", "extra_body")


def check_client() -> None:
    """Check that the installed client has what the classification rests on. Raises `ProviderConfigError`.

    An older one would lose classes of errors without a word, and would retry by itself.
    """
    try:
        from pydantic_ai import exceptions, settings  # noqa: PLC0415
    except ImportError as error:
        raise missing_client(error) from error
    missing = [name for name in _CLASSES if not hasattr(exceptions, name)]
    missing += [name for name in _SETTINGS if name not in settings.ModelSettings.__annotations__]
    if missing:
        raise ProviderConfigError(f"pydantic-ai-slim {_installed()} has no {', '.join(missing)}; install {_WANTED}")


def missing_client(error: ImportError) -> ProviderConfigError:
    """Return the error for a client that is not installed, whole or in part."""
    return ProviderConfigError(f"the client for models is missing ({error.name}); install {_WANTED}")


def _installed() -> str:
    try:
        return version("pydantic-ai-slim")
    except PackageNotFoundError:
        return "(unknown)"
