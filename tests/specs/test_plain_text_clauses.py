"""Plain text to clauses: headings, items and numbered paragraphs by their form alone."""

from rulegen_dagster.domain.clause import Clause, ClauseKind
from rulegen_dagster.specs.document import read_document


def _clauses(text: str) -> tuple[Clause, ...]:
    parsed = read_document(text.encode(), "policy.txt", max_bytes=10**6)
    for clause in parsed.clauses:
        assert clause.text == parsed.canonical_text[clause.start : clause.end]
    return parsed.clauses


def test_a_short_line_alone_is_a_heading() -> None:
    clauses = _clauses("Travel policy\n\n§ 3 Meals\n\nMeals must be cheap.\n")

    assert [clause.text for clause in clauses] == ["Meals must be cheap."]
    assert clauses[0].heading_path == ("§ 3 Meals",)


def test_numbers_give_headings_their_level() -> None:
    assert _clauses("1. Travel\n\n1.2 Meals\n\nMeals must be cheap.\n")[0].heading_path == ("1. Travel", "1.2 Meals")


def test_an_underlined_line_is_a_heading() -> None:
    assert _clauses("Travel\n------\nMeals must be cheap.\n")[0].heading_path == ("Travel",)


def test_a_short_sentence_alone_is_no_heading() -> None:
    assert [clause.text for clause in _clauses("Meals must be cheap.\n")] == ["Meals must be cheap."]


def test_items_inherit_the_paragraph_with_the_colon() -> None:
    clauses = _clauses("These are not paid:\n\n- Fines\n- Alcohol,\n  also wine\n")

    assert [clause.text for clause in clauses] == ["These are not paid:", "Fines", "Alcohol,\n  also wine"]
    assert [clause.lead for clause in clauses] == [None, "These are not paid:", "These are not paid:"]
    assert clauses[0].role_reason == "introduces_list"
    assert clauses[1].kind is ClauseKind.LIST_ITEM


def test_a_numbered_paragraph_keeps_its_number_as_label() -> None:
    clauses = _clauses("(1) Meals must be\n    cheap. Keep receipts.\n\n(2) Be kind to all.\n")

    assert [clause.label for clause in clauses] == ["(1)", "(1)", "(2)"]


def test_markup_is_plain_text_here() -> None:
    assert _clauses("Meals <!-- really --> must be cheap.\n")[0].text == "Meals"
