"""Failures that Dagster shows: what happened, why, and what to do; never retried by Dagster itself.

The ledger alone retries work. `allow_retries=False` stops op retries; `retry_on_asset_or_op_failure: false` in
`dagster.yaml` stops run retries of a step that failed.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import dagster as dg

from rulegen_dagster.domain.errors import RulegenError
from rulegen_dagster.workflow.documents import NotReady
from rulegen_dagster.workflow.partitions import KeyOutcome
from rulegen_dagster.workflow.publish import NothingToPublish

_LINES = 15


@contextmanager
def as_failures() -> Iterator[None]:
    """Turn an error of the project into a failure with its code."""
    try:
        yield
    except RulegenError as error:
        raise refused(error.code, error.message) from error


def refused(code: str, message: str) -> dg.Failure:
    """Return the failure for a request that cannot be met."""
    return dg.Failure(description=f"{message} [{code}]", metadata={"code": code}, allow_retries=False)


def not_ready(reason: NotReady | NothingToPublish) -> dg.Failure:
    """Return the failure for a stage that cannot be run now."""
    return refused(reason.code, reason.reason)


def events_missing(count: int) -> dg.Failure:
    """Return the failure of a run whose outputs are all accepted, where the event log did not take their events.

    A green run that lacks an event would leave its backfill open for ever.
    """
    return refused(
        "event_log",
        f"every output is accepted, and {count} events could not be written to Dagster's event log; the sensor"
        " 'mirror_events' writes them once the log takes them",
    )


def keys_missing(missed: Sequence[KeyOutcome], total: int) -> dg.Failure:
    """Return the failure that names each key without an accepted output, with its reason.

    Keys that share a reason share a line: one failed rule holds up the tests of every other.
    """
    lines: dict[tuple[str, str, str], list[str]] = {}
    for outcome in missed:
        lines.setdefault((outcome.job, outcome.stage.value, outcome.reason or ""), []).append(outcome.item_key)
    told = [
        f"{stage} of {job}, {', '.join(items)}: {reason}"
        for (job, stage, reason), items in list(lines.items())[:_LINES]
    ]
    if len(lines) > _LINES:
        told.append(f"and {len(lines) - _LINES} more reasons; the table below names every key")
    return dg.Failure(
        description="\n".join([f"{len(missed)} of {total} outputs are not accepted:", *told]),
        metadata={
            "missing": dg.MetadataValue.table(
                [
                    dg.TableRecord(
                        {
                            "partition": outcome.partition_key,
                            "stage": outcome.stage.value,
                            "state": outcome.state.value,
                            "attempts": outcome.attempt,
                            "reason": outcome.reason or "",
                        }
                    )
                    for outcome in missed
                ]
            )
        },
        allow_retries=False,
    )
