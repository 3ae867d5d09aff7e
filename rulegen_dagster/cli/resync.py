"""`resync`: Dagster's copy of what is accepted, repainted from the ledger."""

import os
from pathlib import Path
from typing import Final

import typer

from rulegen_dagster.cli.output import JsonFlag, err, out, plain, print_json, reports_errors, runtime
from rulegen_dagster.workflow.mirror import BATCH, Mirrored

_TELL_EVERY: Final = 1_000


@reports_errors
def resync(json_output: JsonFlag = False) -> None:
    """Write into Dagster's event log each event of an accepted output that it lacks.

    For a Dagster home that was lost, or whose runs were deleted; what is accepted is in the ledger and never changes
    by this. Works on $DAGSTER_HOME, else on $RULEGEN_HOME/dagster. Safe to repeat, and beside a running 'rulegen dev'.
    Outputs of runs in progress are left to those runs. Exit code 1 where another process was at work on a part.

    \b
    Examples:
      rulegen resync
      DAGSTER_HOME=/srv/dagster rulegen resync --json
    """
    from rulegen_dagster.resources.mirroring import resync_home  # noqa: PLC0415 (Dagster takes a second to import)

    with runtime() as opened:
        named = os.environ.get("DAGSTER_HOME")
        home = Path(named) if named else opened.settings.dagster_home
        done = resync_home(opened, home, observe=_tell)
    if json_output:
        print_json({"dagster_home": str(home), "written": done.written, "found": done.found, "left": done.left})
    else:
        out().print(plain(f"{done.written} events written, {done.found} were in the log, {done.left} left"))
    if done.left:
        raise typer.Exit(1)


def _tell(done: Mirrored) -> None:
    seen = done.written + done.found
    if seen % _TELL_EVERY < BATCH <= seen:
        err().print(plain(f"{seen} outputs compared, {done.written} events written"))
