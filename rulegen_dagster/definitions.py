"""The one Dagster entry point: everything in `defs/`."""

from pathlib import Path

import dagster as dg


@dg.definitions
def defs() -> dg.Definitions:
    """Load the definitions of this project."""
    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
