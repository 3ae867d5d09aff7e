"""Resource keys bound to instances. Nothing else may stand in this module: the loader would drop it silently."""

import dagster as dg

from rulegen_dagster.resources.accepting_io_manager import AcceptingIOManager
from rulegen_dagster.resources.asset_factory import IO_MANAGER_KEY
from rulegen_dagster.resources.runtime import RuntimeResource


@dg.definitions
def resources() -> dg.Definitions:
    """Bind the runtime, the IO manager, and one step process for each run."""
    return dg.Definitions(
        resources={"runtime": RuntimeResource(), IO_MANAGER_KEY: AcceptingIOManager()},
        executor=dg.in_process_executor,
    )
