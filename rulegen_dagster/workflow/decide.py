"""Decisions that a person takes on a job: a waiver of one clause, a confirmation of its action set."""

from typing import Any

from rulegen_dagster.domain.errors import InputError, StateError
from rulegen_dagster.domain.states import JobState, Stage
from rulegen_dagster.domain.text import printable
from rulegen_dagster.ledger.reads import ItemRecord, JobRecord
from rulegen_dagster.workflow.explain import reason_of, status_report
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
    confirmed: one that did not pass validation has no action set, and the message says what it lacks.
    """
    try:
        return runtime.ledger.actions.confirm(job.job_id, action_set, actor=actor)
    except StateError as error:
        now = runtime.ledger.reads.job_by_id(job.job_id)
        if now.state is not JobState.VALIDATING or now.validation_passed is not False:
            raise
        raise StateError(f"{error.message}; {reason_of(runtime, now).text}", code=error.code) from error


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
