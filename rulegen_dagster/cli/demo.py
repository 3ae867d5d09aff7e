"""`demo crash` and `demo resume`: the opening scenario, with an injected clock and a real process exit."""

from typing import Annotated

import typer

from rulegen_dagster.cli.output import JsonFlag, err, print_json, reports_errors
from rulegen_dagster.workflow import demo

app = typer.Typer(
    help="Twenty rules, thirteen saved, the call for rule 14 times out, the process dies; then it is resumed.",
    no_args_is_help=True,
)
DbOption = Annotated[
    str, typer.Option("--db", help="The demo's own ledger: a path for SQLite, or a postgresql:// URL.")
]
NowOption = Annotated[int, typer.Option("--now", help="What the ledger's clock says, in ms.", min=0)]


@app.command("crash")
@reports_errors
def crash(db: DbOption, now: NowOption = 10_000, json_output: JsonFlag = False) -> None:  # noqa: ARG001 (its error is JSON then)
    """Save thirteen rules, then lose the process during the call for rule 14. Ends with exit code 14.

    \b
    Example:
      rulegen demo crash --db /tmp/demo.sqlite3 --now 10000
    """
    opened = demo.open_demo(db, now, crash=True)
    try:
        demo.crash(opened)
    finally:
        opened.close()


@app.command("resume")
@reports_errors
def resume(db: DbOption, now: NowOption = 12_000, json_output: JsonFlag = False) -> None:
    """Finish the rules from what was saved; a second resume makes no call at all.

    The result is JSON on standard output with or without --json; a summary for people goes to standard error.
    At 12000 the lost claim's lease of one second has passed; at 10500 it still holds, and rule 14 is left alone.

    \b
    Examples:
      rulegen demo resume --db /tmp/demo.sqlite3 --now 12000
      rulegen demo resume --db /tmp/demo.sqlite3 --now 10500 --json
    """
    demo.check_begun(db)
    opened = demo.open_demo(db, now, crash=False)
    try:
        result = demo.resume(opened)
    finally:
        opened.close()
    print_json(result)
    if not json_output:
        called = ", ".join(result["called"]) or "none"
        err().print(f"provider calls: {result['provider_calls']} ({called})")
        err().print(
            f"accepted: {result['accepted']}; {result['unchanged']} of them were there before and are unchanged"
        )
