"""Progress of long work: a bar on a terminal, a line for each stage elsewhere; always on standard error."""

from types import TracebackType
from typing import Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from rulegen_dagster.cli.output import err, plain
from rulegen_dagster.domain.errors import LedgerError
from rulegen_dagster.domain.states import Stage, WorkState
from rulegen_dagster.domain.work import FailedAttempt, Landing
from rulegen_dagster.workflow.engine import Outcome
from rulegen_dagster.workflow.explain import Reason
from rulegen_dagster.workflow.runtime import Runtime


class JobProgress:
    """Shows how far one job is; a context manager."""

    def __init__(self, runtime: Runtime, job_id: int, *, quiet: bool) -> None:
        """Show nothing at all where `quiet` is set."""
        self._runtime = runtime
        self._job_id = job_id
        self._console = err()
        self._console.quiet = quiet
        self._bar: Progress | None = None
        if self._console.is_terminal and not quiet:
            self._bar = Progress(
                TextColumn("{task.description:<16}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=self._console,
                transient=True,
            )
        self._tasks: dict[Stage, TaskID] = {}
        counts = runtime.ledger.reads.stage_counts(job_id)
        self._done = {stage: counts[stage][WorkState.SUCCEEDED] for stage in Stage}
        self._totals: dict[Stage, int] = {}
        self._told: str | None = None

    def __enter__(self) -> Self:
        """Start the bar."""
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the bar."""
        if self._bar:
            self._bar.stop()

    def observe(self, outcome: Outcome) -> None:
        """Count one attempt that ended."""
        stage = outcome.claim.key.stage
        if outcome.landing is Landing.STALE:
            return
        if isinstance(outcome.result, FailedAttempt):
            waits = outcome.decision is not None and outcome.decision.state is WorkState.WAITING
            fate = "will be tried again" if waits else "failed"
            self._console.print(
                plain(f"  {outcome.claim.key.item_key} ({stage}) {fate}: {outcome.result.message}", "yellow")
            )
            return
        self._done[stage] += 1
        if stage not in self._totals:
            try:
                counts = self._runtime.ledger.reads.stage_counts(self._job_id)
            except LedgerError:
                # The work goes on through an outage, and whoever commits next deals with it; the bar is for show.
                return
            self._totals[stage] = sum(counts[stage].values())
        if self._bar:
            if stage not in self._tasks:
                self._tasks[stage] = self._bar.add_task(stage.value, total=self._totals[stage])
            self._bar.update(self._tasks[stage], completed=self._done[stage])
        elif self._done[stage] == self._totals[stage]:
            self._console.print(f"  {stage}: {self._totals[stage]} of {self._totals[stage]} accepted")

    def waiting(self, reason: Reason) -> None:
        """Tell once why nothing moves."""
        # A quota's wait is another one with each call; what is told once is whose quota it is.
        told = f"{reason.code} of {reason.hold.scope}" if reason.hold is not None else reason.text
        if told != self._told:
            self._told = told
            self._console.print(plain(f"  waiting: {reason.text}", "yellow"))
