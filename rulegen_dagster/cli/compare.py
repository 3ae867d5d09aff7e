"""`diff`: two revisions of a specification beside each other."""

from typing import Annotated, Any

import typer
from rich.console import Console

from rulegen_dagster.cli.output import JsonFlag, TenantOption, out, plain, print_json, reports_errors, runtime
from rulegen_dagster.domain.identity import DEFAULT_TENANT
from rulegen_dagster.workflow.compare import compare, comparison_report

_SIGNS = {
    "renumbered": ("#", "dim"),
    "new_context": ("^", "yellow"),
    "moved": (">", "cyan"),
    "edited": ("~", "yellow"),
    "new": ("+", "green"),
    "removed": ("-", "red"),
}


@reports_errors
def diff(
    old: Annotated[str, typer.Argument(help="The older revision: a file, or the name of a job.")],
    new: Annotated[str, typer.Argument(help="The newer revision: a file, or the name of a job.")],
    tenant: TenantOption = DEFAULT_TENANT,
    json_output: JsonFlag = False,
) -> None:
    """Show which clauses of a specification were edited, moved, added or removed; whoever stayed is only counted.

    A clause keeps its identity when its list is renumbered. One that stayed under a changed heading is named too: its
    rule has to be validated again.

    \b
    Examples:
      rulegen diff policy-2026.md policy-2027.md
      rulegen diff acme/policy-2026 policy-2027.md --json
    """
    with runtime() as opened:
        report = comparison_report(compare(opened, old, new, tenant=tenant))
    if json_output:
        print_json(report)
    else:
        _print(out(), report)


def _print(console: Console, report: dict[str, Any]) -> None:
    counts = report["counts"]
    console.print(", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in counts.items() if count) or "empty")
    for change in report["changes"]:
        sign, style = _SIGNS[change["kind"]]
        shown = change["new"] or change["old"]
        place = " / ".join(shown["heading_path"])
        label = f"{shown['label']} " if shown["label"] else ""
        told = change["kind"].replace("_", " ")
        if change["kind"] == "edited":
            told += f" ({change['similarity_percent']} % alike{', new context' if change['new_context'] else ''})"
        console.print(plain(f"{sign} {told}: {place}", style=style))
        if change["kind"] == "edited":
            console.print(plain(f"    was {change['old']['text']}"))
        console.print(plain(f"    {label}{shown['text']}"))
