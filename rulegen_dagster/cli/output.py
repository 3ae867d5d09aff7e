"""Output: JSON for machines, plain text for people, colours only on a terminal, errors in one shape."""

import getpass
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Annotated, Any, ParamSpec

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.text import Text

from rulegen_dagster.domain.errors import InputError, RulegenError
from rulegen_dagster.domain.text import printable
from rulegen_dagster.settings import Settings
from rulegen_dagster.workflow.runtime import Runtime, open_runtime

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON for machines, on standard output.")]
TenantOption = Annotated[str, typer.Option("--tenant", help="The tenant that owns the job.")]

_P = ParamSpec("_P")


def print_json(value: Any) -> None:
    """Print one JSON document on standard output; what could steer a terminal is escaped, in a way that JSON reads."""
    _write(json_text(value))


def print_json_line(value: Any) -> None:
    """Print one JSON document on a line of its own, as one of many; escaped like `print_json`."""
    _write(_safe(json.dumps(value, ensure_ascii=False)))


def json_text(value: Any) -> str:
    """Return the document that `print_json` prints."""
    return _safe(json.dumps(value, indent=2, ensure_ascii=False))


def _safe(text: str) -> str:
    return "".join(
        character if character.isprintable() or character == "\n" else json.dumps(character)[1:-1] for character in text
    )


def _write(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def out() -> Console:
    """Return a console on standard output; it prints no colours where that is no terminal."""
    return Console(highlight=False, soft_wrap=True)


def err() -> Console:
    """Return a console on standard error, for progress and errors."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def plain(text: str, style: str = "") -> Text:
    """Return untrusted text for a console: nothing in it is read as markup."""
    return Text(printable(text), style=style)


def recovery_line(recovery: dict[str, Any]) -> str:
    """Return a recovery decision, as reports hold it, on one line."""
    short = {True: "Yes. ", False: "No. ", None: ""}[recovery["possible"]]
    return f"{recovery['question']} {short}{recovery['answer']}"


def not_blank(text: str) -> str:
    """Check an option that has to say something. Raises `BadParameter`, which is wrong usage (exit code 2)."""
    if not text.strip():
        raise typer.BadParameter("it must not be blank")
    return text.strip()


def actor() -> str:
    """Return who gives the command, as the operating system knows the user."""
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):
        return "cli:unknown"


def settings() -> Settings:
    """Return what the environment decides. Raises `InputError` that names the variable which cannot be used."""
    try:
        return Settings()
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = "_".join(["RULEGEN", *(str(part) for part in first["loc"])]).upper()
        raise InputError(
            f"the environment variable {name} cannot be used: {first['msg']}", code="invalid_settings"
        ) from None


@contextmanager
def runtime() -> Iterator[Runtime]:
    """Open the runtime that the environment describes, and close it."""
    opened = open_runtime(settings())
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
