"""Unused calls, as a status shows them: what was paid for, or may have been, and not used."""

from typing import Any

from rulegen_dagster.ledger.unused_calls import UnusedCall
from rulegen_dagster.workflow.runtime import Runtime

MOST_LISTED = 50
"""How many unused calls a status lists in full, the latest first."""


def unused_calls_report(runtime: Runtime, job_id: int) -> dict[str, Any]:
    """Return a job's unused calls as plain data: the latest in full, and how many there are in all."""
    unused = runtime.ledger.reads.unused_calls(job_id, limit=MOST_LISTED)
    return {"unused_calls": [_as_data(call) for call in unused.latest], "unused_calls_total": unused.total}


def _as_data(call: UnusedCall) -> dict[str, Any]:
    return {
        "item": call.key.item_key,
        "stage": call.key.stage.value,
        "attempt": call.attempt,
        "outcome": call.outcome.value,
        "provider": call.provider,
        "request_id": call.request_id,
        "tokens_in": call.tokens_in,
        "tokens_out": call.tokens_out,
        "cost_micros": call.cost_micros,
        "equals_accepted": call.equals_accepted,
    }
