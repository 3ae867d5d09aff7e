"""`behaviours` and `decide`: what jobs are made with, and what becomes of one that a release cannot go on with."""

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
from rulegen_dagster.domain.behaviour import Choice
from rulegen_dagster.domain.identity import DEFAULT_TENANT, JobName
from rulegen_dagster.workflow.compare_behaviours import behaviours_report, difference_report
from rulegen_dagster.workflow.decide import decide as carry_out

behaviours = typer.Typer()
_SHOWN_DIGITS = 12


def _optional_text(text: str | None) -> str | None:
    return None if text is None else not_blank(text)


@behaviours.callback(invoke_without_command=True)
@reports_errors
def list_behaviours(context: typer.Context, json_output: JsonFlag = False) -> None:
    """List the behaviours that jobs froze, oldest first, and whether the running release can honour each.

    A behaviour is everything that shapes a job's outputs: pipeline, provider, model, prompts, schema, vocabulary,
    policy. A star marks the one that a job submitted now would freeze.

    \b
    Examples:
      rulegen behaviours
      rulegen behaviours --json
      rulegen behaviours diff default/expense-policy-1f2e3d4c5b6a current
    """
    if context.invoked_subcommand is not None:
        return
    with runtime() as opened:
        report = behaviours_report(opened)
    if json_output:
        print_json(report)
        return
    if not report["behaviours"]:
        out().print("no job has frozen a behaviour yet")
    for one in report["behaviours"]:
        _print_behaviour(out(), one)


@behaviours.command("diff")
@reports_errors
def diff_behaviours(
    one: Annotated[str, typer.Argument(help="A digest's first digits, a job, or 'current'.", metavar="FROM")],
    other: Annotated[str, typer.Argument(help="The same, for the other one.", metavar="TO")],
    tenant: TenantOption = DEFAULT_TENANT,
    json_output: JsonFlag = False,
) -> None:
    """Show what differs between two behaviours; prompts as a unified diff of their texts.

    \b
    Examples:
      rulegen behaviours diff travel-2027 current --tenant acme
      rulegen behaviours diff 3f6c 91ab --json
    """
    with runtime() as opened:
        report = difference_report(opened, one, other, tenant=tenant)
    if json_output:
        print_json(report)
        return
    out().print(plain(f"{report['from'][:_SHOWN_DIGITS]} → {report['to'][:_SHOWN_DIGITS]}", "bold"))
    if not report["changed"]:
        out().print("  nothing differs")
    print_changes(out(), report["changed"])
    for prompt in report["prompts"]:
        for line in prompt["diff"].splitlines():
            out().print(plain(line, {"+": "green", "-": "red"}.get(line[:1], "")))


@reports_errors
def decide(
    job: JobArgument,
    choice: Annotated[Choice, typer.Argument(help="What becomes of it.", metavar="retain|migrate|stop")],
    reason: Annotated[
        str | None, typer.Option("--reason", help="Why; kept with the job.", callback=_optional_text)
    ] = None,
    tenant: TenantOption = DEFAULT_TENANT,
    json_output: JsonFlag = False,
) -> None:
    """Decide about a job that needs a decision, because a release cannot honour what the job froze.

    \b
    retain    it keeps what it froze, and goes on by itself where a release runs that honours that: at once if this is
              one. Where the provider's reported model has changed, it goes on with the model as it is now.
    migrate   it takes on what it chose as this release has it (see 'rulegen behaviours diff JOB current'). What is
              accepted stays, the rest is made in the new way, and validation runs anew. Refused where this release
              cannot read what is accepted.
    stop      it ends as cancelled; 'rulegen fork' may open a successor.

    \b
    Examples:
      rulegen decide travel-2027 retain --reason "release 1 finishes it"
      rulegen decide travel-2027 --tenant acme migrate --reason "the new prompt is better" --json
    """
    with runtime() as opened:
        found = opened.ledger.reads.job(JobName.parse(job, tenant=tenant))
        report = carry_out(opened, found, choice, actor=actor(), reason=reason)
        if json_output:
            print_json(report)
            return
        said = {Choice.RETAIN: "is retained", Choice.MIGRATE: "is migrated", Choice.STOP: "is stopped"}[choice]
        out().print(plain(f"{report['job']} {said if report['decided_now'] else 'was retained before'}"))
        print_changes(out(), report["changed"])
        out().print(plain(f"  {report['state']}: {report['reason']}"))


def print_changes(console: Console, changed: list[dict[str, Any]]) -> None:
    """Print what differs between two behaviours, one part on a line."""
    for change in changed:
        console.print(plain(f"  {change['field']}: {change['was']} → {change['now']}"))


def _print_behaviour(console: Console, one: dict[str, Any]) -> None:
    content = one["content"]
    star = "*" if one["is_current"] else " "
    honoured = {True: "honoured here", False: "not honoured here", None: "cannot be told here"}[one["honoured"]]
    counts = f"{one['jobs']} jobs, {one['unfinished_jobs']} unfinished"
    console.print(plain(f"{star} {one['digest'][:_SHOWN_DIGITS]}  {counts}  {honoured}", "bold"))
    prompts = ", ".join(f"{task} {label.partition('@')[0]}" for task, label in content["prompt_versions"].items())
    console.print(
        plain(f"    {content['provider']} {content['model_id']}" + (f", prompts {prompts}" if prompts else ""))
    )
    console.print(
        plain(
            f"    {content['vocabulary']}, {content['validation_policy']}, {content['output_schema']},"
            f" {content['retrieval_index']}, release {content['application_release']}"
        )
    )
    if one["why_not"]:
        console.print(plain(f"    {one['why_not']}"))
