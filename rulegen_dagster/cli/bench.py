"""`bench`: the engine's speed beside hand-written group commit, what a crash repeats, and how claims scale."""

import signal
from dataclasses import asdict
from typing import Annotated, Any

import typer

from rulegen_dagster.cli.output import JsonFlag, err, out, plain, print_json, reports_errors

FULL_LEDGER = 1_000_000


@reports_errors
def bench(
    *,
    database: Annotated[
        str | None,
        typer.Option(
            "--database",
            help="postgresql://… (a scratch database is made beside it) or sqlite:///path (files are made in its"
            " folder); default: SQLite in the system's temporary folder.",
        ),
    ] = None,
    count: Annotated[int, typer.Option("-n", help="Calls in each run.", min=1, max=50_000)] = 1_000,
    latency: Annotated[float, typer.Option("--latency", help="What a call takes, in ms.", min=0, max=60_000)] = 50,
    slots: Annotated[int, typer.Option("--slots", help="Calls at once.", min=1, max=256)] = 32,
    repeats: Annotated[int, typer.Option("--repeats", help="Runs of engine and floor each.", min=1, max=100)] = 3,
    items: Annotated[
        int, typer.Option("--items", help="Items in the big ledger of the claim figures.", min=2_000, max=10_000_000)
    ] = 50_000,
    full: Annotated[bool, typer.Option("--full", help=f"The same as --items {FULL_LEDGER}.")] = False,
    json_output: JsonFlag = False,
) -> None:
    """Measure the engine beside hand-written group commit, in one run on scratch databases.

    'floor' is the same completion guard in a bare loop; compare ratios, not seconds. Each run's calls only wait.
    'crash' kills a worker process at about two thirds and counts what another one repeats. Nothing outside the scratch
    databases is touched, and they are dropped at the end. Exit code 0 says that all was measured, not that each goal
    was reached: the disk and what else the machine does decide much.

    \b
    Examples:
      rulegen bench
      rulegen bench --database postgresql://localhost/rulegen -n 1000 --latency 50 --slots 32 --json
    """
    from rulegen_dagster.workflow.bench import Plan, run_bench  # noqa: PLC0415 (no other command needs it)

    plan = Plan(
        database=database,
        count=count,
        latency_ms=latency,
        slots=slots,
        repeats=repeats,
        big_ledger=FULL_LEDGER if full else items,
    )
    # A scratch database is dropped even where the process is asked to end.
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        report = run_bench(plan, lambda text: err().print(plain(text)))
    finally:
        signal.signal(signal.SIGTERM, before)
    results = [asdict(result) for result in report.results]
    if json_output:
        print_json({"commit_ms": report.commit_ms, "results": results})
    else:
        _print_table(results, report.commit_ms)


def _leave(_signal: int, _frame: Any) -> None:
    raise SystemExit(128 + signal.SIGTERM)


def _print_table(results: list[dict[str, Any]], commit_ms: float) -> None:
    rows = [
        (
            result["name"],
            _figures(result),
            _verdict(result["reached"]),
            f"goal: {result['goal']}" if result["goal"] else "",
        )
        for result in results
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row[:3], widths, strict=True)]
        out().print(plain("  ".join([*cells, row[3]]).rstrip()))
    out().print(f"{results[0]['database']}; a transaction of one row takes {commit_ms:.2f} ms")


def _figures(result: dict[str, Any]) -> str:
    """Put what a result says into words, in the order in which people ask for it."""
    repeated = f"repeated: {result['repeated_committed']} committed, {result['repeated_in_flight']} in flight"
    said = (
        (result["makespan_s"], "{:.2f} s"),
        (result["ratio"], "ratio {:.2f}"),
        (result["items_per_s"], "{:.0f} items/s"),
        (result["of_floor"], "{:.2f} x floor"),
        (result["calls"], "{} calls"),
        (result["repeated_in_flight"], repeated),
        (result["first_call_s"], "first call after {:.2f} s"),
        (result["claim_ms"], f"a claim takes {{:.2f}} ms with {result['n']} items"),
    )
    return ", ".join(form.format(value) for value, form in said if value is not None)


def _verdict(reached: bool | None) -> str:
    return {True: "reached", False: "missed", None: ""}[reached]
