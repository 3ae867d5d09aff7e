"""`extend` and `fork`: more time for a job, and successors of jobs that ended without a result."""

from typing import Annotated

import typer

from rulegen_dagster.cli.jobs import DeadlineOption, JobArgument, duration_option
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
from rulegen_dagster.domain.identity import DEFAULT_TENANT, JobName
from rulegen_dagster.domain.text import instant
from rulegen_dagster.ledger.reads import JobRecord
from rulegen_dagster.workflow.explain import status_report
from rulegen_dagster.workflow.forks import extend_job, fork_job
from rulegen_dagster.workflow.runtime import Runtime


@reports_errors
def extend(
    job: JobArgument,
    reason: Annotated[str, typer.Option("--reason", help="Why; kept in the log.", callback=not_blank)],
    by: Annotated[
        int | None,
        typer.Option(
            "--by", parser=duration_option, metavar="DURATION", help="How much, such as 2h; else RULEGEN_DEADLINE_MS."
        ),
    ] = None,
    tenant: TenantOption = DEFAULT_TENANT,
    json_output: JsonFlag = False,
) -> None:
    """Give a job more time before its deadline.

    A job that has expired never changes: then a successor is opened, as 'rulegen fork' does, under the job's key with
    '~2' behind it, and gets that time. It keeps everything that was accepted.

    \b
    Examples:
      rulegen extend travel-2027 --reason "the provider was down all night"
      rulegen extend travel-2027 --tenant acme --by 2h --reason "one more attempt" --json
    """
    with runtime() as opened:
        found = opened.ledger.reads.job(JobName.parse(job, tenant=tenant))
        extension = extend_job(opened, found, by_ms=by, actor=actor(), reason=reason)
        successor_of = str(found.name) if extension.is_successor else None
        report = {**status_report(opened, extension.job), "extended": True, "successor_of": successor_of}
        if json_output:
            print_json(report)
            return
        if extension.is_successor:
            out().print(plain(f"{found.name} has expired and never changes; its successor goes on"))
            _print_successor(opened, extension.job)
        else:
            out().print(plain(f"{report['job']} has until {instant(report['deadline_ms'])}"))
            out().print(plain(f"  {report['reason']}"))


@reports_errors
def fork(
    job: JobArgument,
    key: Annotated[str, typer.Option("--key", help="The successor's submission key, in the same tenant.")],
    deadline: DeadlineOption = None,
    tenant: TenantOption = DEFAULT_TENANT,
    json_output: JsonFlag = False,
) -> None:
    """Open the successor of a job that ended as failed, cancelled or expired; nothing accepted is paid for again.

    It has the same upload and the same frozen behaviour. Clauses and accepted outputs are taken over, and whatever
    failed or was not finished starts anew. The same command again returns the same successor.

    \b
    Examples:
      rulegen fork travel-2027 --key travel-2027-b
      rulegen fork travel-2027 --tenant acme --key travel-2027-b --deadline 2d --json
    """
    with runtime() as opened:
        found = opened.ledger.reads.job(JobName.parse(job, tenant=tenant))
        forked = fork_job(opened, found, key, deadline_ms=deadline, actor=actor())
        report = {
            **status_report(opened, forked.job),
            "successor_of": str(found.name),
            "inherited": _inherited(opened, forked.job),
            "existing": forked.existing,
        }
        if json_output:
            print_json(report)
            return
        if forked.existing:
            out().print("  this successor was opened before")
        _print_successor(opened, forked.job)


def _print_successor(opened: Runtime, job: JobRecord) -> None:
    count = _inherited(opened, job)
    out().print(plain(f"{job.name} has taken over {count} accepted outputs, and is {job.state}", "bold"))
    out().print(
        plain(
            "  it is gone on with by Dagster's due_work sensor, or by"
            f" 'rulegen run FILE --tenant {job.name.tenant} --key {job.name.submission_key}' with the same file"
        )
    )


def _inherited(opened: Runtime, job: JobRecord) -> int:
    return sum(attempt.inherited_from is not None for attempt in opened.ledger.reads.attempts(job.job_id))
