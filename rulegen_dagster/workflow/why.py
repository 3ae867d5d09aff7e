"""Why: the one reason why a job, or one of its items, does not move, with what proves it."""

from dataclasses import dataclass, field
from typing import Any

from rulegen_dagster.domain.errors import InputError
from rulegen_dagster.domain.recovery import recovery_of
from rulegen_dagster.domain.states import JOB_STATE_OF_STAGE, TERMINAL_JOB_STATES, JobState, Stage, WorkState
from rulegen_dagster.domain.text import printable
from rulegen_dagster.domain.work import DOCUMENT_ITEM, item_name
from rulegen_dagster.ledger.attempts import AttemptRecord
from rulegen_dagster.ledger.events import latest_item_event, latest_job_event
from rulegen_dagster.ledger.needed_decisions import decisions_of_job
from rulegen_dagster.ledger.reads import ItemRecord, JobRecord
from rulegen_dagster.ledger.recoveries import WORKER_LOST
from rulegen_dagster.workflow.bundle import accepted_report, report_of
from rulegen_dagster.workflow.deadlines import deadline_evidence, is_overdue
from rulegen_dagster.workflow.documents import DOCUMENT_STAGES
from rulegen_dagster.workflow.explain import (
    NAMED,
    Reason,
    failures_of,
    held_back,
    is_ready,
    items_of_lost_workers,
    lease_of,
    loss_of,
    reason_of,
    recovery_report,
    refusals_report,
    retry_of,
)
from rulegen_dagster.workflow.limits import limit_evidence
from rulegen_dagster.workflow.publish import published_path
from rulegen_dagster.workflow.quotas import hold_evidence
from rulegen_dagster.workflow.runtime import Runtime

_ITEM_STAGES = (Stage.GENERATE_RULES, Stage.GENERATE_TESTS)
_STAGE_OF_STATE = {state: stage for stage, state in JOB_STATE_OF_STAGE.items()}
_ACTION_STAGES = (Stage.PUBLISH, Stage.NOTIFY)
_PAST_VALIDATION = frozenset({JobState.AWAITING_CONFIRMATION, JobState.EXECUTING, *TERMINAL_JOB_STATES})


@dataclass(frozen=True, kw_only=True)
class Blockage:
    """Exactly one reason, with evidence; `stage` is where it holds, `next_at` (ms) when work goes on by itself."""

    code: str
    text: str
    state: str | None
    stage: Stage | None = None
    item: str | None = None
    next_at: int | None = None
    evidence: dict[str, Any] = field(default_factory=dict)


def why_report(runtime: Runtime, job: JobRecord, item: str | None = None) -> dict[str, Any]:
    """Return why a job or one of its items does not move, in the shape that `rulegen why --json` prints.

    An item is named `generate_tests/rule-03`; `rule-03` alone means the first stage in which it is not accepted, and
    a stage of a whole document is named alone (`parse`). Raises `InputError` for an item that the job does not have.
    """
    job = runtime.ledger.reads.job_by_id(job.job_id)
    blockage = _of_job(runtime, job) if item is None else _of_named(runtime, job, item)
    return {
        "job": str(job.name),
        "item": blockage.item,
        "state": blockage.state,
        "reason_code": blockage.code,
        "reason": blockage.text,
        "evidence": blockage.evidence,
        "next_at_ms": blockage.next_at,
        "recovery": recovery_report(recovery_of(job.state, blockage.stage)),
    }


def _of_job(runtime: Runtime, job: JobRecord, item: str | None = None, state: str | None = None) -> Blockage:
    reason = reason_of(runtime, job)
    return Blockage(
        code=reason.code,
        text=reason.text,
        state=state if item else job.state.value,
        item=item,
        next_at=reason.next_at,
        evidence=_job_evidence(runtime, job, reason),
    )


def _of_named(runtime: Runtime, job: JobRecord, name: str) -> Blockage:
    stage, item_key = _parse_name(runtime, job, name)
    if stage in _ACTION_STAGES:
        return _of_action(runtime, job, stage)
    found = runtime.ledger.reads.items(job.job_id, stage, item_key)
    full_name = item_name(stage, item_key)
    if found:
        return _of_item(runtime, job, found[0], full_name)
    if job.state in TERMINAL_JOB_STATES or job.state is JobState.NEEDS_DECISION:
        return _of_job(runtime, job, full_name)
    return _barrier(runtime, job, stage, full_name, None)


def _parse_name(runtime: Runtime, job: JobRecord, name: str) -> tuple[Stage, str]:
    """Return the stage and key that a name means."""
    head, _, tail = name.partition("/")
    stages = {stage.value: stage for stage in Stage}
    if not tail and head in stages and stages[head] not in _ITEM_STAGES:
        stage = stages[head]
        if stage in DOCUMENT_STAGES or stage is Stage.PUBLISH or _has_action(runtime, job, stage):
            return stage, DOCUMENT_ITEM
    if tail == DOCUMENT_ITEM and head in stages and stages[head] in DOCUMENT_STAGES:
        return stages[head], tail
    key = tail or head
    rules = runtime.ledger.reads.items(job.job_id, Stage.GENERATE_RULES, key)
    if not rules or (tail and stages.get(head) not in _ITEM_STAGES):
        raise InputError(
            f"the job has no item '{printable(name)[:64]}'; name one like rule-01, generate_tests/rule-01, parse or"
            " publish ('rulegen review' lists them, once the specification is parsed)",
            code="item_not_found",
        )
    if tail:
        return stages[head], key
    return (Stage.GENERATE_TESTS if rules[0].state is WorkState.SUCCEEDED else Stage.GENERATE_RULES), key


def _has_action(runtime: Runtime, job: JobRecord, stage: Stage) -> bool:
    return any(action.kind == stage.value for action in runtime.ledger.reads.actions(job.job_id))


def _of_action(runtime: Runtime, job: JobRecord, stage: Stage) -> Blockage:
    states = [action.state for action in runtime.ledger.reads.actions(job.job_id) if action.kind == stage.value]
    stuck = job.state is JobState.NEEDS_DECISION or (
        job.state is JobState.VALIDATING and job.validation_passed is False
    )
    if stuck or job.state in _PAST_VALIDATION:
        return _of_job(runtime, job, stage.value, states[-1] if states else None)
    return _barrier(runtime, job, stage, stage.value, None)


def _of_item(runtime: Runtime, job: JobRecord, item: ItemRecord, name: str) -> Blockage:
    stage, now = item.key.stage, runtime.ledger.reads.now()
    is_closed = item.state in (WorkState.SUCCEEDED, WorkState.FAILED)
    if not is_closed and (job.state in TERMINAL_JOB_STATES or job.state is JobState.NEEDS_DECISION):
        return _of_job(runtime, job, name, item.state.value)
    if not is_closed and is_overdue(runtime, job, now):
        return _of_job(runtime, job, name, item.state.value)
    if not is_closed and job.state is not JOB_STATE_OF_STAGE[stage]:
        return _barrier(runtime, job, stage, name, item.state)
    reason = _item_reason(runtime, item, now)
    return Blockage(
        code=reason.code,
        text=reason.text,
        state=item.state.value,
        stage=stage,
        item=name,
        next_at=reason.next_at,
        evidence=_held_back_evidence(reason) or _item_evidence(runtime, item, reason.code),
    )


def _item_reason(runtime: Runtime, item: ItemRecord, now: int) -> Reason:
    """Return why an item of the job's current stage is where it is."""
    key = item.key.item_key
    if is_ready(item, now):
        ready = Reason(code="ready", text=f"{key} can be claimed now", next_at=now)
        return held_back(runtime, ready, now, job_id=item.key.job_id, stage=item.key.stage, what=key)
    if items_of_lost_workers(runtime, [item], now):
        return Reason(code=WORKER_LOST, text=f"{key} can be claimed now: {loss_of(item)}", next_at=now)
    match item.state:
        case WorkState.SUCCEEDED:
            return Reason(code="accepted", text=f"{key} is accepted; nothing is left to do for it")
        case WorkState.RUNNING:
            return Reason(code="leased", text=lease_of(item, now), next_at=item.lease_until)
        case WorkState.WAITING:
            return Reason(code="retry_due", text=retry_of(item, now), next_at=item.next_attempt_at)
        case WorkState.FAILED:
            return Reason(
                code="item_failed",
                text=f"{key} failed after {item.attempts} of {item.attempt_limit} attempts with {item.error_code}:"
                f" {item.error_message}; mend the cause, then 'rulegen redrive'",
            )
        case _:
            return Reason(code=item.state.value, text=f"{key} is {item.state}")


def _barrier(runtime: Runtime, job: JobRecord, stage: Stage, name: str, state: WorkState | None) -> Blockage:
    """Say which items of the job's current stage are missing before `stage` can begin."""
    now = runtime.ledger.reads.now()
    current = _STAGE_OF_STATE.get(job.state, Stage.PARSE)
    items = runtime.ledger.reads.items(job.job_id, current)
    missing = [item for item in items if item.state is not WorkState.SUCCEEDED]
    reasons = [(item, _item_reason(runtime, item, now)) for item in missing[:NAMED]]
    first = f", first {reasons[0][0].key.item_key} ({reasons[0][1].code})" if reasons else ""
    return Blockage(
        code="barrier",
        text=f"{stage} begins when every earlier item is accepted; {len(missing)} of {len(items)} of {current} are"
        f" missing{first}",
        state=state.value if state else None,
        stage=current,
        item=name,
        evidence={
            "stage": current.value,
            "missing_count": len(missing),
            "missing": [
                {
                    "item": item_name(current, item.key.item_key),
                    "state": item.state.value,
                    "reason_code": reason.code,
                    "reason": reason.text,
                    "next_at_ms": reason.next_at,
                }
                for item, reason in reasons
            ],
        },
    )


def _job_evidence(runtime: Runtime, job: JobRecord, reason: Reason) -> dict[str, Any]:
    if held_back_by := _held_back_evidence(reason):
        return {"items": len(reason.items), **held_back_by}
    match reason.code:
        case "worker_lost" if reason.action is not None:
            return _action_evidence(runtime, reason)
        case "ready" | "leased" | "retry_due" | "worker_lost":
            first = reason.items[0]
            named = item_name(first.key.stage, first.key.item_key)
            return {
                "items": len(reason.items),
                "item": named,
                **_item_evidence(runtime, first, reason.code),
            }
        case "blocked":
            return {
                "failed": len(reason.items),
                "items": [
                    {
                        "item": item_name(item.key.stage, item.key.item_key),
                        "error_code": item.error_code,
                        "attempts": item.attempts,
                        "attempt_limit": item.attempt_limit,
                    }
                    for item in reason.items[:NAMED]
                ],
            }
        case "validation_failed" | "below_policy":
            report = report_of(accepted_report(runtime, job.job_id) or "{}")
            failures = failures_of(report)
            return {
                "policy": report.get("policy"),
                "missing": report.get("missing", []),
                "failures": failures[:NAMED],
                "failure_count": len(failures),
            }
        case "nothing_to_publish":
            report = report_of(accepted_report(runtime, job.job_id) or "{}")
            return {"rules": 0, "abstained": report.get("abstained", {})}
        case "publishing" | "publish_unknown":
            return _action_evidence(runtime, reason)
        case "deadline":
            state = _state_evidence(runtime, job)
            at = state["since_ms"] if job.state in TERMINAL_JOB_STATES else runtime.ledger.reads.now()
            return {**deadline_evidence(runtime, job, at), **state}
        case "needs_decision" | "retained":
            return {**_state_evidence(runtime, job), **_decision_evidence(runtime, job)}
        case _:
            return _state_evidence(runtime, job)


def _decision_evidence(runtime: Runtime, job: JobRecord) -> dict[str, Any]:
    """Return which part of its behaviour keeps a job from going on, where it stood, and what was decided so far."""
    (*_, needed) = [None, *decisions_of_job(runtime.ledger.database, job.job_id)]
    if needed is None:
        return {}
    return {
        "part": needed.incompatibility.part.value,
        "was": needed.incompatibility.was,
        "now": needed.incompatibility.now,
        "from_state": needed.from_state.value,
        "decision": needed.decision.value if needed.decision else None,
        "decided_by": needed.decided_by,
        "decided_at_ms": needed.decided_at,
        "reason": needed.reason,
    }


def _held_back_evidence(reason: Reason) -> dict[str, Any]:
    """Return the limit or the quota that a reason names; empty where it names neither."""
    if reason.limit is not None:
        return limit_evidence(reason.limit)
    return hold_evidence(reason.hold) if reason.hold is not None else {}


def _state_evidence(runtime: Runtime, job: JobRecord) -> dict[str, Any]:
    """Return how the job came into the state in which it stands: since when, by whom, and why."""
    event = latest_job_event(runtime.ledger.database, job.job_id)
    evidence: dict[str, Any] = {
        "since_ms": event.at if event else job.created_at,
        "actor": event.actor if event else None,
        "cause": event.cause if event else None,
    }
    if job.state in TERMINAL_JOB_STATES:
        evidence["reason"] = job.end_reason
    if job.action_set_digest is not None:
        evidence["action_set"] = job.action_set_digest
    if job.state is JobState.COMPLETED:
        evidence["published"] = str(published_path(runtime, job))
    return evidence


def _action_evidence(runtime: Runtime, reason: Reason) -> dict[str, Any]:
    action = reason.action
    if action is None:
        return {}
    evidence: dict[str, Any] = {"action": action.kind, "state": action.state, "since_ms": action.updated_at}
    if reason.code == "publish_unknown":
        return {**evidence, "error_code": action.error_code}
    return {
        **evidence,
        "worker": action.worker,
        "lease_until_ms": action.lease_until,
        "lease_passed": (action.lease_until or 0) <= runtime.ledger.reads.now(),
    }


def _item_evidence(runtime: Runtime, item: ItemRecord, code: str) -> dict[str, Any]:
    attempts = runtime.ledger.reads.attempts(item.key.job_id, item.key)
    last = attempts[-1] if attempts else None
    budget = {"attempts": item.attempts, "attempt_limit": item.attempt_limit}
    match code:
        case "leased" | "worker_lost":
            return {
                "worker": item.worker,
                "dagster_run": last.run_id if last else None,
                "lease_until_ms": item.lease_until,
                "attempt_began_ms": last.started_at if last else None,
                **budget,
            }
        case "retry_due":
            repair = {"repair": refusals_report(item.repair)} if item.repair else {}
            return {"due_ms": item.next_attempt_at, "last_error": item.error_code, **budget, **repair}
        case "ready":
            return {
                "since_ms": _ready_since(runtime, item),
                "lost_worker": item.worker,
                "partition_key": item.partition_key,
                "claimed_by": [
                    "'rulegen run' with the same file and key",
                    "the due_work sensor of 'rulegen dev'",
                    "a Dagster run that materializes the partition",
                ],
                **budget,
            }
        case "accepted":
            made = [attempt for attempt in attempts if attempt.outcome == "accepted"]
            return {"output_digest": item.output_digest, **budget, "accepted": _attempt(made[-1]) if made else None}
        case _:
            return {
                "error_code": item.error_code,
                "error_message": item.error_message,
                **budget,
                "tries": [_attempt(attempt) for attempt in attempts[-NAMED:]],
            }


def _ready_since(runtime: Runtime, item: ItemRecord) -> int | None:
    """Return when the item became claimable: its retry fell due, its lease passed, or its stage opened."""
    match item.state:
        case WorkState.WAITING:
            return item.next_attempt_at
        case WorkState.RUNNING:
            return item.lease_until
        case _:
            event = latest_item_event(runtime.ledger.database, item.key)
            opened = latest_job_event(runtime.ledger.database, item.key.job_id)
            return max((found.at for found in (event, opened) if found), default=None)


def _attempt(attempt: AttemptRecord) -> dict[str, Any]:
    return {
        "attempt": attempt.attempt,
        "kind": attempt.kind.value,
        "outcome": attempt.outcome.value if attempt.outcome else None,
        "error_code": attempt.error_code,
        "refusals": refusals_report(attempt.refusals),
        "worker": attempt.worker,
        "dagster_run": attempt.run_id,
        "began_ms": attempt.started_at,
        "ended_ms": attempt.ended_at,
        **({"model": attempt.model_id, "report": dict(attempt.report)} if attempt.report else {}),
    }
