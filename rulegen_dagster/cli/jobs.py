"""`status`, `list`: how far jobs are."""

from collections import Counter
from typing import Annotated, Any

import typer

from rulegen_dagster.cli.output import (
    JsonFlag,
    TenantOption,
    out,
    plain,
    print_json,
    recovery_line,
    reports_errors,
    runtime,
)
from rulegen_dagster.domain.deadline import parse_duration
from rulegen_dagster.domain.errors import InputError
from rulegen_dagster.domain.identity import DEFAULT_TENANT, JobName, check_tenant
from rulegen_dagster.domain.states import TERMINAL_JOB_STATES, JobState
from rulegen_dagster.domain.text import instant
from rulegen_dagster.workflow.explain import status_report
from rulegen_dagster.workflow.quotas import dollars
from rulegen_dagster.workflow.runtime import Runtime


def duration_option(text: str) -> int:
    """Read a duration that was given as an option, in ms. Raises `BadParameter`, which is wrong usage (exit code 2)."""
    try:
        return parse_duration(text)
    except InputError as error:
        raise typer.BadParameter(error.message) from None


DeadlineOption = Annotated[
    int | None,
    typer.Option(
        "--deadline",
        parser=duration_option,
        metavar="DURATION",
        help="How long the new job has, end to end: 90s, 30m, 2h, 7d; else RULEGEN_DEADLINE_MS.",
    ),
]
JobArgument = Annotated[str, typer.Argument(help="The job: TENANT/KEY, or KEY for the tenant of --tenant.")]


@reports_errors
def status(job: JobArgument, tenant: TenantOption = DEFAULT_TENANT, json_output: JsonFlag = False) -> None:
    """Show how far a job is, and the one reason why it is not further.

    \b
    Examples:
      rulegen status default/expense-policy-1f2e3d4c5b6a
      rulegen status travel-2027 --tenant acme --json
    """
    with runtime() as opened:
        found = opened.ledger.reads.job(JobName.parse(job, tenant=tenant))
        show_job(status_report(opened, found), json_output)


@reports_errors
def list_jobs(
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only this tenant's jobs.")] = None,
    json_output: JsonFlag = False,
) -> None:
    """List jobs, oldest first.

    \b
    Examples:
      rulegen list
      rulegen list --tenant acme --json
    """
    with runtime() as opened:
        if tenant is not None:
            check_tenant(tenant)
            if tenant not in opened.ledger.submissions.tenants():
                raise InputError(f"there is no tenant '{tenant}'", code="tenant_not_found")
        reports = [_line(opened, found.job_id) for found in opened.ledger.reads.jobs(tenant=tenant)]
        if json_output:
            print_json({"jobs": reports})
            return
        if not reports:
            out().print(plain(f"no jobs yet in {_place(opened)}; 'rulegen run FILE' makes one"))
            return
        columns = ("job", "state", "rules", "provider_calls")
        widths = {name: max(len(name), *(len(str(report[name])) for report in reports)) for name in columns}
        # Plain lines: a table would cut the names, and a name that is cut cannot be copied into the next command.
        out().print("  ".join([*(name.ljust(widths[name]) for name in columns), "reason"]))
        for report in reports:
            cells = [*(str(report[name]).ljust(widths[name]) for name in columns), report["reason"]]
            out().print(plain("  ".join(cells)))


def _place(opened: Runtime) -> str:
    """Return where the jobs are kept, without what may be secret in a URL."""
    if opened.settings.database_url is None:
        return str(opened.settings.home_path)
    url = opened.ledger.database.engine.url
    server = f" on {url.host}" + (f":{url.port}" if url.port else "") if url.host else ""
    return f"the ledger {url.database}{server}"


def _line(opened: Runtime, job_id: int) -> dict[str, Any]:
    report = status_report(opened, opened.ledger.reads.job_by_id(job_id))
    return {name: report[name] for name in ("job", "state", "reason", "rules", "provider_calls", "action_set")}


def unused_calls_line(report: dict[str, Any]) -> str:
    """Return one line on the calls that were paid for, or may have been, and not used."""
    listed = report["unused_calls"]
    outcomes = Counter(call["outcome"] for call in listed)
    named = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    tokens = sum((call["tokens_in"] or 0) + (call["tokens_out"] or 0) for call in listed)
    cost = sum(call["cost_micros"] or 0 for call in listed)
    untold = sum(call["cost_micros"] is None for call in listed)
    more = f" (the latest {len(listed)} of them)" if report["unused_calls_total"] > len(listed) else ""
    cost_unknown = f", {untold} of unknown cost" if untold else ""
    return (
        f"paid or maybe paid, and not used: {report['unused_calls_total']} calls{more}: {named};"
        f" {tokens} tokens, {cost / 1_000_000:.6f} known cost{cost_unknown}"
    )


def show_job(report: dict[str, Any], json_output: bool) -> None:
    """Print what `status_report` says."""
    if json_output:
        print_json(report)
        return
    console = out()
    console.print(plain(f"{report['job']}  {report['state']}", "bold"))
    if report.get("existing"):
        ended = report["state"] in ("failed", "cancelled", "expired")
        console.print(
            f"  this submission was here before, and its job has ended; 'rulegen fork {report['job']} --key …' goes on"
            " with what is accepted, or submit the file under a new --key"
            if ended
            else "  this submission was here before; this is its job"
        )
    label = f" ({report['provider_label']})" if report["provider_label"] else ""
    console.print(
        f"  {report['rules']} rules from {report['normative_clauses']} normative clauses,"
        f" by {report['provider']}{label}"
    )
    for reason, count in report["abstained"].items():
        console.print(f"  no rule: {count} × {reason}")
    repairs = report["repairs"]
    repaired = f", {repairs['made']} of them repairs ({repairs['accepted']} accepted)" if repairs["made"] else ""
    console.print(f"  provider calls: {report['calls_this_run']} now, {report['provider_calls']} in all{repaired}")
    if report["unused_calls_total"]:
        console.print(plain(f"  {unused_calls_line(report)}"))
    if kept := (report["charges"] or {}).get("kept"):
        console.print(
            f"  still charged as estimated, for nobody knows what they used: {kept['calls']} calls,"
            f" {kept['tokens']} tokens, {dollars(kept['cost_micros'])}"
        )
    if len(report["reported_models"]) > 1:
        console.print(plain(f"  models that the provider reported: {', '.join(report['reported_models'])}", "yellow"))
    for change in report["behaviour_changes"]:
        why = f": {change['reason']}" if change["reason"] else ""
        console.print(plain(f"  behaviour changed {instant(change['at'])} by {change['actor']}{why}", "yellow"))
    for stage, counts in report["stages"].items():
        if sum(counts.values()):
            shown = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
            console.print(f"    {stage:<15} {shown}")
    console.print(plain(f"  {report['reason']}"))
    for failure in report["failures"]:
        named = f"{failure['item_key']}: " if "item_key" in failure else ""
        console.print(plain(f"    ✗ {named}{failure['code']} at {failure['path']}: {failure['message']}"))
    if report["failure_count"] > len(report["failures"]):
        console.print(f"    and {report['failure_count'] - len(report['failures'])} more: 'rulegen review'")
    for lack in report["missing"]:
        console.print(plain(f"    ✗ {lack['code']}: {lack['message']}"))
    if report["deadline_ms"] is not None and JobState(report["state"]) not in TERMINAL_JOB_STATES:
        console.print(f"  deadline: {instant(report['deadline_ms'])}")
    if report["state"] != "completed":
        console.print(plain(f"  {recovery_line(report['recovery'])}"))
    if report["removed_content"]:
        since = instant(min(report["removed_content"].values()))
        console.print(f"  removed since {since}, by its retention: {', '.join(report['removed_content'])}")
    if report["published"]:
        console.print(plain(f"  published: {report['published']}"))
    elif report["state"] == "awaiting_confirmation":
        console.print(f"  review it: rulegen review {report['job']}")
