"""`confirm`, `reject`, `waive`, `cancel`, `redrive`: what a person decides."""

from typing import Annotated

import typer

from rulegen_dagster.cli.jobs import JobArgument
from rulegen_dagster.cli.output import (
    JsonFlag,
    TenantOption,
    actor,
    not_blank,
    out,
    plain,
    print_json,
    reports_errors,
    runtime,
)
from rulegen_dagster.domain.errors import InputError
from rulegen_dagster.domain.identity import DEFAULT_TENANT, JobName
from rulegen_dagster.domain.states import Stage
from rulegen_dagster.domain.text import printable
from rulegen_dagster.workflow import decide
from rulegen_dagster.workflow.explain import status_report
from rulegen_dagster.workflow.publish import publish_with_others


@reports_errors
def confirm(
    job: JobArgument,
    action_set: Annotated[
        str, typer.Option("--action-set", help="The SHA-256 of the action set, as 'rulegen review' shows it.")
    ],
    tenant: TenantOption = DEFAULT_TENANT,
    publish_now: Annotated[
        bool,
        typer.Option("--publish", help="Publish in this process too, instead of leaving it to Dagster's sensor."),
    ] = False,
    json_output: JsonFlag = False,
) -> None:
    """Confirm exactly this action set. Any other hash than the job's current one is refused.

    \b
    Examples:
      rulegen confirm default/expense-policy-1f2e3d4c5b6a --action-set 3f6c…
      rulegen confirm travel-2027 --tenant acme --action-set 3f6c… --publish
    """
    with runtime() as opened:
        found = opened.ledger.reads.job(JobName.parse(job, tenant=tenant))
        newly = decide.confirm(opened, found, action_set, actor=actor())
        if publish_now:
            publish_with_others(opened, opened.ledger.reads.job_by_id(found.job_id))
        report = {**status_report(opened, found), "confirmed_now": newly}
        if json_output:
            print_json(report)
            return
        out().print(plain(f"{report['job']} {'is confirmed' if newly else 'was confirmed before'}"))
        out().print(plain(f"  {report['reason']}"))
        if report["published"]:
            out().print(plain(f"  published: {report['published']}"))


@reports_errors
def reject(
    job: JobArgument,
    reason: Annotated[str, typer.Option("--reason", help="Why; kept with the job.", callback=not_blank)],
    tenant: TenantOption = DEFAULT_TENANT,
    json_output: JsonFlag = False,
) -> None:
    """Reject a job that waits for a person; it ends as cancelled, and its outputs are kept.

    \b
    Example:
      rulegen reject travel-2027 --reason "superseded by the 2027 edition"
    """
    with runtime() as opened:
        found = opened.ledger.reads.job(JobName.parse(job, tenant=tenant))
        opened.ledger.actions.reject(found.job_id, actor=actor(), reason=reason[:500])
        report = status_report(opened, found)
        if json_output:
            print_json(report)
            return
        out().print(plain(f"{report['job']} is rejected: {report['reason']}"))


@reports_errors
def waive(
    job: JobArgument,
    clause: Annotated[str, typer.Argument(help="The clause: its item (rule-07) or its ordinal.", metavar="CLAUSE")],
    reason: Annotated[
        str, typer.Option("--reason", help="Why the clause needs no rule; published with it.", callback=not_blank)
    ],
    tenant: TenantOption = DEFAULT_TENANT,
    json_output: JsonFlag = False,
) -> None:
    """Say, under your name, that a normative clause needs no rule. A waiver cannot be taken back.

    Whatever was generated for the clause is left out of the ruleset; what failed or waits of it ends, and the job goes
    on. A job that did not pass validation is validated again, by 'rulegen run' or by Dagster's sensor.

    \b
    Examples:
      rulegen waive travel-2027 rule-07 --reason "guidance, not a rule"
      rulegen waive travel-2027 41 --tenant acme --reason "decided by the travel desk" --json
    """
    with runtime() as opened:
        found = opened.ledger.reads.job(JobName.parse(job, tenant=tenant))
        report = decide.waive(opened, found, clause, actor=actor(), reason=reason)
        if json_output:
            print_json(report)
            return
        said = "is waived" if report["waived_now"] else "was waived before"
        out().print(plain(f"{report['job']} {report['item']} {said}"))
        for stage in report["ended"]:
            out().print(plain(f"  {stage}/{report['item']} ended without an output of its own"))
        out().print(plain(f"  {report['reason']}"))


@reports_errors
def cancel(
    job: JobArgument,
    reason: Annotated[str, typer.Option("--reason", help="Why; kept with the job.", callback=not_blank)],
    tenant: TenantOption = DEFAULT_TENANT,
    json_output: JsonFlag = False,
) -> None:
    """Cancel a job wherever it stands; what is accepted is kept, and nothing more of it is called or accepted.

    Calls in flight, in any process, are ended within a second. A job that has ended, or whose publication was begun,
    cannot be cancelled.

    \b
    Examples:
      rulegen cancel travel-2027 --reason "the wrong edition was uploaded"
      rulegen cancel travel-2027 --tenant acme --reason "superseded" --json
    """
    with runtime() as opened:
        found = opened.ledger.reads.job(JobName.parse(job, tenant=tenant))
        cancelled = opened.ledger.cancellations.cancel(found.job_id, actor=actor(), reason=reason[:500])
        report = {
            **status_report(opened, found),
            "cancelled_items": cancelled.items,
            "cancelled_in_flight": cancelled.in_flight,
        }
        if json_output:
            print_json(report)
            return
        out().print(plain(f"{report['job']} is cancelled: {reason[:500]}"))
        out().print(f"  {cancelled.items} unfinished items ended, {cancelled.in_flight} of them in flight")


@reports_errors
def redrive(
    job: JobArgument,
    items: Annotated[list[str] | None, typer.Argument(help="Item keys, such as rule-03; none means all.")] = None,
    *,
    reason: Annotated[
        str, typer.Option("--reason", help="Why they may succeed now; kept in the log.", callback=not_blank)
    ],
    tenant: TenantOption = DEFAULT_TENANT,
    json_output: JsonFlag = False,
) -> None:
    """Give failed items new attempts; everything that is accepted stays as it is.

    \b
    Examples:
      rulegen redrive travel-2027 --reason "the provider's quota was raised"
      rulegen redrive travel-2027 rule-03 rule-07 --reason "the script is mended"
    """
    with runtime() as opened:
        found = opened.ledger.reads.job(JobName.parse(job, tenant=tenant))
        known = {item.key.item_key for stage in Stage for item in opened.ledger.reads.items(found.job_id, stage)}
        unknown = [item for item in items or () if item not in known]
        if unknown:
            raise InputError(f"the job has no item '{printable(unknown[0])[:64]}'", code="item_not_found")
        redriven = {
            stage.value: opened.ledger.redrives.redrive(
                found.job_id, stage, items or None, actor=actor(), reason=reason
            )
            for stage in Stage
        }
        report = {
            **status_report(opened, found),
            "redriven": {stage: list(keys) for stage, keys in redriven.items() if keys},
        }
        if json_output:
            print_json(report)
            return
        for stage, keys in report["redriven"].items():
            out().print(f"{stage}: {', '.join(keys)}")
        if not report["redriven"]:
            out().print("no failed item was among them; nothing has changed")
        out().print(plain(f"  {report['reason']}"))
