"""The `rulegen` command: one function for each verb, split over the modules of this package.

A verb's module is imported when somebody asks for the verb: what the other verbs need takes longer than most of them.
"""

import io
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_group

_PLACES: Final = {
    "run": ("run", "run"),
    "submit": ("run", "submit"),
    "status": ("jobs", "status"),
    "list": ("jobs", "list_jobs"),
    "why": ("inspect", "why"),
    "events": ("inspect", "events"),
    "review": ("review", "review"),
    "export": ("review", "export"),
    "diff": ("compare", "diff"),
    "parse": ("parse", "parse"),
    "confirm": ("decisions", "confirm"),
    "reject": ("decisions", "reject"),
    "waive": ("decisions", "waive"),
    "cancel": ("decisions", "cancel"),
    "redrive": ("decisions", "redrive"),
    "decide": ("behaviours", "decide"),
    "extend": ("deadlines", "extend"),
    "fork": ("deadlines", "fork"),
    "bench": ("bench", "bench"),
    "chaos": ("chaos", "chaos"),
    "doctor": ("operate", "doctor"),
    "gc": ("inspect", "gc"),
    "metrics": ("metrics", "metrics"),
    "resync": ("resync", "resync"),
    "migrate": ("operate", "migrate_ledger"),
    "dev": ("operate", "dev"),
    "behaviours": ("behaviours", "behaviours"),
    "demo": ("demo", "app"),
    "quota": ("quota", "app"),
    "tenant": ("operate", "tenants"),
    "provider": ("provider", "app"),
}
"""Each verb's module in this package, and its function or group there, in the order of the help."""


class _Verbs(Mapping[str, Any]):
    """The commands by their names; the module of each is imported when it is asked for."""

    def __getitem__(self, name: str) -> Any:
        module, attribute = _PLACES[name]
        verb = getattr(import_module(f"{__package__}.{module}"), attribute)
        around = _group()
        if isinstance(verb, typer.Typer):
            around.add_typer(verb, name=name)
        else:
            around.command(name)(verb)
        return get_group(around).commands[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_PLACES)

    def __len__(self) -> int:
        return len(_PLACES)


class _Rulegen(TyperGroup):
    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "commands": _Verbs()})


def _group(**options: Any) -> typer.Typer:
    return typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None, **options)


app = _group(
    cls=_Rulegen,
    name="rulegen",
    help="Turn a written policy into executable, tested rules; no committed work is lost or paid for twice.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        # It reads the installed packages' data, for which no other command waits.
        from importlib.metadata import version  # noqa: PLC0415 (as said)

        typer.echo(f"rulegen {version('rulegen-dagster')}")
        raise typer.Exit


@app.callback()
def _rulegen(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Make the app a group, whatever it holds by itself."""


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        # A policy's typographic quotes must not end the command where the terminal knows ASCII only.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except OSError as error:
        from rulegen_dagster.cli.output import tell_of_standard_output  # noqa: PLC0415 (the help needs none of it)

        if not tell_of_standard_output(error):
            raise
        sys.exit(1)
