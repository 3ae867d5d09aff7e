"""Lost runs: what a host that went down left behind as running."""

from pathlib import Path

import dagster as dg

_IN_PROGRESS = [
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]


def end_lost_runs(dagster_home: Path) -> int:
    """Report every run that still counts as running as failed; return how many there were.

    Only for a home whose run workers have all ended, because their host or their code server did: nothing in Dagster
    would find them before `max_runtime_seconds`. Dagster then retries them, and the ledger tells what is left to do.
    """
    with dg.DagsterInstance.from_config(str(dagster_home)) as instance:
        lost = instance.get_runs(dg.RunsFilter(statuses=_IN_PROGRESS))
        for run in lost:
            instance.report_run_failed(run, "The host of this run was restarted; its worker is lost.")
        return len(lost)
