"""Settings: the environment, read once into a frozen value."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from rulegen_dagster.domain.behaviour import ContextPolicy, ModelDrift
from rulegen_dagster.domain.deadline import MAX_DURATION_MS, DeadlinePolicy
from rulegen_dagster.domain.limits import Limits
from rulegen_dagster.domain.provider_settings import DEFAULT_MAX_TOKENS, OutputMode, ProviderSettings
from rulegen_dagster.domain.retry import RetryPolicy
from rulegen_dagster.telemetry.semconv import Profile


def _number_or_none(value: Any) -> Any:
    return None if value == "none" else value


Temperature = Annotated[float, Field(ge=0, le=2)]


class Settings(BaseSettings):
    """What the environment (`RULEGEN_…`) decides.

    `home` holds the ledger, blobs, uploads, published bundles and Dagster's own folder; a relative path counts from
    the current folder. Times are in ms, prices in micro-USD for a million tokens. `temperature` may be `none`: then a
    model is sent no such thing.
    """

    model_config = SettingsConfigDict(env_prefix="RULEGEN_", frozen=True, extra="ignore")

    home: Path = Path(".rulegen")
    # It may hold a password.
    database_url: str | None = Field(default=None, repr=False)
    provider: str = "rulegen-pattern"
    script: Path | None = None
    model: str | None = Field(default=None, min_length=1, max_length=200)
    base_url: str | None = None
    api_key: SecretStr | None = Field(default=None, repr=False)
    api_key_file: Path | None = None
    max_tokens: int = Field(default=DEFAULT_MAX_TOKENS, ge=16, le=1_000_000)
    temperature: Annotated[Temperature | None, BeforeValidator(_number_or_none)] = 0.0
    output_mode: OutputMode = OutputMode.AUTO
    price_in: int | None = Field(default=None, ge=0, le=10**12)
    price_out: int | None = Field(default=None, ge=0, le=10**12)
    vocabulary: str = "expense"
    policy: str = "default"
    context_policy: ContextPolicy = ContextPolicy.REQUIRED
    model_drift: ModelDrift = ModelDrift.RECORD
    slots: int = Field(default=8, ge=1, le=256)
    lease_ms: int = Field(default=15_000, ge=500)
    call_timeout_ms: int = Field(default=60_000, ge=100)
    grace_ms: int = Field(default=10_000, ge=0, le=3_600_000)
    max_attempts: int = Field(default=3, ge=1, le=20)
    first_retry_ms: int = Field(default=1_000, ge=0)
    max_retry_ms: int = Field(default=60_000, ge=0)
    deadline_ms: int = Field(default=7 * 24 * 3_600_000, ge=1, le=MAX_DURATION_MS)
    completion_margin_ms: int = Field(default=2_000, ge=0, le=MAX_DURATION_MS)
    least_call_ms: int = Field(default=1_000, ge=1, le=MAX_DURATION_MS)
    extraction_limit: int | None = Field(default=None, ge=0)
    generation_limit: int | None = Field(default=None, ge=0)
    validation_limit: int | None = Field(default=None, ge=0)
    action_limit: int | None = Field(default=None, ge=0)
    max_upload_bytes: int = Field(default=2_000_000, ge=1)
    budget_policy: Literal["wait", "stop"] = "wait"
    range_size: int = Field(default=100, ge=1, le=1_000)
    trace_file: Path | None = None
    trace_profile: Profile = Profile.OTEL_1_36

    @property
    def home_path(self) -> Path:
        """The home folder as an absolute path."""
        return self.home.expanduser().absolute()

    @property
    def ledger_url(self) -> str:
        """The database URL of the ledger: the one given, or SQLite in the home folder."""
        return self.database_url or f"sqlite:///{self.home_path / 'ledger.sqlite3'}"

    @property
    def blobs_path(self) -> Path:
        """Where content-addressed blobs are kept."""
        return self.home_path / "blobs"

    @property
    def uploads_path(self) -> Path:
        """Where `new_uploads` looks: one folder for each tenant."""
        return self.home_path / "uploads"

    @property
    def published_path(self) -> Path:
        """Where bundles are published."""
        return self.home_path / "published"

    @property
    def workers_path(self) -> Path:
        """Where workers hold their locks, for others on this host."""
        return self.home_path / "workers"

    @property
    def dagster_home(self) -> Path:
        """Dagster's own folder; never shared with the ledger's file."""
        return self.home_path / "dagster"

    @property
    def provider_settings(self) -> ProviderSettings:
        """With what a provider is opened."""
        return ProviderSettings(
            script=self.script,
            model=self.model,
            base_url=self.base_url,
            api_key=self.api_key,
            api_key_file=self.api_key_file,
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            output_mode=self.output_mode,
            price_in=self.price_in,
            price_out=self.price_out,
        )

    @property
    def stops_when_spent(self) -> bool:
        """Whether a job ends where its budget is spent, and does not wait for more."""
        return self.budget_policy == "stop"

    @property
    def retry_policy(self) -> RetryPolicy:
        """The schedule of retries."""
        return RetryPolicy(
            max_attempts=self.max_attempts, first_delay_ms=self.first_retry_ms, max_delay_ms=self.max_retry_ms
        )

    @property
    def deadline_policy(self) -> DeadlinePolicy:
        """What a job is given, and what has to be left of it for another call."""
        return DeadlinePolicy(
            given_ms=self.deadline_ms, margin_ms=self.completion_margin_ms, least_call_ms=self.least_call_ms
        )

    @property
    def limits(self) -> Limits:
        """How many items may be in flight at once, over all processes of the ledger that are given the same."""
        return Limits(
            extraction=self.extraction_limit,
            generation=self.generation_limit,
            validation=self.validation_limit,
            actions=self.action_limit,
        )
