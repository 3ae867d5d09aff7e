"""The `rulegen` command: one function for each verb, split over the modules of this package."""

import io
import sys

import typer

from rulegen_dagster.cli import (
    behaviours,
    bench,
    chaos,
    compare,
    deadlines,
    decisions,
    demo,
    inspect,
    jobs,
    metrics,
    operate,
    parse,
    provider,
    quota,
    resync,
    review,
)

app = typer.Typer(
    name="rulegen",
    help="Turn a written policy into executable, tested rules; no committed work is lost or paid for twice.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(jobs.run)
app.command("submit")(jobs.submit)
app.command("status")(jobs.status)
app.command("list")(jobs.list_jobs)
app.command("why")(inspect.why)
app.command("events")(inspect.events)
app.command("review")(review.review)
app.command("export")(review.export)
app.command("diff")(compare.diff)
app.command("parse")(parse.parse)
app.command("confirm")(decisions.confirm)
app.command("reject")(decisions.reject)
app.command("waive")(decisions.waive)
app.command("cancel")(decisions.cancel)
app.command("redrive")(decisions.redrive)
app.command("decide")(behaviours.decide)
app.add_typer(behaviours.behaviours, name="behaviours")
app.command("extend")(deadlines.extend)
app.command("fork")(deadlines.fork)
app.add_typer(demo.app, name="demo")
app.command("bench")(bench.bench)
app.command("chaos")(chaos.chaos)
app.command("doctor")(operate.doctor)
app.command("gc")(inspect.gc)
app.command("metrics")(metrics.metrics)
app.command("resync")(resync.resync)
app.command("migrate")(operate.migrate_ledger)
app.command("dev")(operate.dev)
app.add_typer(quota.app, name="quota")
app.add_typer(operate.tenants, name="tenant")
app.add_typer(provider.app, name="provider")


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        # A policy's typographic quotes must not end the command where the terminal knows ASCII only.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    app()
