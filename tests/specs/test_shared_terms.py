"""Shared terms: definitions that a clause does not name and still speaks about."""

from dataclasses import replace

import pytest

from rulegen_dagster.domain.clause import ContextEntry
from rulegen_dagster.domain.errors import RetrievalError
from rulegen_dagster.specs.context import MAX_ENTRIES, ContextIndex, retrieve_context
from rulegen_dagster.specs.document import read_document
from rulegen_dagster.specs.shared_terms import MAX_HITS

DEFINITIONS = """# Definitions

"Field assignment" means work at a construction site that lasts longer than three nights.

"Per diem" means a flat amount for breakfast and dinner.

# Rules

"""
FILLER = "".join(f"Subject {name} must be reported by the clerk.\n\n" for name in "abcdefghijklmnop")


def _entries(text: str, start: str) -> tuple[ContextEntry, ...]:
    parsed = read_document(text.encode(), "policy.md", max_bytes=10**6)
    clause = next(clause for clause in parsed.normative if clause.text.startswith(start))
    return retrieve_context(parsed)[clause.ordinal]


def test_a_clause_gets_a_definition_that_it_speaks_about_without_its_name() -> None:
    text = f"{DEFINITIONS}Employees at a construction site must be back within three nights.\n\n{FILLER}"

    entries = _entries(text, "Employees at")

    assert [(entry.relation, entry.text[:18]) for entry in entries] == [("shares_terms", '"Field assignment"')]


@pytest.mark.parametrize(
    "clause",
    [
        "The clerk must be friendly.",
        "Nights must be quiet.",
        "The site and the amount must be for work.",
        "Work at the site must be safe.",
        "The four and the ten must be at a field for it.",
    ],
)
def test_a_word_in_common_is_no_context(clause: str) -> None:
    common = "A flat amount is for work at a site.\n\n" * 2

    assert _entries(f"{DEFINITIONS}{clause}\n\n{FILLER}{common}", clause[:8]) == ()


def test_one_word_that_a_definition_repeats_is_no_context() -> None:
    definition = '"Lift" means hoist or hoist or hoist.\n\n'
    text = f"# Definitions\n\n{definition}{DEFINITIONS}A hoist for breakfast must be used.\n\n{FILLER}"

    assert _entries(text, "A hoist") == ()


def test_a_definition_that_is_named_is_not_listed_twice() -> None:
    text = f"{DEFINITIONS}A field assignment at a construction site must be approved.\n\n{FILLER}"

    assert [entry.relation for entry in _entries(text, "A field")] == ["defines"]


def test_the_number_of_hits_is_bounded() -> None:
    definitions = "".join(
        f'"Term{number}" means that a crane operator hoists heavy steel loads{number}.\n\n'
        for number in range(MAX_HITS + 3)
    )
    rule = "The crane operator must wear a helmet and hoists heavy steel."
    text = f"# Definitions\n\n{definitions}# Rules\n\n{rule}\n\n{FILLER * 3}"

    entries = _entries(text, "The crane")

    assert [entry.relation for entry in entries] == ["shares_terms"] * MAX_HITS
    assert len(entries) <= MAX_ENTRIES


def test_the_same_text_always_gets_the_same_context() -> None:
    text = f"{DEFINITIONS}Employees at a construction site must be back within three nights.\n\n{FILLER}"
    parsed = read_document(text.encode(), "policy.md", max_bytes=10**6)

    assert retrieve_context(parsed) == retrieve_context(parsed)


def test_whatever_breaks_in_a_look_up_is_a_retrieval_error_without_content() -> None:
    parsed = read_document(b"CANARY clauses must be short.", "policy.md", max_bytes=1000)
    index = ContextIndex(parsed)

    with pytest.raises(RetrievalError) as failed:
        index.context_of(replace(parsed.clauses[0], text=None))  # type: ignore[arg-type]  # a defect, standing for any

    assert "CANARY" not in str(failed.value)
