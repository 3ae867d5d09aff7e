"""Recovering: what workers of this host held that are proven dead is freed, without a wait for their leases."""

from rulegen_dagster.ledger.recoveries import Freed
from rulegen_dagster.workflow.runtime import Runtime


def free_lost_work(runtime: Runtime) -> Freed:
    """Free what other workers hold that are proven dead; return how much that was. Raises `LedgerError`.

    One small read where nobody is lost. The lock file of a worker that holds nothing any more is removed.
    """
    presence, recoveries = runtime.presence, runtime.ledger.recoveries
    if presence is None:
        return Freed()
    lost = presence.lost(recoveries.holders() - {runtime.worker})
    if not lost:
        return Freed()
    freed = recoveries.free(lost, actor=runtime.worker)
    for worker in lost - recoveries.holders():
        presence.discard(worker)
    return freed
