"""`parse`: what files would become as specifications, without a job."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from rulegen_dagster.cli.output import JsonFlag, out, plain, print_json, reports_errors, settings
from rulegen_dagster.domain.clause import ClauseRole
from rulegen_dagster.workflow.trial_parse import trial_parse

_STYLES = {ClauseRole.NORMATIVE: "bold", ClauseRole.DEFINITION: "cyan", ClauseRole.INFORMATIVE: "dim"}

_HEADER = ("file", "format", "bytes", "clauses", *(role.value for role in ClauseRole), "in clauses", "ms")


@reports_errors
def parse(
    files: Annotated[list[Path], typer.Argument(help="Specifications: Markdown, text, HTML, DOCX or PDF.")],
    clauses: Annotated[
        bool | None, typer.Option("--clauses/--no-clauses", help="Print each clause; on by itself for a single file.")
    ] = None,
    json_output: JsonFlag = False,
) -> None:
    """Parse files without a job: clauses by role, what was left out, and the time of each file.

    A file that cannot become a specification is named with the reason, and the others are read all the same. The exit
    code is 1 where one was refused.

    \b
    Examples:
      rulegen parse policy.md
      rulegen parse policies/*.pdf --json
    """
    limit = settings().max_upload_bytes
    shown = len(files) == 1 if clauses is None else clauses
    reports = [trial_parse(path, max_bytes=limit, with_clauses=shown) for path in files]
    refused = sum(report["refused"] is not None for report in reports)
    if json_output:
        print_json({"files": reports, "refused": refused})
    else:
        _print(out(), reports)
    if refused:
        raise typer.Exit(1)


def _print(console: Console, reports: list[dict[str, Any]]) -> None:
    rows = [_HEADER, *map(_row, reports)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        aligned = [
            cell.ljust(width) if at < 2 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        console.print(plain("  ".join(aligned).rstrip()))
    for report in reports:
        told = [report["refused"]] if report["refused"] else report["warnings"]
        for problem in told:
            style = "red" if report["refused"] else "yellow"
            console.print(plain(f"{report['file']}: {problem['message']} [{problem['code']}]", style))
        for role in ClauseRole:
            for clause in report.get("text", ()):
                if clause["role"] == role:
                    place = f"{clause['ordinal']:>4} {role.value} ({clause['role_reason']}) {clause['location']}"
                    console.print(plain(place, _STYLES[role]))
                    console.print(plain(f"     {clause['text']}"))


def _row(report: dict[str, Any]) -> tuple[str, ...]:
    size = f"{report['bytes']:,}" if report["bytes"] is not None else ""
    if report["refused"]:
        return (report["file"], "refused", size, *[""] * (len(ClauseRole) + 2), str(report["ms"]))
    roles = (str(report["roles"][role]) for role in ClauseRole)
    share = f"{report['in_clauses_percent']} %"
    return (report["file"], report["format"], size, str(report["clauses"]), *roles, share, str(report["ms"]))
