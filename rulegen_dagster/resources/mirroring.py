"""Mirroring into Dagster: a run's own events, and the events that no run has written."""

import contextlib
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import dagster as dg

from rulegen_dagster.domain.errors import InputError, LedgerError
from rulegen_dagster.domain.states import Stage
from rulegen_dagster.domain.work import WorkKey
from rulegen_dagster.ledger.outbox import Acceptance
from rulegen_dagster.resources.accepting_io_manager import ASSET_OF_STAGE
from rulegen_dagster.resources.metadata import digest_of, key_event, late_event
from rulegen_dagster.resources.partition_sets import JOBS_SET, RULES_SET, register_jobs, register_keys
from rulegen_dagster.resources.quality_checks import late_checks
from rulegen_dagster.workflow.mirror import Mirrored, resync
from rulegen_dagster.workflow.partitions import KeyOutcome
from rulegen_dagster.workflow.runtime import Runtime

EVENTS_PER_TICK = 200
"""About how many events one look writes: two seconds on SQLite."""

_MARK_EVERY = 50
_PAGE = 1_000


def resync_home(runtime: Runtime, dagster_home: Path, *, observe: Callable[[Mirrored], None]) -> Mirrored:
    """Repaint a Dagster home from the ledger: every job's keys, and every event that its log lacks.

    Raises `InputError` where there is no home, and what Dagster's storage raises.
    """
    if not (dagster_home / "dagster.yaml").is_file():
        raise InputError(
            f"there is no Dagster home at {dagster_home} (it has no dagster.yaml); 'rulegen dev' makes one, and"
            " DAGSTER_HOME names another",
            code="no_dagster_home",
        )
    with dg.DagsterInstance.from_config(str(dagster_home)) as instance:
        register_jobs(instance, runtime)
        return resync(runtime, DagsterEventLog(instance, runtime), observe=observe)


class RunEvents:
    """The events of the keys of one run, logged while it goes on; their rows in the outbox are marked in batches.

    Nothing here stops the run's work. Once the event log has failed, this run writes no more of these events (each
    try may take as long as the log's timeout), and they are mirrored after it has ended.
    """

    def __init__(self, runtime: Runtime, log_event: Callable[[dg.AssetMaterialization], None]) -> None:
        """Log by `log_event`, the run's own."""
        self._runtime = runtime
        self._log_event = log_event
        self._logged: list[WorkKey] = []
        self.unlogged = 0
        self.error: Exception | None = None

    def log(self, outcome: KeyOutcome) -> None:
        """Log the event of one accepted key."""
        if self.error is None:
            try:
                self._log_event(key_event(outcome, _asset_key(outcome.stage)))
            except Exception as error:
                # The storage's own exception types are not part of Dagster's public interface.
                self.error = error
            else:
                self._logged.append(outcome.work_key)
                if len(self._logged) >= _MARK_EVERY:
                    self.mark()
                return
        self.unlogged += 1

    def mark(self) -> None:
        """Mark the rows whose events were logged; a row that cannot be marked now is found in the log later."""
        logged, self._logged = self._logged, []
        with contextlib.suppress(LedgerError):
            self._runtime.ledger.outbox.mirrored_items(logged)


class DagsterEventLog:
    """Dagster's event log as the mirror sees it; events without a run, by the public interface alone."""

    def __init__(self, instance: dg.DagsterInstance, runtime: Runtime) -> None:
        """Write into an instance; the runtime's ledger knows the partition keys."""
        self._instance = instance
        self._runtime = runtime

    def unfinished(self, run_ids: Collection[str]) -> Collection[str]:
        """Return the runs that are in progress; a run that Dagster does not know is not."""
        if not run_ids:
            return ()
        runs = self._instance.get_runs(dg.RunsFilter(run_ids=sorted(run_ids)))
        return {run.run_id for run in runs if not run.is_finished}

    def missing(self, acceptances: Sequence[Acceptance]) -> list[Acceptance]:
        """Return those without an event of the same output, after registering their jobs' partition keys."""
        if not acceptances:
            return []
        self._register(acceptances)
        by_asset: dict[dg.AssetKey, list[Acceptance]] = defaultdict(list)
        for acceptance in acceptances:
            by_asset[_asset_key(acceptance.key.stage)].append(acceptance)
        return [acceptance for asset_key, wanted in by_asset.items() for acceptance in self._missing(asset_key, wanted)]

    def write(self, acceptance: Acceptance) -> None:
        """Write one event that belongs to no run."""
        if acceptance.key.stage is Stage.VALIDATE:
            # First, so that a crash between the two leaves the event missing, and both are written again.
            for evaluation in late_checks(acceptance):
                self._instance.report_runless_asset_event(evaluation)
        self._instance.report_runless_asset_event(late_event(acceptance, _asset_key(acceptance.key.stage)))

    def _register(self, acceptances: Sequence[Acceptance]) -> None:
        reads = self._runtime.ledger.reads
        jobs = [reads.job_by_id(job_id) for job_id in dict.fromkeys(one.key.job_id for one in acceptances)]
        register_keys(self._instance, JOBS_SET, [job.partition_key for job in jobs])
        keys = [key for job in jobs for key in reads.rule_partition_keys(job.job_id)]
        register_keys(self._instance, RULES_SET, keys)

    def _missing(self, asset_key: dg.AssetKey, wanted: Sequence[Acceptance]) -> list[Acceptance]:
        """Read the events of these partitions, newest first, until each is found or there are no more."""
        left = {(acceptance.partition_key, acceptance.digest): acceptance for acceptance in wanted}
        cursor: str | None = None
        while left:
            chosen = dg.AssetRecordsFilter(asset_key, asset_partitions=sorted({partition for partition, _ in left}))
            page = self._instance.fetch_materializations(chosen, limit=_PAGE, cursor=cursor)
            for record in page.records:
                event = record.asset_materialization
                if event is not None:
                    left.pop((str(event.partition), str(digest_of(event))), None)
            cursor = page.cursor
            if not page.has_more:
                break
        return list(left.values())


def _asset_key(stage: Stage) -> dg.AssetKey:
    return dg.AssetKey("ruleset" if stage is Stage.PUBLISH else ASSET_OF_STAGE[stage])
