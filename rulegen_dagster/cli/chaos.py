"""`chaos`: kill a small job at every commit and provider boundary, and check every invariant."""

from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from rulegen_dagster.cli.output import JsonFlag, err, out, plain, print_json, reports_errors
from rulegen_dagster.domain.failpoints import Failpoint
from rulegen_dagster.workflow.chaos import Chaos, Report, report_of
from rulegen_dagster.workflow.chaos_invariants import UNCHECKED


@reports_errors
def chaos(
    database: Annotated[
        str | None,
        typer.Option(
            "--database", help="A ledger made for this (its jobs stay in it); without one, a temporary SQLite."
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option("--seed", help="Add runs that are killed at random moments; the same seed, the same runs."),
    ] = None,
    point: Annotated[
        list[Failpoint] | None, typer.Option("--point", help="Only this failpoint; may be given several times.")
    ] = None,
    json_output: JsonFlag = False,
) -> None:
    """Kill a small job at every commit boundary and every provider boundary, go on, and check every invariant.

    Each run takes a built-in policy through all stages to its bundle, in processes that die, or stand still beyond
    their lease, at one failpoint; the scripted provider keeps a journal of its calls. The leases run on a clock of
    their own, so nothing waits. Exit code 1 where an invariant was broken.

    \b
    Examples:
      rulegen chaos
      rulegen chaos --seed 7 --json
      rulegen chaos --database postgresql://localhost/rulegen_chaos --point provider.after_answer
    """
    session = Chaos(url=database, seed=seed, only=tuple(point or ()))
    console = err()
    console.quiet = json_output
    if console.is_terminal and not json_output:
        columns = (TextColumn("{task.description:<48}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True, auto_refresh=False) as bar:
            task = bar.add_task("counting the points")

            def show(number: int, total: int, name: str) -> None:
                bar.update(task, completed=number - 1, total=total, description=name[:48], refresh=True)

            session.tell = show
            report = session.run()
    else:

        def line(number: int, total: int, name: str) -> None:
            if number % 25 == 1:
                console.print(f"  run {number} of {total}: {name}")

        session.tell = line
        report = session.run()
    if json_output:
        print_json({**report_of(report), "unchecked": list(UNCHECKED)})
    else:
        _show(report)
    if report.violations:
        raise typer.Exit(1)


def _show(report: Report) -> None:
    console = out()
    width = max(len(line.point) for line in report.lines)
    console.print(f"{'failpoint'.ljust(width)}  kills  stops  result")
    for line in report.lines:
        result = f"{line.violations} violations" if line.violations else "ok"
        console.print(
            plain(
                f"{line.point.ljust(width)}  {line.kills:>5}  {line.stops:>5}  {result}",
                "red" if line.violations else "",
            )
        )
    for broken in report.violations:
        console.print(plain(f"✗ invariant {broken.invariant}, {broken.run}: {broken.found}", "red"))
    console.print(
        f"{report.points} points, {report.runs} runs, {report.kills} kills, {report.stops} stops,"
        f" {len(report.violations)} violations, {report.seconds} s"
    )
    for note in UNCHECKED:
        console.print(plain(f"not checked: invariant {note}"))
    if report.folder:
        console.print(plain(f"what the broken runs left is in {report.folder}"))
