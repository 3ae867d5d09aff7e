"""The runtime as a Dagster resource."""

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from rulegen_dagster.settings import Settings
from rulegen_dagster.workflow.runtime import Runtime, open_runtime


class RuntimeResource(dg.ConfigurableResource):
    """Opens ledger, blobs and provider as the environment names them.

    It has no fields on purpose: run config is shown in the UI and can be edited there, and neither a database nor a
    provider is chosen by whoever can open that page.
    """

    @contextmanager
    def open(self, run_id: str | None = None) -> Iterator[Runtime]:
        """Open a runtime for one run or sensor tick, and close it."""
        opened = open_runtime(Settings(), run_id=run_id)
        try:
            yield opened
        finally:
            opened.close()
