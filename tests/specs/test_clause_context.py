"""Context: definitions whose term a clause uses, and clauses that it refers to."""

from rulegen_dagster.domain.clause import ContextEntry
from rulegen_dagster.specs.context import MAX_ENTRIES, definition_term, retrieve_context
from rulegen_dagster.specs.document import read_document

DEFINITIONS = """# Definitions

- "Manager" means the person to whom the employee reports.
- **Business trip**: a journey for the company.
- A claim is defined as an expense report.

"""


def _context_of(text: str, ending: str) -> list[tuple[str, str]]:
    parsed = read_document(text.encode(), "policy.md", max_bytes=10**6)
    clause = next(clause for clause in parsed.normative if clause.text.endswith(ending))
    return [(entry.relation, entry.text) for entry in retrieve_context(parsed)[clause.ordinal]]


def test_the_term_of_a_definition_is_read_without_article_and_markup() -> None:
    parsed = read_document(DEFINITIONS.encode(), "policy.md", max_bytes=10**6)

    assert [definition_term(clause) for clause in parsed.clauses] == ["manager", "business trip", "claim"]


def test_a_clause_gets_the_definitions_of_the_terms_it_uses_in_document_order() -> None:
    context = _context_of(DEFINITIONS + "# Rules\n\nBusiness trips must be approved by Managers.\n", "Managers.")

    assert [text[:12] for _, text in context] == ['"Manager" me', "**Business t"]
    assert {relation for relation, _ in context} == {"defines"}


def test_a_part_of_a_word_uses_no_term() -> None:
    assert _context_of(DEFINITIONS + "# Rules\n\nThe disclaimer must be read.\n", "read.") == []


def test_a_numbered_section_is_found_by_its_number() -> None:
    text = "# 4.2 Meals\n\nMeals are cheap.\n\n# 5 Rules\n\nThe rates of section 4.2 must be kept.\n"

    assert _context_of(text, "kept.") == [("referenced", "Meals are cheap.")]


def test_a_paragraph_of_a_numbered_section_is_found() -> None:
    text = "# § 3 Kosten\n\n(1) Eins ist es.\n\n(2) Zwei ist es.\n\n# § 4\n\nEs muss § 3 Abs. 2 gelten.\n"

    assert _context_of(text, "gelten.") == [("referenced", "(2) Zwei ist es.")]


def test_a_label_is_looked_up_in_the_own_section_only() -> None:
    text = "# A\n\n(b) Other.\n\n# B\n\n(a) As in paragraph (b), it must be so.\n\n(b) Ships are slow.\n"

    assert _context_of(text, "so.") == [("referenced", "(b) Ships are slow.")]


def test_a_clause_is_never_its_own_context() -> None:
    assert _context_of("# 4 Meals\n\nMeals of section 4 must be cheap.\n", "cheap.") == []


def test_a_reference_to_nothing_gives_nothing() -> None:
    assert _context_of("# 4 Meals\n\nMeals of section 9.9 must be cheap.\n", "cheap.") == []


def test_the_number_of_entries_is_bounded() -> None:
    sentences = "".join(f"Sentence {number} stands here.\n\n" for number in range(40))
    context = _context_of(f"# 4 Long\n\n{sentences}\n# 5 Rules\n\nSection 4 must be kept.\n", "kept.")

    assert len(context) == MAX_ENTRIES


def test_each_normative_clause_has_an_entry_even_without_context() -> None:
    parsed = read_document(b"Meals must be cheap. Nice weather.", "policy.md", max_bytes=1000)

    context: dict[int, tuple[ContextEntry, ...]] = retrieve_context(parsed)

    assert context == {0: ()}
