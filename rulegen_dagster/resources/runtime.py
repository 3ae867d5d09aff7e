"""The runtime as a Dagster resource."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

import dagster as dg

from rulegen_dagster.resources.launches import TRACEPARENT_TAG
from rulegen_dagster.settings import Settings
from rulegen_dagster.telemetry.context import TraceContext
from rulegen_dagster.workflow.runtime import Runtime, open_runtime


@contextmanager
def environment_runtime(run_id: str | None = None, tags: Mapping[str, str] | None = None) -> Iterator[Runtime]:
    """Open the runtime that the environment names, for one run or sensor tick, and close it.

    Of a run's `tags`, the one that says where the run stands in a trace is read.
    """
    caller = TraceContext.parse((tags or {}).get(TRACEPARENT_TAG))
    opened = open_runtime(Settings(), run_id=run_id, caller=caller)
    try:
        yield opened
    finally:
        opened.close()


class RuntimeResource(dg.ConfigurableResource[None]):
    """Opens ledger, blobs and provider as the environment names them.

    It has no fields on purpose: run config is shown in the UI and can be edited there, and neither a database nor a
    provider is chosen by whoever can open that page.
    """

    def open(self, run_id: str | None = None, tags: Mapping[str, str] | None = None) -> AbstractContextManager[Runtime]:
        """Open a runtime, for a run with its tags where it is for one; leave the block to close it."""
        return environment_runtime(run_id, tags)
