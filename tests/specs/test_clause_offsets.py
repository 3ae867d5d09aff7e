"""Offsets hold for any text: each clause is its slice, and clauses are ordered and disjoint."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rulegen_dagster.domain.clause import ParsedSpec
from rulegen_dagster.domain.errors import SpecError
from rulegen_dagster.specs.context import retrieve_context
from rulegen_dagster.specs.document import read_document

_PIECES = st.sampled_from(
    [
        *(
            "Meals must be cheap. ",
            "Über 5 € wird nichts erstattet. ",
            "経費は上限です。",
            "Not paid:\n",
            "(2) ",
            "§ 4 ",
        ),
        *("# Heading\n", "\n", "\n\n", "- ", "  - ", "1. ", "> ", "| a | b |\n", "|---|---|\n", "---\n", "===\n"),
        *("<!-- ", " -->", "```\n", "    ", "\t", "[!NOTE]\n", "{{% x %}}", "[a](b) ", "**bold** ", "[r]: x\n"),
        *("\r\n", "\\", "<div>\n", "</div>\n", "\x0c", "\u2028", "\u00a0", "\U0001f600 ", "\ue000"),
    ]
)
_DOCUMENTS = st.one_of(st.text(max_size=200), st.lists(_PIECES, max_size=40).map("".join))


def _parse(text: str, extension: str) -> ParsedSpec | None:
    try:
        return read_document(text.encode("utf-8", "surrogatepass"), f"policy{extension}", max_bytes=10**6)
    except SpecError:
        return None


@pytest.mark.parametrize("extension", [".md", ".txt"])
@given(text=_DOCUMENTS)
def test_each_clause_is_its_slice_and_clauses_are_ordered(extension: str, text: str) -> None:
    parsed = _parse(text, extension)

    if parsed is None:
        return
    end = 0
    for ordinal, clause in enumerate(parsed.clauses):
        assert clause.ordinal == ordinal
        assert clause.text == parsed.canonical_text[clause.start : clause.end]
        assert clause.text == clause.text.strip()
        assert end <= clause.start < clause.end
        end = clause.end


@given(text=_DOCUMENTS)
def test_parsing_is_deterministic_and_context_names_known_clauses(text: str) -> None:
    parsed = _parse(text, ".md")

    assert parsed == _parse(text, ".md")
    if parsed:
        context = retrieve_context(parsed)
        assert set(context) == {clause.ordinal for clause in parsed.normative}
        assert all(
            entry.text == parsed.clauses[entry.ordinal].text for entries in context.values() for entry in entries
        )
