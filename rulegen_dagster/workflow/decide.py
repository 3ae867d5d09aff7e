"""Decisions that a person takes on a job: a waiver of one clause, a confirmation, what becomes of a behaviour."""

from typing import Any

from rulegen_dagster.domain.behaviour import Choice, changes
from rulegen_dagster.domain.errors import InputError, StateError
from rulegen_dagster.domain.states import JobState, Stage
from rulegen_dagster.domain.text import printable
from rulegen_dagster.ledger.needed_decisions import decisions_of_job
from rulegen_dagster.ledger.reads import ItemRecord, JobRecord
from rulegen_dagster.workflow.behaviours import (
    check,
    held_up_by,
    incompatibility_of,
)
from rulegen_dagster.workflow.explain import reason_of, status_report
from rulegen_dagster.workflow.frozen import migration_of, unreadable_stages
from rulegen_dagster.workflow.runtime import Runtime

MAX_REASON = 500
"""The most characters of a waiver's reason."""


def waive(runtime: Runtime, job: JobRecord, clause: str, *, actor: str, reason: str) -> dict[str, Any]:
    """Waive a clause and return the job's status, with what the waiver set going.

    `clause` is an item key (`rule-07`) or the clause's ordinal. Raises `InputError` for a clause that the job does not
    have or a reason that is too long, and `StateError` where the job cannot take a waiver now.
    """
    if len(reason) > MAX_REASON:
        raise InputError(
            f"a reason has at most {MAX_REASON} characters, this one {len(reason)}", code="reason_too_long"
        )
    item = _item(runtime, job, clause)
    ordinal = item.clause_ordinal or 0
    waived = runtime.ledger.waivers.waive(job.job_id, ordinal, actor=actor, reason=reason)
    return {
        **status_report(runtime, job),
        "item": item.key.item_key,
        "clause_ordinal": ordinal,
        "waived_now": waived.is_new,
        "ended": [stage.value for stage in waived.ended],
        "validates_again": waived.validates_again,
    }


def confirm(runtime: Runtime, job: JobRecord, action_set: str, *, actor: str) -> bool:
    """Confirm a job's action set; return whether it was not confirmed before.

    Raises `ActionSetMismatchError` for any other hash than the job's, and `StateError` for a job that cannot be
    confirmed: one that did not pass validation has no action set, and the message says what it lacks. One whose
    behaviour this release cannot honour needs a decision first.
    """
    checked = check(runtime, job.job_id)
    if not checked.may_go_on:
        raise StateError(f"the job cannot be confirmed here: {held_up_by(runtime, checked).text}")
    try:
        return runtime.ledger.actions.confirm(job.job_id, action_set, actor=actor)
    except StateError as error:
        now = runtime.ledger.reads.job_by_id(job.job_id)
        if now.state is not JobState.VALIDATING or now.validation_passed is not False:
            raise
        raise StateError(f"{error.message}; {reason_of(runtime, now).text}", code=error.code) from error


def decide(runtime: Runtime, job: JobRecord, choice: Choice, *, actor: str, reason: str | None) -> dict[str, Any]:
    """Carry out what a person decided about a job that needs a decision; return its status, with what that did.

    A retained job goes back at once where this release honours it, and else waits for one that does. A migrated one
    takes on what it chose, as this release has it. Raises `StateError` where the job needs no decision or cannot take
    this one, `InputError` for a reason that is too long, and what `migration_of` raises.
    """
    if reason is not None and len(reason) > MAX_REASON:
        raise InputError(
            f"a reason has at most {MAX_REASON} characters, this one {len(reason)}", code="reason_too_long"
        )
    decisions, before = runtime.ledger.decisions, runtime.ledger.reads.job_by_id(job.job_id)
    (*_, needed) = [None, *decisions_of_job(runtime.ledger.database, job.job_id)]
    is_new, is_resumed = True, False
    match choice:
        case Choice.RETAIN:
            stood = needed.from_state if needed else before.state
            resume = incompatibility_of(runtime, before, state=stood, opening=True) is None
            retained = decisions.retain(job.job_id, actor=actor, reason=reason, resume=resume)
            is_new, is_resumed = retained.is_new, retained.is_resumed
        case Choice.MIGRATE:
            # Asked first: what a job that needs no decision would take on is nobody's business.
            decisions.require(job.job_id)
            frozen = migration_of(runtime, before)
            stages = unreadable_stages(before, frozen.behaviour)
            decisions.migrate(job.job_id, frozen, actor=actor, reason=reason, unreadable=stages)
            is_resumed = True
        case Choice.STOP:
            why = needed.incompatibility.text if needed else "no part of it is known"
            decisions.stop(job.job_id, actor=actor, reason=reason or f"stopped: {why}")
    after = runtime.ledger.reads.job_by_id(job.job_id)
    return {
        **status_report(runtime, after),
        "decision": choice.value,
        "decided_now": is_new,
        "resumed": is_resumed,
        "changed": [vars(change) for change in changes(before.behaviour, after.behaviour)],
    }


def _item(runtime: Runtime, job: JobRecord, clause: str) -> ItemRecord:
    items = runtime.ledger.reads.items(job.job_id, Stage.GENERATE_RULES)
    named = [item for item in items if clause in (item.key.item_key, str(item.clause_ordinal))]
    if not named:
        raise InputError(
            f"the job has no normative clause '{printable(clause)[:64]}'; name its item (rule-07) or its ordinal, as"
            " 'rulegen review' lists them once the specification is parsed",
            code="clause_not_found",
        )
    return named[0]
