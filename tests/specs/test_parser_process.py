"""The process that reads one file: how its end is understood, and what it hands back."""

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rulegen_dagster.domain.errors import InputError, ParserProcessError
from rulegen_dagster.specs.apart import failure_of, read_apart
from rulegen_dagster.specs.detection import Format
from rulegen_dagster.specs.hypertext import read_html
from rulegen_dagster.specs.leads import Leads, series_of
from rulegen_dagster.specs.list_numbers import numeral
from rulegen_dagster.specs.table_grid import MAX_COLUMNS, Cell, Grid, joined_header

PAGE = b"<html><h1>A</h1><p>Not paid:<ul><li>Fines<li>Alcohol</ul><table><tr><th>x<th>y<tr><td>1<td>2</table>"


@pytest.mark.parametrize(
    ("returncode", "code"),
    [
        (-signal.SIGXCPU, "too_complex"),
        (-signal.SIGSEGV, "broken_file"),
        (-signal.SIGABRT, "broken_file"),
        (-signal.SIGKILL, "parser_process_lost"),
        (-signal.SIGTERM, "parser_process_lost"),
        (1, "parser_process_lost"),
    ],
)
def test_an_end_is_the_files_fault_or_that_of_whoever_ended_the_process(returncode: int, code: str) -> None:
    failure = failure_of(returncode)

    assert failure.code == code
    assert isinstance(failure, InputError) is (code != ParserProcessError.code)


def test_what_is_read_apart_is_what_the_reader_reads() -> None:
    assert read_apart(PAGE, Format.HTML) == read_html(PAGE)


@pytest.mark.parametrize(
    ("kind", "numbers", "shown"),
    [
        ("decimal", (0, 1, 12), ["0", "1", "12"]),
        ("lowerLetter", (1, 26, 27, 53), ["a", "z", "aa", "aaa"]),
        ("upperRoman", (1, 4, 1990), ["I", "IV", "MCMXC"]),
        ("lowerRoman", (0, 5_000), ["0", "5000"]),
        ("chicago", (3,), ["3"]),
    ],
)
def test_numbers_are_written_as_lists_write_them(kind: str, numbers: tuple[int, ...], shown: list[str]) -> None:
    assert [numeral(number, kind) for number in numbers] == shown


def test_a_grid_repeats_what_goes_over_rows_and_leaves_what_goes_over_columns() -> None:
    grid = Grid()

    assert grid.add([Cell("a", rows=3), Cell("b", columns=2)]) == ["a", "b", ""]
    assert grid.add([Cell("c"), Cell("d")]) == ["a", "c", "d"]
    assert grid.add([]) == ["a"]
    assert grid.add([Cell("e")]) == ["e"]


@given(st.lists(st.lists(st.builds(Cell, st.text(max_size=2), st.integers(1, 99), st.integers(1, 99)), max_size=5)))
def test_a_grid_is_never_wider_than_the_limit(rows: list[list[Cell]]) -> None:
    grid = Grid()

    assert all(len(grid.add(row)) <= MAX_COLUMNS for row in rows)


def test_header_rows_become_one_name_for_each_column() -> None:
    assert joined_header([["Meal", "Limit", ""], ["", "Home", "Abroad"], ["Meal", "", ""]]) == (
        "Meal",
        "Limit / Home",
        "Abroad",
    )
    assert joined_header([]) == ()


@pytest.mark.parametrize(("label", "series"), [("(2)", "(x)"), ("1.", "x."), ("3.2 (a)", "x.x (x)"), (None, "-")])
def test_a_series_is_the_form_of_a_mark(label: str | None, series: str) -> None:
    assert series_of(label) == series


def test_leads_follow_lists_that_stand_at_one_depth() -> None:
    leads = Leads()
    seen = []
    for index, (depth, series, lead) in enumerate(
        [
            (0, "-", None),
            (1, "(x)", "Nothing is paid if"),
            (1, "x.", None),
            (1, "x.", None),
            (1, "(x)", None),
            (1, "x.", None),
            (0, "-", "These are not paid:"),
            (1, "-", None),
        ]
    ):
        seen.append(leads.enter(depth, series))
        leads.leave(depth, series, lead, index)

    assert [found.lead for found in seen] == [
        *(None, None, "Nothing is paid if", "Nothing is paid if"),
        *(None, None, None, "These are not paid:"),
    ]
    assert [found.by for found in seen] == [None, None, 1, None, None, None, None, 6]
