"""The runtime of one process: settings, ledger, blobs, and who it is."""

import os
import random
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from rulegen_dagster.domain.clause import Clause, ContextEntry, ParsedSpec
from rulegen_dagster.domain.errors import LedgerError
from rulegen_dagster.domain.prompt import Prompt
from rulegen_dagster.domain.provider_settings import as_frozen
from rulegen_dagster.ledger.blobs import BlobStore
from rulegen_dagster.ledger.claims import Claimant
from rulegen_dagster.ledger.database import Clock
from rulegen_dagster.ledger.store import Ledger, open_ledger
from rulegen_dagster.providers.port import Provider
from rulegen_dagster.providers.registry import PROVIDER_NAMES, open_provider
from rulegen_dagster.settings import Settings
from rulegen_dagster.specs.context import ContextIndex
from rulegen_dagster.telemetry.context import TraceContext
from rulegen_dagster.telemetry.opening import open_tracing
from rulegen_dagster.telemetry.tracing import NO_TRACING, Tracing
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
    tracing: Tracing = NO_TRACING
    # Where the work of this process stands in a trace, as whoever started it says.
    caller: TraceContext | None = None

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

    def has_provider(self, name: str) -> bool:
        """Return whether this release knows a provider, whatever else it takes to open it."""
        return name in PROVIDER_NAMES

    def provider(
        self, name: str, prompts: Mapping[str, Prompt] | None = None, frozen: Mapping[str, Any] | None = None
    ) -> Provider:
        """Open the provider that a job's behaviour names, with the prompts that the job froze (None: the release's).

        `frozen` is that behaviour: model and settings are taken from it (None: as this process is set up). Raises
        `ProviderConfigError`.
        """
        settings = self.settings.provider_settings
        if frozen is not None:
            own = frozen.get("provider_settings", {})
            settings = as_frozen(settings, model_id=frozen["model_id"], settings=own)
        return open_provider(name, settings, prompts)

    def is_lost(self, worker: str | None) -> bool:
        """Return whether a worker is proven dead."""
        return worker is not None and self.presence is not None and self.presence.is_lost(worker)

    def close(self) -> None:
        """Hand on what was traced, give this worker's lock back and close the ledger.

        Where it still holds a claim the lock stays with the process, and is free once that ends: a Dagster step's
        output is offered after its body has closed this, and no other worker may take it for lost in between.
        """
        self.tracing.flush()
        if self.presence is not None and self.presence.is_held(self.worker) and self._holds_nothing():
            self.presence.release(self.worker, remove=True)
        self.ledger.close()

    def _holds_nothing(self) -> bool:
        try:
            return self.worker not in self.ledger.recoveries.holders()
        except LedgerError:
            return False


def open_runtime(
    settings: Settings,
    *,
    clock: Clock | None = None,
    run_id: str | None = None,
    locks: bool = True,
    caller: TraceContext | None = None,
) -> Runtime:
    """Open the ledger and the blob store that the settings name.

    Without `locks`, the process neither holds a lock nor looks at those of others: the lease alone decides. What is
    traced here is part of the `caller`'s trace, where that is the trace of its job.
    Raises `InputError` for settings that cannot be used, `LedgerError` where the ledger cannot be opened.
    """
    # First: what it refuses is a variable, and nothing is open yet.
    tracing = open_tracing(settings.trace_file, settings.trace_profile)
    return Runtime(
        settings=settings,
        ledger=open_ledger(
            settings.ledger_url, settings.retry_policy, clock, settings.deadline_policy, settings.limits
        ),
        blobs=BlobStore(settings.blobs_path),
        worker=new_worker_name(),
        run_id=run_id,
        presence=Presence(settings.workers_path) if locks else None,
        tracing=tracing,
        caller=caller,
    )
