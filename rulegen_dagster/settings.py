"""Settings: the environment, read once into a frozen value."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from rulegen_dagster.domain.retry import RetryPolicy


class Settings(BaseSettings):
    """What the environment (`RULEGEN_…`) decides.

    `home` holds the ledger, blobs, uploads, published bundles and Dagster's own folder; a relative path counts from
    the current folder. Times are in ms.
    """

    model_config = SettingsConfigDict(env_prefix="RULEGEN_", frozen=True, extra="ignore")

    home: Path = Path(".rulegen")
    database_url: str | None = None
    provider: str = "rulegen-pattern"
    script: Path | None = None
    vocabulary: str = "expense"
    slots: int = Field(default=8, ge=1, le=256)
    lease_ms: int = Field(default=15_000, ge=500)
    call_timeout_ms: int = Field(default=60_000, ge=100)
    max_attempts: int = Field(default=3, ge=1, le=20)
    first_retry_ms: int = Field(default=1_000, ge=0)
    max_retry_ms: int = Field(default=60_000, ge=0)
    max_upload_bytes: int = Field(default=2_000_000, ge=1)
    range_size: int = Field(default=100, ge=1, le=1_000)

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
    def dagster_home(self) -> Path:
        """Dagster's own folder; never shared with the ledger's file."""
        return self.home_path / "dagster"

    @property
    def retry_policy(self) -> RetryPolicy:
        """The schedule of retries."""
        return RetryPolicy(
            max_attempts=self.max_attempts, first_delay_ms=self.first_retry_ms, max_delay_ms=self.max_retry_ms
        )
