"""The runtime as a Dagster resource."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import dagster as dg

from rulegen_dagster.settings import Settings
from rulegen_dagster.workflow.runtime import Runtime, open_runtime


@contextmanager
def environment_runtime(run_id: str | None = None) -> Iterator[Runtime]:
    """Open the runtime that the environment names, for one run or sensor tick, and close it."""
    opened = open_runtime(Settings(), run_id=run_id)
    try:
        yield opened
    finally:
        opened.close()


class RuntimeResource(dg.ConfigurableResource[None]):
    """Opens ledger, blobs and provider as the environment names them.

    It has no fields on purpose: run config is shown in the UI and can be edited there, and neither a database nor a
    provider is chosen by whoever can open that page.
    """

    def open(self, run_id: str | None = None) -> AbstractContextManager[Runtime]:
        """Open a runtime; leave the block to close it."""
        return environment_runtime(run_id)
