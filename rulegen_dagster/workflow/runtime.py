"""The runtime of one process: settings, ledger, blobs, and who it is."""

import os
import random
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass, field

from rulegen_dagster.ledger.blobs import BlobStore
from rulegen_dagster.ledger.claims import Claimant
from rulegen_dagster.ledger.database import Clock
from rulegen_dagster.ledger.store import Ledger, open_ledger
from rulegen_dagster.providers.port import Provider
from rulegen_dagster.providers.registry import open_provider
from rulegen_dagster.settings import Settings


def new_token() -> str:
    """Return a fresh claim token."""
    return secrets.token_hex(16)


def new_worker_name() -> str:
    """Return a name for this process in the ledger; never reused, so that no restart inherits a lease."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """What the use cases work with; close it when the process is done."""

    settings: Settings
    ledger: Ledger
    blobs: BlobStore
    worker: str
    tokens: Callable[[], str] = new_token
    # Spreads retries in time; nothing secret depends on it.
    jitter: Callable[[], float] = field(default=random.random)
    run_id: str | None = None

    @property
    def claimant(self) -> Claimant:
        """Who this process is to the ledger."""
        return Claimant(worker=self.worker, lease_ms=self.settings.lease_ms, run_id=self.run_id)

    def provider(self, name: str) -> Provider:
        """Open the provider that a job's behaviour names. Raises `ProviderConfigError`."""
        return open_provider(name, script=self.settings.script)

    def close(self) -> None:
        """Close the ledger."""
        self.ledger.close()


def open_runtime(settings: Settings, *, clock: Clock | None = None, run_id: str | None = None) -> Runtime:
    """Open the ledger and the blob store that the settings name.

    Raises `InputError` for settings that cannot be used, `LedgerError` where the ledger cannot be opened.
    """
    return Runtime(
        settings=settings,
        ledger=open_ledger(settings.ledger_url, settings.retry_policy, clock),
        blobs=BlobStore(settings.blobs_path),
        worker=new_worker_name(),
        run_id=run_id,
    )
