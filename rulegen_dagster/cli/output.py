"""Output: JSON for machines, plain text for people, colours only on a terminal, errors in one shape."""

import codecs
import getpass
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Annotated, Any, ParamSpec

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.text import Text

from rulegen_dagster.domain import failpoints
from rulegen_dagster.domain.errors import InputError, RulegenError
from rulegen_dagster.domain.text import printable
from rulegen_dagster.settings import Settings
from rulegen_dagster.workflow.runtime import Runtime, open_runtime

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON for machines, on standard output.")]
TenantOption = Annotated[str, typer.Option("--tenant", help="The tenant that owns the job.")]

_P = ParamSpec("_P")


def print_json(value: Any) -> None:
    """Print one JSON document on standard output; what could steer a terminal is escaped, in a way that JSON reads."""
    write_line(json_text(value, ascii_only=_takes_ascii_only()))


def print_json_line(value: Any) -> None:
    """Print one JSON document on a line of its own, as one of many; escaped like `print_json`."""
    write_line(_safe(json.dumps(value, ensure_ascii=_takes_ascii_only())))


def json_text(value: Any, *, ascii_only: bool = False) -> str:
    """Return the document that `print_json` prints."""
    return _safe(json.dumps(value, indent=2, ensure_ascii=ascii_only))


def _takes_ascii_only() -> bool:
    # What another encoding lacks would be replaced by an escape of Python's, which JSON does not know.
    return codecs.lookup(sys.stdout.encoding or "utf-8").name != "utf-8"


def _safe(text: str) -> str:
    return "".join(
        character if character.isprintable() or character == "\n" else json.dumps(character)[1:-1] for character in text
    )


def write_line(text: str) -> None:
    """Write a text on standard output at once, with the end of its line."""
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
        read = Settings()
        # A relative home counts from the current folder, which somebody may have removed.
        _ = read.home_path
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = "_".join(["RULEGEN", *(str(part) for part in first["loc"])]).upper()
        raise InputError(
            f"the environment variable {name} cannot be used: {first['msg']}", code="invalid_settings"
        ) from None
    except FileNotFoundError:
        raise InputError(
            "the current folder is gone; go to another, or give RULEGEN_HOME as an absolute path",
            code="no_current_folder",
        ) from None
    return read


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
            failpoints.check()
            command(*args, **kwargs)
        except RulegenError as error:
            if kwargs.get("json_output"):
                print_json({"error": {"code": error.code, "message": error.message}})
            else:
                _tell(error)
            raise typer.Exit(1) from error

    return wrapped


def _tell(error: RulegenError) -> None:
    err().print(Text("error: ", style="bold red"), plain(f"{error.message} [{error.code}]"), sep="")


def tell_of_standard_output(error: OSError) -> bool:
    """Tell on standard error that standard output takes nothing more; False where the error is another's."""
    if error.filename is not None:
        return False
    try:
        # An unbuffered stream holds nothing that could fail again; before a traceback, an empty line does no harm.
        sys.stdout.write("\n")
        sys.stdout.flush()
    except OSError:
        # Nor is it tried once more when the process ends.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        problem = f"standard output cannot be written: {error.strerror}; free some space, or send it elsewhere"
        _tell(RulegenError(problem, code="output_not_writable"))
        return True
    return False
