"""Output: JSON for machines, plain text for people, colours only on a terminal, errors in one shape."""

import getpass
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Annotated, Any, ParamSpec

import typer
from rich.console import Console
from rich.text import Text

from rulegen_dagster.domain.errors import RulegenError
from rulegen_dagster.settings import Settings
from rulegen_dagster.workflow.runtime import Runtime, open_runtime

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON for machines, on standard output.")]
TenantOption = Annotated[str, typer.Option("--tenant", help="The tenant that owns the job.")]

_P = ParamSpec("_P")


def print_json(value: Any) -> None:
    """Print one JSON document on standard output."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def out() -> Console:
    """Return a console on standard output; it prints no colours where that is no terminal."""
    return Console(highlight=False, soft_wrap=True)


def err() -> Console:
    """Return a console on standard error, for progress and errors."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def printable(text: str) -> str:
    """Return a text that cannot steer a terminal: control characters become spaces or escapes."""
    return "".join(
        character if character.isprintable() else " " if character.isspace() else f"\\x{ord(character):02x}"
        for character in text
    )


def plain(text: str, style: str = "") -> Text:
    """Return untrusted text for a console: nothing in it is read as markup."""
    return Text(printable(text), style=style)


def actor() -> str:
    """Return who gives the command, as the operating system knows the user."""
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):
        return "cli:unknown"


@contextmanager
def runtime() -> Iterator[Runtime]:
    """Open the runtime that the environment describes, and close it."""
    opened = open_runtime(Settings())
    try:
        yield opened
    finally:
        opened.close()


def reports_errors(command: Callable[_P, None]) -> Callable[_P, None]:
    """Turn a `RulegenError` into exit code 1 and one clear message (as JSON where `--json` was given)."""

    @wraps(command)
    def wrapped(*args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except RulegenError as error:
            if kwargs.get("json_output"):
                print_json({"error": {"code": error.code, "message": error.message}})
            else:
                err().print(Text("error: ", style="bold red"), plain(f"{error.message} [{error.code}]"), sep="")
            raise typer.Exit(1) from error

    return wrapped
