"""`why`, `events`, `gc`: looking into a job, and tidying up behind them all."""

import json
import math
import time
from typing import Annotated, Any

import typer
from rich.console import Console

from rulegen_dagster.cli.jobs import JobArgument, duration_option
from rulegen_dagster.cli.output import (
    JsonFlag,
    TenantOption,
    actor,
    out,
    plain,
    print_json,
    print_json_line,
    recovery_line,
    reports_errors,
    runtime,
)
from rulegen_dagster.domain.identity import DEFAULT_TENANT, JobName
from rulegen_dagster.domain.text import instant
from rulegen_dagster.ledger.events import Event
from rulegen_dagster.workflow.collect import DEFAULT_GRACE_HOURS, collect, collection_report
from rulegen_dagster.workflow.events import event_report, events_of, follow_events
from rulegen_dagster.workflow.why import why_report

INTERRUPTED = 130
_HOUR_MS = 3_600_000
_LARGEST = 2**63 - 1


def _finite(hours: float) -> float:
    if not math.isfinite(hours):
        raise typer.BadParameter("it must be a number of hours")
    return hours


@reports_errors
def why(
    job: JobArgument,
    item: Annotated[
        str | None,
        typer.Argument(
            help="An item: rule-03, generate_tests/rule-03, or a stage: parse, retrieve, validate, publish."
        ),
    ] = None,
    tenant: TenantOption = DEFAULT_TENANT,
    json_output: JsonFlag = False,
) -> None:
    """Say why a job, or one of its items, does not move: exactly one reason, with the evidence.

    \b
    Examples:
      rulegen why travel-2027 --tenant acme
      rulegen why default/expense-policy-1f2e3d4c5b6a rule-03
      rulegen why travel-2027 generate_tests/rule-03 --json
    """
    with runtime() as opened:
        report = why_report(opened, opened.ledger.reads.job(JobName.parse(job, tenant=tenant)), item)
    if json_output:
        print_json(report)
    else:
        _print_why(out(), report)


@reports_errors
def events(
    job: JobArgument,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on as they happen, until the job has ended or Ctrl-C.")
    ] = False,
    since: Annotated[int, typer.Option("--since", help="Only events behind this number.", min=0, max=_LARGEST)] = 0,
    tenant: TenantOption = DEFAULT_TENANT,
    json_output: JsonFlag = False,
) -> None:
    """Show a job's transitions, oldest first: number, time, what, from and to, why, by whom.

    With --json, one JSON document on each line. The number of the last line, given to --since, goes on behind it and
    misses nothing. Ctrl-C ends with exit code 130.

    \b
    Examples:
      rulegen events travel-2027 --tenant acme
      rulegen events travel-2027 --follow --json
      rulegen events travel-2027 --since 118
    """
    try:
        with runtime() as opened:
            found = opened.ledger.reads.job(JobName.parse(job, tenant=tenant))
            told = follow_events if follow else events_of
            for event in told(opened, found, since=since):
                if json_output:
                    print_json_line(event_report(event))
                else:
                    out().print(plain(_event_line(event)))
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


@reports_errors
def gc(
    grace: Annotated[
        float, typer.Option("--grace", help="Hours that a file must have lain unchanged.", min=0, callback=_finite)
    ] = DEFAULT_GRACE_HOURS,
    content_older_than: Annotated[
        int | None,
        typer.Option(
            "--content-older-than",
            parser=duration_option,
            metavar="DURATION",
            help="Also remove the content of jobs that ended longer ago: 30d, 180d.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Tell what would be removed, and remove nothing.")] = False,
    json_output: JsonFlag = False,
) -> None:
    """Remove stored files that no job names: orphans of uploads that were never accepted, and half-written files.

    The lock files of workers that have ended, and hold nothing any more, go too. With --content-older-than, so do the
    uploads, the texts read from them, and the prompts of jobs that ended longer ago, for good; clauses, accepted
    outputs, behaviours and all digests stay, and 'rulegen status' says what was removed and when. What another job
    still needs stays, too.

    Safe beside running work, as long as the grace period is longer than a submission takes; --grace 0 is for a time
    when nobody submits.

    \b
    Examples:
      rulegen gc --dry-run
      rulegen gc --grace 72 --json
      rulegen gc --content-older-than 180d --dry-run
    """
    grace_ms = int(grace * _HOUR_MS)
    with runtime() as opened:
        removed = list(
            collect(
                opened,
                grace_ms=grace_ms,
                now_ms=time.time_ns() // 1_000_000,
                dry_run=dry_run,
                content_older_than_ms=content_older_than,
                actor=actor(),
            )
        )
    report = collection_report(removed, grace_ms=grace_ms, dry_run=dry_run)
    if json_output:
        print_json(report)
        return
    for one in report["removed"]:
        out().print(plain(f"{one['kind']:<15} {one['bytes']:>12,} bytes  {one['name']}"))
    verb = "would be removed" if dry_run else "removed"
    out().print(f"{report['count']} {verb}, {report['bytes']:,} bytes")


def _event_line(event: Event) -> str:
    subject = event.item or event.subject
    return (
        f"{event.event_id:>6}  {instant(event.at)}  {subject}: {event.from_state or 'new'} → {event.to_state}"
        f"  ({event.cause}, {event.actor})"
    )


def _print_why(console: Console, report: dict[str, Any]) -> None:
    console.print(plain(f"{report['job']}  {report['item'] or ''}".rstrip(), "bold"))
    if report["state"]:
        console.print(plain(f"  state: {report['state']}"))
    console.print(plain(f"  {report['reason_code']}: {report['reason']}"))
    for name, value in report["evidence"].items():
        rows = value if isinstance(value, list) and value else [value]
        for row in rows:
            console.print(plain(f"    {name}: {_shown(name, row)}"))
    if report["next_at_ms"] is not None:
        console.print(plain(f"  goes on by itself: {instant(report['next_at_ms'])}"))
    console.print(plain(f"  {recovery_line(report['recovery'])}"))


def _shown(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name.endswith("_ms") and isinstance(value, int):
        return instant(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
