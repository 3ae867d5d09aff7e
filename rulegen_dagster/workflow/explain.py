"""Explanation: what a job is doing, and the one reason why it does not move."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from rulegen_dagster.domain.recovery import Recovery, recovery_of
from rulegen_dagster.domain.refusal import Refusal
from rulegen_dagster.domain.rule import RuleOutput, SuiteOutput
from rulegen_dagster.domain.states import (
    JOB_STATE_OF_STAGE,
    TERMINAL_JOB_STATES,
    ActionState,
    JobState,
    Stage,
    WorkState,
)
from rulegen_dagster.domain.text import moment
from rulegen_dagster.ledger.attempts import repair_counts
from rulegen_dagster.ledger.limits import ReachedLimit
from rulegen_dagster.ledger.needed_decisions import reported_models
from rulegen_dagster.ledger.quotas import QuotaHold
from rulegen_dagster.ledger.reads import ActionRecord, ItemRecord, JobRecord
from rulegen_dagster.ledger.recoveries import WORKER_LOST
from rulegen_dagster.providers.registry import label_of
from rulegen_dagster.workflow.behaviours import Checked, held_up_by
from rulegen_dagster.workflow.bundle import accepted_report, in_force, report_of, waivers_of
from rulegen_dagster.workflow.content import removed_content
from rulegen_dagster.workflow.deadlines import deadline_text, is_overdue
from rulegen_dagster.workflow.limits import LIMIT, limit_text
from rulegen_dagster.workflow.publish import published_path
from rulegen_dagster.workflow.quotas import charges_report, hold_text, quota_hold
from rulegen_dagster.workflow.runtime import Runtime
from rulegen_dagster.workflow.unused import unused_calls_report

DEADLINE = "deadline"
"""The code of the reason that a job has no time left, before and after it expired for that."""

BELOW_POLICY = "below_policy"
"""The code of the reason that a ruleset without a failure lacks what its policy asks for."""

NAMED: Final = 20
"""How many items or failures one answer names; it always counts all of them."""

_STAGE_OF_STATE = {state: stage for stage, state in JOB_STATE_OF_STAGE.items()}
_CLAUSE_STAGES = (Stage.GENERATE_RULES, Stage.GENERATE_TESTS)
_SHOWN_STATES = (
    WorkState.PENDING,
    WorkState.RUNNING,
    WorkState.WAITING,
    WorkState.SUCCEEDED,
    WorkState.FAILED,
)


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Why a job stands where it stands: a code for machines, a sentence for people.

    `next_at` is the time (ms on the ledger's clock) at which work goes on by itself, where there is one. `items` or
    `action` are what the reason is about, the one that the sentence names first; `limit` or `hold` is what holds it
    back.
    """

    code: str
    text: str
    next_at: int | None = None
    items: tuple[ItemRecord, ...] = ()
    action: ActionRecord | None = None
    limit: ReachedLimit | None = None
    hold: QuotaHold | None = None


def reason_of(runtime: Runtime, job: JobRecord) -> Reason:
    """Return the one reason why the job is where it is."""
    if job.state is JobState.COMPLETED:
        return Reason(code="published", text="the ruleset is published")
    now = runtime.ledger.reads.now()
    if job.state is JobState.EXPIRED or is_overdue(runtime, job, now):
        return Reason(code=DEADLINE, text=deadline_text(runtime, job, now))
    if job.state in TERMINAL_JOB_STATES:
        return Reason(code=job.state.value, text=f"the job is {job.state}: {job.end_reason or 'no reason was given'}")
    if job.state is JobState.NEEDS_DECISION:
        held_up = held_up_by(runtime, Checked(may_go_on=False, job=job))
        return Reason(code=held_up.code, text=held_up.text)
    if job.state is JobState.AWAITING_CONFIRMATION:
        return Reason(
            code="awaiting_confirmation",
            text=f"a person has to confirm: rulegen confirm {job.name} --action-set {job.action_set_digest}",
        )
    if job.state is JobState.EXECUTING:
        return _publication_reason(runtime, job)
    if job.state is JobState.VALIDATING and job.validation_passed is False:
        return _validation_reason(runtime, job)
    stage = _STAGE_OF_STATE.get(job.state)
    if stage is None:
        return Reason(code=job.state.value, text=f"the job is {job.state}")
    items = runtime.ledger.reads.items(job.job_id, stage)
    reason = _stage_reason(job, stage, items, now, items_of_lost_workers(runtime, items, now))
    what = f"{_count(list(reason.items))} of {stage}"
    return held_back(runtime, reason, now, job_id=job.job_id, stage=stage, what=what)


def held_back(runtime: Runtime, reason: Reason, now: int, *, job_id: int, stage: Stage, what: str) -> Reason:
    """Return the limit or the quota that keeps `what` from being claimed, where it is ready; else the reason itself."""
    if reason.code != "ready":
        return reason
    reached = runtime.ledger.limits.reached(job_id, stage)
    if reached is not None:
        text = limit_text(what, reached, now)
        return Reason(code=LIMIT, text=text, next_at=reached.next_at, items=reason.items, limit=reached)
    hold = quota_hold(runtime, job_id, stage)
    if hold is not None:
        text, code = hold_text(what, hold, now), hold.refusal.reason.value
        return Reason(code=code, text=text, next_at=hold.next_at, items=reason.items, hold=hold)
    return reason


def _claimable(job: JobRecord) -> str:
    return (
        f"can be claimed now: by 'rulegen run FILE --tenant {job.name.tenant} --key {job.name.submission_key}' with the"
        " same file, or by Dagster's due_work sensor ('rulegen dev')"
    )


def _stage_reason(job: JobRecord, stage: Stage, items: list[ItemRecord], now: int, lost: list[ItemRecord]) -> Reason:
    failed = [item for item in items if item.state is WorkState.FAILED]
    ready = [item for item in items if is_ready(item, now)]
    leased = [
        item for item in items if item.state is WorkState.RUNNING and (item.lease_until or 0) > now and item not in lost
    ]
    waiting = [item for item in items if item.state is WorkState.WAITING and (item.next_attempt_at or 0) > now]
    if ready:
        return Reason(
            code="ready", text=f"{_count(ready)} of {stage} {_claimable(job)}", next_at=now, items=tuple(ready)
        )
    if lost:
        return Reason(
            code=WORKER_LOST,
            text=f"{_count(lost)} of {stage} {_claimable(job)}; {loss_of(lost[0])}",
            next_at=now,
            items=tuple(lost),
        )
    if leased:
        leased.sort(key=lambda item: item.lease_until or 0)
        return Reason(
            code="leased",
            text=f"{_count(leased)} of {stage} in flight; {lease_of(leased[0], now)}",
            next_at=leased[0].lease_until,
            items=tuple(leased),
        )
    if waiting:
        waiting.sort(key=lambda item: item.next_attempt_at or 0)
        return Reason(
            code="retry_due",
            text=f"{_count(waiting)} of {stage} wait for a retry; {retry_of(waiting[0], now)}",
            next_at=waiting[0].next_attempt_at,
            items=tuple(waiting),
        )
    if failed:
        named = ", ".join(f"{item.key.item_key} ({item.error_code})" for item in failed[:5])
        more = f" and {len(failed) - 5} more" if len(failed) > 5 else ""
        return Reason(
            code="blocked",
            text=f"blocked: {_count(failed)} of {stage} failed: {named}{more}; mend the cause, then 'rulegen redrive'"
            + (", or 'rulegen waive' a clause that needs no rule" if stage in _CLAUSE_STAGES else ""),
            items=tuple(failed),
        )
    return Reason(code="advancing", text=f"{stage} is complete, the next stage opens", next_at=now)


def _publication_reason(runtime: Runtime, job: JobRecord) -> Reason:
    for action in runtime.ledger.reads.actions(job.job_id):
        if action.state == ActionState.UNKNOWN:
            return Reason(
                code="publish_unknown",
                text=f"the last try to {action.kind} ended in {action.error_code}; mend the cause, and the next"
                " publisher looks at what is there and goes on",
                action=action,
            )
        if action.state == ActionState.EXECUTING and runtime.is_lost(action.worker):
            return Reason(
                code=WORKER_LOST,
                text=f"{action.worker} held the action {action.kind} and is lost; the next publisher looks at what is"
                " there and goes on",
                next_at=runtime.ledger.reads.now(),
                action=action,
            )
        if action.state == ActionState.EXECUTING:
            return Reason(
                code="publishing",
                text=f"a publisher holds the action {action.kind}, or was lost with it",
                next_at=action.lease_until,
                action=action,
            )
    reached = runtime.ledger.limits.reached(job.job_id, Stage.PUBLISH)
    if reached is not None:
        text = limit_text("the publication", reached, runtime.ledger.reads.now())
        return Reason(code=LIMIT, text=text, next_at=reached.next_at, limit=reached)
    return Reason(code="confirmed", text="the action set is confirmed; the next publisher executes it")


def _validation_reason(runtime: Runtime, job: JobRecord) -> Reason:
    report = report_of(accepted_report(runtime, job.job_id) or "{}")
    if report.get("rules") == 0:
        listed = ", ".join(f"{reason} {count}" for reason, count in sorted(report.get("abstained", {}).items()))
        return Reason(
            code="nothing_to_publish",
            text=f"none of the {sum(report.get('abstained', {}).values())} normative clauses gave a rule"
            f" ({listed or 'there is no normative clause'}); reject the job, and submit another text, or the same to"
            " another provider (RULEGEN_PROVIDER) under a new --key",
        )
    failures, missing = failures_of(report), report.get("missing", [])
    lacks = f"{report.get('policy')} asks for more: " + "; ".join(lack["message"] for lack in missing)
    if missing and not failures:
        return Reason(
            code=BELOW_POLICY,
            text=f"every test passes, and {lacks}; see 'rulegen review', and 'rulegen waive' for a clause that needs no"
            " rule",
        )
    first = failures[0] if failures else {"code": "unknown", "path": "", "message": ""}
    return Reason(
        code="validation_failed",
        text=f"validation found {len(failures)} failure(s), first {first['code']} at {first['path']}:"
        f" {first['message']}{f'; and {lacks}' if missing else ''}; see 'rulegen review'",
    )


def status_report(runtime: Runtime, job: JobRecord) -> dict[str, Any]:
    """Return the job's status as plain data, in the shape that `rulegen status --json` prints.

    `calls_this_run` counts the calls of this process alone, whoever else works on the job meanwhile.
    """
    job = runtime.ledger.reads.job_by_id(job.job_id)
    counts = runtime.ledger.reads.stage_counts(job.job_id)
    reason = reason_of(runtime, job)
    published = published_path(runtime, job)
    return {
        "job": str(job.name),
        "state": job.state.value,
        "reason": reason.text,
        "reason_code": reason.code,
        "recovery": recovery_report(recovery_of(job.state)),
        "stages": {stage.value: _shown_counts(counts[stage]) for stage in Stage},
        "provider_calls": runtime.ledger.reads.provider_calls(job.job_id),
        "calls_this_run": runtime.ledger.reads.provider_calls(job.job_id, worker=runtime.worker),
        "repairs": _repairs_report(runtime, job.job_id),
        **unused_calls_report(runtime, job.job_id),
        "charges": charges_report(runtime, job.job_id),
        "action_set": job.action_set_digest,
        "published": str(published) if published else None,
        "provider": job.behaviour["provider"],
        "provider_label": label_of(job.behaviour["provider"]),
        "behaviour": job.behaviour_digest,
        "behaviour_changes": [vars(change) for change in runtime.ledger.behaviours.changes(job.job_id)],
        "reported_models": list(reported_models(runtime.ledger.database, job.job_id)),
        "deadline_ms": job.deadline_at,
        "file": job.file_name,
        "predecessor": str(job.predecessor) if job.predecessor else None,
        "removed_content": removed_content(runtime, job),
        **_extraction_report(runtime, job),
        **_validation_report(runtime, job),
        "failed_items": [
            {"item": item.key.item_key, "stage": stage.value, "code": item.error_code}
            for stage in Stage
            if counts[stage][WorkState.FAILED]
            for item in runtime.ledger.reads.items(job.job_id, stage)
            if item.state is WorkState.FAILED
        ],
    }


def recovery_report(recovery: Recovery) -> dict[str, Any]:
    """Return a recovery decision as plain data."""
    return {"question": recovery.question, "possible": recovery.possible, "answer": recovery.answer}


def refusals_report(refusals: Sequence[Refusal]) -> list[dict[str, str]]:
    """Return why a draft was refused as plain data."""
    return [{"code": refusal.code, "path": refusal.path, "kind": refusal.kind.value} for refusal in refusals]


def _repairs_report(runtime: Runtime, job_id: int) -> dict[str, int]:
    made, accepted = repair_counts(runtime.ledger.database, job_id)
    return {"made": made, "accepted": accepted}


def _shown_counts(counts: dict[WorkState, int]) -> dict[str, int]:
    shown = {state.value: counts[state] for state in _SHOWN_STATES}
    # Items are cancelled with their job alone; the report of any other job has no use for the word.
    if counts[WorkState.CANCELLED]:
        shown[WorkState.CANCELLED.value] = counts[WorkState.CANCELLED]
    return shown


def _validation_report(runtime: Runtime, job: JobRecord) -> dict[str, Any]:
    """Return what a report that did not pass found and misses; nothing for one that passed, or is not there."""
    report = report_of(accepted_report(runtime, job.job_id) or "{}") if job.validation_passed is False else {}
    failures = failures_of(report)
    return {
        "failures": failures[:NAMED],
        "failure_count": len(failures),
        "missing": report.get("missing", []),
    }


def _extraction_report(runtime: Runtime, job: JobRecord) -> dict[str, Any]:
    rules, abstained = 0, dict[str, int]()
    items = runtime.ledger.reads.items(job.job_id, Stage.GENERATE_RULES)
    waivers = waivers_of(runtime, job.job_id)
    for item in items:
        if item.output is not None:
            accepted = RuleOutput.model_validate_json(item.output)
            output, _ = in_force(accepted, SuiteOutput(), waivers.get(item.clause_ordinal or 0))
            rules += len(output.rules)
            if output.no_rule is not None:
                abstained[output.no_rule.reason] = abstained.get(output.no_rule.reason, 0) + 1
    return {
        "normative_clauses": len(items),
        "rules": rules,
        "abstained": dict(sorted(abstained.items())),
        "waived": len(waivers),
    }


def failures_of(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Return every failure of a validation report: the clauses' in document order, then the ruleset's.

    What the policy asks for beside them stands under `missing`.
    """
    of_clauses = [
        {"item_key": clause["item_key"], **failure}
        for clause in report.get("clauses", [])
        for failure in clause["failures"]
    ]
    return [*of_clauses, *report.get("failures", [])]


def lease_of(item: ItemRecord, now: int) -> str:
    """Say who holds an item, and until when."""
    return f"{item.key.item_key} is held by {item.worker}, whose lease ends {moment(item.lease_until, now)}"


def loss_of(item: ItemRecord) -> str:
    """Say who held an item and is lost."""
    return f"{item.key.item_key} was held by {item.worker}, which is proven dead"


def items_of_lost_workers(runtime: Runtime, items: Sequence[ItemRecord], now: int) -> list[ItemRecord]:
    """Return the items under a live lease whose worker is proven dead: whoever claims next takes them over at once."""
    held = [item for item in items if item.state is WorkState.RUNNING and (item.lease_until or 0) > now]
    lost = {worker for worker in {item.worker for item in held} if runtime.is_lost(worker)}
    return [item for item in held if item.worker in lost]


def retry_of(item: ItemRecord, now: int) -> str:
    """Say when an item's retry is due, and after what."""
    due = "is due for a repair" if item.repair else "is due"
    return f"{item.key.item_key} {due} {moment(item.next_attempt_at, now)} after {item.error_code}"


def is_ready(item: ItemRecord, now: int) -> bool:
    """Return whether an item can be claimed: pending, a retry that is due, or a lease that has passed."""
    match item.state:
        case WorkState.PENDING:
            return True
        case WorkState.WAITING:
            return (item.next_attempt_at or 0) <= now
        case WorkState.RUNNING:
            return (item.lease_until or 0) <= now
        case _:
            return False


def _count(items: list[ItemRecord]) -> str:
    return "1 item" if len(items) == 1 else f"{len(items)} items"
