"""Each clause leads back to the file, in every format; the same text in five formats gives the same clauses."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rulegen_dagster.domain.errors import SpecError
from rulegen_dagster.domain.source_map import PlaceUnit, SourceMap
from rulegen_dagster.specs.assembly import Reading
from rulegen_dagster.specs.clauses import clauses_of
from rulegen_dagster.specs.document import read_document
from rulegen_dagster.specs.hypertext import read_html
from rulegen_dagster.specs.pdf import assembled
from rulegen_dagster.specs.pdf_lines import Line
from rulegen_dagster.specs.word import read_docx
from tests.specs.office_files import docx, level, numbering, paragraph, part, row, style, table
from tests.specs.pdf_files import Text, pdf

SENTENCES = ("Meals must be cheap.", "Hotels must be close.", "Receipts must be kept.")
FILES = {
    "a.md": ("# Travel\n\n" + "\n\n".join(SENTENCES)).encode(),
    "a.txt": ("Travel\n\n" + "\n\n".join(SENTENCES)).encode(),
    "a.html": ("<!doctype html><h1>Travel</h1>" + "".join(f"<p>{text}" for text in SENTENCES)).encode(),
    "a.docx": docx(
        paragraph("Travel", style="H"),
        *map(paragraph, SENTENCES),
        parts={"word/styles.xml": part("styles", style("H", shown="heading 1"))},
    ),
    "a.pdf": pdf([Text(50, 750, "Travel", 16), *(Text(50, 700 - 40 * n, text) for n, text in enumerate(SENTENCES))]),
}
PLACES = {
    "a.md": ["line 3", "line 5", "line 7"],
    "a.txt": ["line 3", "line 5", "line 7"],
    "a.html": ["body/p[1]", "body/p[2]", "body/p[3]"],
    "a.docx": ["paragraph 2", "paragraph 3", "paragraph 4"],
    "a.pdf": ["page 1, line 2", "page 1, line 3", "page 1, line 4"],
}
FORMATS = {"a.md": "markdown", "a.txt": "text", "a.html": "html", "a.docx": "docx", "a.pdf": "pdf"}


@pytest.mark.parametrize("name", FILES)
def test_every_format_gives_the_same_clauses_with_the_places_of_its_own(name: str) -> None:
    parsed = read_document(FILES[name], name, max_bytes=10**6)

    assert parsed.format == FORMATS[name]
    assert tuple(clause.text for clause in parsed.clauses) == SENTENCES
    assert {clause.heading_path for clause in parsed.clauses} == {("Travel",)}
    assert [parsed.location_of(clause.start) for clause in parsed.clauses] == PLACES[name]
    assert parsed == read_document(FILES[name], name, max_bytes=10**6)


def test_the_hashes_of_a_clause_are_those_of_every_format() -> None:
    hashes = {
        tuple(
            (clause.content_hash, clause.context_hash) for clause in read_document(data, name, max_bytes=10**6).clauses
        )
        for name, data in FILES.items()
    }

    assert len(hashes) == 1


@pytest.mark.parametrize("name", ["a", "a.PDF", "b.Docx"])
def test_the_content_decides_where_the_name_says_nothing_else(name: str) -> None:
    data = FILES["a.docx"] if name == "b.Docx" else FILES["a.pdf"]

    assert read_document(data, name, max_bytes=10**6).clauses


@given(st.lists(st.tuples(st.integers(0, 50), st.text(max_size=5)), max_size=20), st.integers(0, 1200))
def test_a_source_map_survives_its_storage(steps: list[tuple[int, str]], offset: int) -> None:
    starts = [0]
    for step, _ in steps:
        starts.append(starts[-1] + step)
    places = ("first", *(place for _, place in steps))
    known = SourceMap(unit=PlaceUnit.PAGE, starts=tuple(starts), places=places)

    stored = SourceMap.from_json(json.loads(json.dumps(known.to_json())))

    assert stored == known
    assert stored.location_of("", offset) == known.location_of("", offset)


def test_what_an_older_release_stored_counts_lines() -> None:
    assert SourceMap.from_json(None).location_of("a\nb", 2) == "line 2"


_WORDS = st.sampled_from(
    [
        *("Meals must be cheap. ", "Übernachtung 5 €. ", "経費は上限です。", "Not paid: ", "(2) ", "§ 4 ", "- ", "1. "),
        *(
            "e.g. ",
            "reim-",
            "\u00ad",
            "\u00a0",
            "\ue000",
            "\uf0b7 ",
            "\x00",
            "\ufffe",
            "a | b",
            "\U0001f600",
            "\n",
            "x",
        ),
    ]
)
_TEXTS = st.lists(_WORDS, max_size=6).map("".join)
_XML_TEXTS = _TEXTS.map(lambda text: "".join(character for character in text if character not in "\x00\ufffe"))


def _check(reading: Reading) -> None:
    clauses = clauses_of(reading.text, reading.blocks)
    starts = reading.source_map.starts
    assert len(starts) == len(reading.source_map.places)
    assert all(before <= after for before, after in pairwise(starts))
    end = 0
    order = []
    for clause in clauses:
        assert clause.text == reading.text[clause.start : clause.end] == clause.text.strip()
        assert end <= clause.start < clause.end
        end = clause.end
        place = reading.source_map.location_of(reading.text, clause.start)
        assert place
        order.append(reading.source_map.places.index(place))
    assert order == sorted(order)


_TAGS = st.sampled_from(
    [
        *("<p>", "</p>", "<div>", "</div>", "<ul>", "</ul>", "<ol start=3>", "</ol>", "<li>", "<b>", "</b>", "<br>"),
        *("<table>", "</table>", "<tr>", "<td>", "<td rowspan=2>", "<th colspan=2>", "<h2>", "</h2>", "<pre>", "<hr>"),
        *("<nav>", "</nav>", "<span hidden>", "</span>", "<!--", "-->", "<dl><dt>", "<dd>", "&amp;", "&#x41;", "<"),
    ]
)


@given(st.lists(st.one_of(_TAGS, _TEXTS), max_size=30).map("".join))
def test_any_page_gives_exact_clauses_in_order(body: str) -> None:
    _check(read_html(f"<html><body>{body}".encode()))


_PARAGRAPHS = st.builds(
    lambda text, depth, number, named: paragraph(text, number=number, level=depth, style="H" if named else ""),
    _XML_TEXTS,
    st.integers(0, 3),
    st.sampled_from(["", "", "1", "7"]),
    st.booleans(),
)
_TABLES = st.lists(st.lists(_XML_TEXTS, min_size=1, max_size=3), min_size=1, max_size=3).map(
    lambda rows: table(*(row(*cells) for cells in rows))
)
_PARTS: dict[str, str | bytes] = {
    "word/numbering.xml": numbering(
        level(0, "decimal", "%1."), level(1, "lowerLetter", "(%2)"), level(2, "bullet", "o")
    ),
    "word/styles.xml": part("styles", style("H", shown="heading 2")),
}


@given(st.lists(st.one_of(_PARAGRAPHS, _TABLES), max_size=8))
def test_any_document_gives_exact_clauses_in_order(body: list[str]) -> None:
    _check(read_docx(docx(*body, parts=_PARTS)))


_LINES = st.builds(
    lambda text, page, y, left, size, bold, gaps: Line(
        page=page,
        number=1,
        text=text.replace("\n", " "),
        left=left,
        right=left + 200,
        y=y,
        size=size,
        bold=bold,
        gaps=gaps,
        page_height=800,
    ),
    _TEXTS,
    st.integers(1, 3),
    st.sampled_from([20.0, 300.0, 312.0, 324.0, 790.0]),
    st.sampled_from([50.0, 70.0, 320.0]),
    st.sampled_from([10.0, 10.0, 16.0]),
    st.booleans(),
    st.booleans(),
)


@given(st.lists(_LINES, max_size=15))
def test_any_lines_of_a_pdf_give_exact_clauses(lines: list[Line]) -> None:
    numbered = [Line(**{**vars(line), "number": number}) for number, line in enumerate(lines, 1)]

    try:
        reading = assembled(numbered)
    except SpecError:
        return

    _check(reading)
