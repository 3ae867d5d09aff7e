"""What reaches a terminal: help with examples, usage errors, no colours in a pipe, nothing that steers the terminal."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_command

from rulegen_dagster.cli.main import app
from rulegen_dagster.domain.text import printable
from tests.cli.conftest import Command, document

HOSTILE = "\x1b]0;owned\x07\x1b[31mred\x9b2J\u202e"


def _commands(command: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    children: dict[str, object] = getattr(command, "commands", {})
    for name, child in children.items():
        yield from _commands(child, (*path, name))
    if not children:
        yield path


COMMANDS = list(_commands(get_command(app)))


def test_the_commands_of_the_contract_are_there() -> None:
    assert {" ".join(path) for path in COMMANDS} >= {
        "run",
        "submit",
        "status",
        "list",
        "why",
        "events",
        "review",
        "confirm",
        "reject",
        "redrive",
        "demo crash",
        "demo resume",
        "doctor",
        "gc",
        "migrate",
        "dev",
        "tenant add",
        "tenant list",
    }


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_the_help_of_every_command_shows_an_example(rulegen: Command, path: tuple[str, ...]) -> None:
    result = rulegen(*path, "--help")

    assert result.exit_code == 0
    assert "Example" in result.stdout
    assert f"rulegen {' '.join(path)}" in result.stdout.split("Example", 1)[1]


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_speaks_json(rulegen: Command, path: tuple[str, ...]) -> None:
    assert "--json" in rulegen(*path, "--help").stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonesuch"],
        ["run"],
        ["run", "a.md", "b.md"],
        ["run", "a.md", "--nonesuch"],
        ["status"],
        ["confirm", "k"],
        ["reject", "k"],
        ["demo", "crash"],
        ["demo", "crash", "--db", "x", "--now", "noon"],
        ["demo", "resume", "--db", "x", "--now", "-1"],
        ["tenant", "add"],
        ["dev", "--port", "0"],
    ],
    ids=" ".join,
)
def test_wrong_usage_ends_with_exit_code_2_and_says_what_is_wrong(rulegen: Command, arguments: list[str]) -> None:
    result = rulegen(*arguments)

    assert (result.exit_code, result.stdout) == (2, "")
    assert "Usage: " in result.stderr


def test_there_are_no_colours_where_there_is_no_terminal(rulegen: Command, policy_file: Path) -> None:
    results = [
        rulegen("run", str(policy_file), "--key", "k"),
        rulegen("status", "k"),
        rulegen("list"),
        rulegen("review", "k"),
        rulegen("doctor"),
        rulegen("run", "gone.md"),
        rulegen("--help"),
    ]

    assert not [result for result in results if "\x1b" in result.stdout + result.stderr]


@pytest.mark.parametrize("as_json", [[], ["--json"]], ids=["for people", "as JSON"])
def test_a_clause_cannot_steer_the_terminal(rulegen: Command, tmp_path: Path, as_json: list[str]) -> None:
    path = tmp_path / "hostile.md"
    filler = "Good records keep life simple. " * 20
    path.write_text(f"# Rules {HOSTILE}\n\nMeals {HOSTILE} are limited to $50 per day.\n\n{filler}\n", encoding="utf-8")

    results = [
        rulegen("run", str(path), "--key", "k", *as_json),
        rulegen("review", "k", *as_json),
        rulegen("status", "k", *as_json),
        rulegen("list", *as_json),
    ]

    written = "".join(result.stdout + result.stderr for result in results)
    assert "owned" in written
    assert not [character for character in written if character != "\n" and not character.isprintable()]


def test_the_text_of_a_clause_survives_json_unchanged(rulegen: Command, tmp_path: Path) -> None:
    path = tmp_path / "hostile.md"
    filler = "Good records keep life simple. " * 20
    path.write_text(f"Meals {HOSTILE} are limited to $50 per day.\n\n{filler}\n", encoding="utf-8")
    rulegen("run", str(path), "--key", "k")

    report = document(rulegen("review", "k", "--json"))

    assert report["clauses"][0]["text"] == f"Meals {HOSTILE} are limited to $50 per day."


def test_markup_in_a_clause_is_shown_as_it_stands(rulegen: Command, tmp_path: Path) -> None:
    path = tmp_path / "markup.txt"
    path.write_text("Meals [bold red]of[/] [link=http://x]guests[/link] are limited to $50 per day.", encoding="utf-8")
    rulegen("run", str(path), "--key", "k")

    shown = rulegen("review", "k").stdout

    assert "[bold red]of[/] [link=http://x]guests[/link]" in shown


def test_a_file_name_cannot_steer_the_terminal(rulegen: Command) -> None:
    results = [rulegen("run", "\x1b[31mgone\udcff.md"), rulegen("run", "\x1b[31mgone\udcff.md", "--json")]

    for result in results:
        assert result.exit_code == 1
        assert "\x1b" not in result.stdout + result.stderr


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ü 規", "plain ü 規"),
        ("a\tb\nc", "a b c"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\x9b", "\\x9b"),
        ("\u202e", "\\x202e"),
        ("\udcff", "\\xdcff"),
    ],
)
def test_controls_are_shown_and_never_sent(text: str, shown: str) -> None:
    assert printable(text) == shown
