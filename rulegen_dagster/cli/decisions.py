"""`review`, `confirm`, `reject`, `cancel`, `redrive`: what a person decides."""

import json
from typing import Annotated, Any

import typer
from rich.console import Console

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
from rulegen_dagster.workflow.explain import status_report
from rulegen_dagster.workflow.publish import publish_with_others
from rulegen_dagster.workflow.review import review_report


@reports_errors
def review(job: JobArgument, tenant: TenantOption = DEFAULT_TENANT, json_output: JsonFlag = False) -> None:
    """Show each clause with its rule, condition, tests and findings, and the action set to confirm.

    \b
    Examples:
      rulegen review default/expense-policy-1f2e3d4c5b6a
      rulegen review travel-2027 --tenant acme --json
    """
    with runtime() as opened:
        report = review_report(opened, opened.ledger.reads.job(JobName.parse(job, tenant=tenant)))
        if json_output:
            print_json(report)
            return
        _print_review(out(), report)


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
        newly = opened.ledger.actions.confirm(found.job_id, action_set, actor=actor())
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


def _print_review(console: Console, report: dict[str, Any]) -> None:
    console.print(plain(f"{report['job']}  {report['state']}", "bold"))
    label = f" ({report['provider_label']})" if report["provider_label"] else ""
    console.print(f"generated by {report['provider']}{label}")
    for clause in report["clauses"]:
        console.print()
        console.print(plain(f"{clause['item']}  {' › '.join(clause['heading_path'])}", "bold"))
        console.print(plain(f"  “{clause['text']}”"))
        for rule in clause["rules"]:
            console.print(plain(f"  {rule['id']}: {rule['in_words']}"))
            console.print(plain(f"    when {rule['applies_when']}", "cyan"))
            for exception in rule["unless"]:
                console.print(plain(f"    unless {exception}", "cyan"))
            if rule["cap"]:
                console.print(plain(f"    cap {rule['cap']}", "cyan"))
            for name, value in rule["params"].items():
                console.print(plain(f"    p.{name} = {value}"))
        if clause["no_rule"]:
            console.print(plain(f"  no rule: {clause['no_rule']['reason']}", "yellow"))
        for case in clause["tests"]:
            facts = json.dumps(case["facts"], ensure_ascii=False)
            console.print(plain(f"    test {case['name']} [{case['kind']}]: {facts} → {case['expect']}"))
        for failure in clause["failures"]:
            console.print(plain(f"  ✗ {failure['code']} at {failure['path']}: {failure['message']}", "red"))
    console.print()
    for failure in report["failures"]:
        console.print(plain(f"✗ {failure['code']} at {failure['path']}: {failure['message']}", "red"))
    console.print(
        f"{report['rules']} rules, {report['tests']} tests, {sum(report['abstained'].values())} clauses without a rule"
    )
    if report["action_set"]:
        console.print(f"action set {report['action_set']}")
        for action in report["actions"]:
            console.print(plain(f"  {action['kind']} {action['target']}"))
    console.print(plain(report["reason"]))
