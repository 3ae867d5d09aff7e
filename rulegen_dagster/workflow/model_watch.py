"""Watching models: a job that stops where its provider reports another model is stopped while it is worked on, too.

What is watched here is only when to look; what the ledger's attempts say decides. A process that dies before it looked
loses nothing, because the next one looks before it claims.
"""

from collections.abc import Callable

from rulegen_dagster.domain.behaviour import ModelDrift
from rulegen_dagster.domain.errors import LedgerError
from rulegen_dagster.ledger.reads import JobRecord
from rulegen_dagster.workflow.behaviours import ask, drift_of
from rulegen_dagster.workflow.engine import Outcome
from rulegen_dagster.workflow.runtime import Runtime


class ModelWatch:
    """Looks into the ledger whenever this process hears of a model for the first time in a job that stops for that."""

    def __init__(self, runtime: Runtime) -> None:
        """Look through the runtime's ledger."""
        self._runtime = runtime
        self._heard: dict[int, set[str]] = {}

    def add(self, job: JobRecord) -> None:
        """Watch a job, if it is to be stopped."""
        if job.behaviour.get("model_drift") == ModelDrift.STOP:
            self._heard.setdefault(job.job_id, set())

    def watched(self, observe: Callable[[Outcome], None]) -> Callable[[Outcome], None]:
        """Return `observe` with the watch behind it; `observe` itself where no job is watched."""
        if not self._heard:
            return observe

        def observed(outcome: Outcome) -> None:
            observe(outcome)
            self._look(outcome)

        return observed

    def _look(self, outcome: Outcome) -> None:
        job_id, model = outcome.claim.key.job_id, outcome.result.usage.model_id
        heard = self._heard.get(job_id)
        if heard is None or model is None or model in heard:
            return
        try:
            drift = drift_of(self._runtime, self._runtime.ledger.reads.job_by_id(job_id))
            if drift is not None:
                ask(self._runtime, job_id, drift, whoever_works=True)
        except LedgerError:
            # Whoever commits next deals with the outage; the next outcome looks again.
            return
        heard.add(model)
