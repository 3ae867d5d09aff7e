"""The runtime of one process: settings, ledger, blobs, and who it is."""

import os
import random
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from rulegen_dagster.domain.clause import Clause, ContextEntry, ParsedSpec
from rulegen_dagster.domain.errors import LedgerError
from rulegen_dagster.ledger.blobs import BlobStore
from rulegen_dagster.ledger.claims import Claimant
from rulegen_dagster.ledger.database import Clock
from rulegen_dagster.ledger.store import Ledger, open_ledger
from rulegen_dagster.providers.port import Provider
from rulegen_dagster.providers.registry import open_provider
from rulegen_dagster.settings import Settings
from rulegen_dagster.specs.context import ContextIndex
from rulegen_dagster.workflow.presence import Presence


def new_token() -> str:
    """Return a fresh claim token.

    It begins with the time, so that the tokens of one transaction stand side by side in the attempts' index: each of
    them elsewhere would be a page of its own to write.
    """
    return f"{time.time_ns() // 1_000_000:012x}{secrets.token_hex(10)}"


def new_worker_name() -> str:
    """Return a name for this process in the ledger; never reused, so that no restart inherits a lease."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


class ContextSource(Protocol):
    """Finds the context of clauses in the text that it was made from."""

    def context_of(self, clause: Clause) -> tuple[ContextEntry, ...]:
        """Return the clauses that a clause needs. Raises `RetrievalError`."""
        ...


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
    # Seconds of a clock that nobody sets back; it measures what of a deadline a claim has used up.
    monotonic: Callable[[], float] = field(default=time.monotonic)
    # Indexes a job's own text, for the context of its clauses.
    index: Callable[[ParsedSpec], ContextSource] = ContextIndex
    run_id: str | None = None
    # None where the lease alone shall tell that a worker is lost.
    presence: Presence | None = None

    @property
    def claimant(self) -> Claimant:
        """Who this process is to the ledger; whoever asks is about to claim, and holds its lock from then on."""
        if self.presence is not None:
            self.presence.hold(self.worker)
        return Claimant(
            worker=self.worker,
            lease_ms=self.settings.lease_ms,
            run_id=self.run_id,
            monotonic_s=self.monotonic(),
        )

    def provider(self, name: str) -> Provider:
        """Open the provider that a job's behaviour names. Raises `ProviderConfigError`."""
        return open_provider(name, script=self.settings.script)

    def is_lost(self, worker: str | None) -> bool:
        """Return whether a worker is proven dead."""
        return worker is not None and self.presence is not None and self.presence.is_lost(worker)

    def close(self) -> None:
        """Give this worker's lock back and close the ledger."""
        if self.presence is not None and self.presence.is_held(self.worker):
            self.presence.release(self.worker, remove=self._holds_nothing())
        self.ledger.close()

    def _holds_nothing(self) -> bool:
        # Its file stays beside what it leaves in flight: the next worker then knows at once that nobody works on it.
        try:
            return self.worker not in self.ledger.recoveries.holders()
        except LedgerError:
            return False


def open_runtime(
    settings: Settings, *, clock: Clock | None = None, run_id: str | None = None, locks: bool = True
) -> Runtime:
    """Open the ledger and the blob store that the settings name.

    Without `locks`, the process neither holds a lock nor looks at those of others: the lease alone decides.
    Raises `InputError` for settings that cannot be used, `LedgerError` where the ledger cannot be opened.
    """
    return Runtime(
        settings=settings,
        ledger=open_ledger(
            settings.ledger_url, settings.retry_policy, clock, settings.deadline_policy, settings.limits
        ),
        blobs=BlobStore(settings.blobs_path),
        worker=new_worker_name(),
        run_id=run_id,
        presence=Presence(settings.workers_path) if locks else None,
    )
