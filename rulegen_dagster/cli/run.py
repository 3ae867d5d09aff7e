"""`run`, `submit`: a specification becomes a job, and `run` takes it as far as it goes."""

from pathlib import Path
from typing import Annotated, Any

import typer

from rulegen_dagster.cli.jobs import DeadlineOption, show_job
from rulegen_dagster.cli.output import JsonFlag, TenantOption, actor, out, plain, reports_errors, runtime
from rulegen_dagster.cli.progress import JobProgress
from rulegen_dagster.domain.errors import StoppedError
from rulegen_dagster.domain.identity import DEFAULT_TENANT
from rulegen_dagster.domain.states import JobState
from rulegen_dagster.ledger.reads import JobRecord
from rulegen_dagster.workflow.drive import drive
from rulegen_dagster.workflow.explain import status_report
from rulegen_dagster.workflow.intake import Intake, submit_file
from rulegen_dagster.workflow.outages import ride_out
from rulegen_dagster.workflow.publish import publish_with_others
from rulegen_dagster.workflow.stopping import stopped_by_signals

FileArgument = Annotated[Path, typer.Argument(help="The specification: .md, .txt, .html, .docx or .pdf.")]
KeyOption = Annotated[
    str | None,
    typer.Option("--key", help="Your idempotency key; without one, it is made of the file's name and content."),
]
VocabularyOption = Annotated[
    str | None,
    typer.Option(
        "--vocabulary",
        metavar="NAME",
        help="Facts that the new job's rules may speak of: expense, travel, leave; else RULEGEN_VOCABULARY.",
    ),
]

_REACHED = frozenset({JobState.AWAITING_CONFIRMATION, JobState.COMPLETED})


@reports_errors
def run(
    file: FileArgument,
    tenant: TenantOption = DEFAULT_TENANT,
    key: KeyOption = None,
    *,
    confirm: Annotated[
        bool, typer.Option("--confirm", help="Confirm the action set as it is, and publish the ruleset.")
    ] = False,
    deadline: DeadlineOption = None,
    vocabulary: VocabularyOption = None,
    json_output: JsonFlag = False,
) -> None:
    """Take a specification through the whole pipeline, in this process.

    The job stops where a person has to confirm; --confirm does that too and publishes. The same command again goes
    on where the job stands: what is accepted already is not generated again. Exit code 0 means that the job waits
    for a confirmation, or is published.

    At the first SIGTERM or Ctrl-C it claims nothing more; calls in flight are finished, or given back within
    RULEGEN_GRACE_MS. A second one ends it at once.

    \b
    Examples:
      rulegen run policy.md
      rulegen run policy.md --tenant acme --key travel-2027 --json
      rulegen run policy.md --vocabulary travel --confirm
    """
    with runtime() as opened, stopped_by_signals(grace_ms=opened.settings.grace_ms) as stop:
        intake = submit_file(
            opened, file, tenant=tenant, key=key, actor=actor(), deadline_ms=deadline, vocabulary=vocabulary
        )
        with ride_out(lambda: JobProgress(opened, intake.job.job_id, quiet=json_output)) as progress:
            job = drive(opened, intake.job, observe=progress.observe, on_wait=progress.waiting, stop=stop)
        if stop.is_requested and (job.state not in _REACHED or (confirm and job.state is not JobState.COMPLETED)):
            raise _stopped(job)
        if confirm and job.state is JobState.AWAITING_CONFIRMATION:
            digest = str(job.action_set_digest)
            # Confirmed twice is confirmed once: an answer that was lost does no harm.
            ride_out(lambda: opened.ledger.actions.confirm(intake.job.job_id, digest, actor=actor()))
            job = ride_out(lambda: opened.ledger.reads.job_by_id(intake.job.job_id))
        if job.state is JobState.EXECUTING:
            publish_with_others(opened, job, stop=stop)
        report = ride_out(lambda: status_report(opened, job))
        _show(intake, report, json_output=json_output)
        if JobState(report["state"]) not in _REACHED:
            raise typer.Exit(1)


@reports_errors
def submit(
    file: FileArgument,
    tenant: TenantOption = DEFAULT_TENANT,
    key: KeyOption = None,
    *,
    deadline: DeadlineOption = None,
    vocabulary: VocabularyOption = None,
    json_output: JsonFlag = False,
) -> None:
    """Accept a specification as a job and return at once; Dagster's `due_work` sensor, or `rulegen run`, does the work.

    \b
    Examples:
      rulegen submit policy.md
      rulegen submit policy.md --tenant acme --key travel-2027 --deadline 2h --json
    """
    with runtime() as opened:
        intake = submit_file(
            opened, file, tenant=tenant, key=key, actor=actor(), deadline_ms=deadline, vocabulary=vocabulary
        )
        report = status_report(opened, intake.job)
        _show(intake, report, json_output=json_output)


def _stopped(job: JobRecord) -> StoppedError:
    return StoppedError(
        f"told to stop while the job {job.name} is {job.state}; what was accepted is saved, and what was in flight is"
        " given back: 'rulegen run' with the same file and key goes on there"
    )


def _show(intake: Intake, report: dict[str, Any], *, json_output: bool) -> None:
    """Show the job, and what it froze otherwise than this process is set up for, where it was here before."""
    if intake.existing:
        report["existing"] = True
        report["frozen_otherwise"] = [vars(one) for one in intake.frozen_otherwise]
    show_job(report, json_output)
    if intake.frozen_otherwise and not json_output:
        kept = ", ".join(f"{one.what} {one.frozen}" for one in intake.frozen_otherwise)
        asked = ", ".join(f"{one.what} {one.asked}" for one in intake.frozen_otherwise)
        out().print(
            plain(
                f"  this job was frozen with {kept}; you asked for {asked}: a new --key makes another job of the file",
                "yellow",
            )
        )
