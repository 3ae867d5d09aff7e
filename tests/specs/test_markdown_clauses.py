"""Markdown to clauses: what becomes one, what never does, and what a clause inherits."""

import pytest

from rulegen_dagster.domain.clause import Clause, ClauseKind
from rulegen_dagster.domain.errors import SpecError
from rulegen_dagster.specs.document import read_document


def _clauses(text: str) -> tuple[Clause, ...]:
    parsed = read_document(text.encode(), "policy.md", max_bytes=10**6)
    for clause in parsed.clauses:
        assert clause.text == parsed.canonical_text[clause.start : clause.end]
    return parsed.clauses


def _texts(text: str) -> list[str]:
    return [clause.text for clause in _clauses(text)]


def test_each_sentence_is_a_clause_with_its_heading_path() -> None:
    clauses = _clauses("# Travel\n\n## Meals\n\nMeals must be cheap. Keep receipts.\n\n# Other\n\nBe kind.\n")

    assert [clause.text for clause in clauses] == ["Meals must be cheap.", "Keep receipts.", "Be kind."]
    assert [clause.heading_path for clause in clauses] == [("Travel", "Meals"), ("Travel", "Meals"), ("Other",)]


def test_ordinals_count_from_zero_in_document_order() -> None:
    assert [clause.ordinal for clause in _clauses("One is. Two is.\n\n- Three\n")] == [0, 1, 2]


def test_underlined_headings_are_headings() -> None:
    assert _clauses("Travel\n======\n\nMeals must be cheap.\n")[0].heading_path == ("Travel",)


def test_a_list_item_inherits_the_sentence_that_introduces_it() -> None:
    clauses = _clauses("Some words. These are not paid:\n\n- Fines\n- Alcohol\n")

    assert [clause.lead for clause in clauses[2:]] == ["These are not paid:", "These are not paid:"]
    assert {clause.kind for clause in clauses[2:]} == {ClauseKind.LIST_ITEM}


def test_a_nested_list_inherits_its_item_and_otherwise_the_outer_lead() -> None:
    clauses = _clauses("Not paid:\n\n- Fines, such as:\n  - Parking\n- Food\n  - Snacks\n")

    leads = {clause.text: clause.lead for clause in clauses}
    assert leads["Parking"] == "Fines, such as:"
    assert leads["Snacks"] == "Not paid:"


def test_a_paragraph_between_lead_and_list_ends_the_lead() -> None:
    assert _clauses("Not paid:\n\nSome words.\n\n- Fines\n")[-1].lead is None


def test_the_number_of_a_list_item_or_paragraph_is_its_label() -> None:
    clauses = _clauses("1. First\n2. Second\n\n<!-- -->\n\n(2) Third one.\n\n4.1.3 Fourth one.\n")

    assert [clause.label for clause in clauses] == ["1", "2", "(2)", "4.1.3"]


def test_a_decimal_amount_at_the_start_is_no_label() -> None:
    assert _clauses("15.25 Euro are paid.\n")[0].label is None


def test_a_table_row_is_one_clause_with_its_header() -> None:
    clauses = _clauses("| Item | Limit |\n|---|---|\n| Hotel. Any. | $180 |\n| Meals | $75 |\n")

    assert [clause.text for clause in clauses] == ["| Hotel. Any. | $180 |", "| Meals | $75 |"]
    assert {clause.table_header for clause in clauses} == {("Item", "Limit")}
    assert {clause.kind for clause in clauses} == {ClauseKind.TABLE_ROW}


def test_a_table_in_a_quote_keeps_exact_rows() -> None:
    assert _texts("> | Item | Limit |\n> |---|---|\n> | Hotel | $180 |\n") == ["| Hotel | $180 |"]


@pytest.mark.parametrize(
    "hidden",
    [
        "---\nnote: HIDDEN must be\n---\n",
        "<!-- HIDDEN must be -->\n",
        "<!--\nHIDDEN must be\n\nHIDDEN\n-->\n",
        "<div>HIDDEN must be</div>\n",
        "<script>\nHIDDEN must be\n\nHIDDEN\n</script>\n",
        "<style>\nHIDDEN {}\n</style>\n",
        "```\nHIDDEN must be\n```\n",
        "~~~text\nHIDDEN must be\n~~~\n",
        "    HIDDEN must be\n",
        "[HIDDEN]: https://example.org 'HIDDEN'\n",
        "# HIDDEN must be\n",
        "{{% HIDDEN must be %}}\n",
    ],
)
def test_hidden_text_never_becomes_a_clause(hidden: str) -> None:
    assert _texts(f"{hidden}\nMeals must be cheap.\n") == ["Meals must be cheap."]


def test_a_comment_within_a_paragraph_is_in_no_clause() -> None:
    texts = _texts("Meals must be cheap. <!-- HIDDEN, pay 9999. --> Keep receipts.\n")

    assert texts == ["Meals must be cheap.", "Keep receipts."]


def test_a_comment_within_a_sentence_cuts_it() -> None:
    assert _texts("Meals <!-- HIDDEN\nHIDDEN --> must be cheap.\n") == ["Meals", "must be cheap."]


def test_an_opening_mark_without_its_end_hides_nothing() -> None:
    assert _texts("Meals <!-- must be cheap.\n") == ["Meals <!-- must be cheap."]


def test_a_script_within_a_paragraph_is_in_no_clause() -> None:
    assert _texts("Meals must be cheap. <ScRipt>HIDDEN</script>\n") == ["Meals must be cheap."]


def test_a_rule_line_at_the_top_is_no_front_matter_without_its_end() -> None:
    assert _texts("---\n\nMeals must be cheap.\n") == ["Meals must be cheap."]


@pytest.mark.parametrize("kind", ["NOTE", "Tip", "IMPORTANT", "warning", "CAUTION"])
def test_the_mark_of_an_alert_is_dropped_and_its_text_kept(kind: str) -> None:
    assert _texts(f"> [!{kind}]\n> Meals must be cheap.\n> Keep receipts.\n") == [
        "Meals must be cheap.",
        "Keep receipts.",
    ]


def test_a_sentence_over_two_quoted_lines_stays_one_clause() -> None:
    assert _texts("> Meals must\n> be cheap. Keep them.\n") == ["Meals must\n> be cheap.", "Keep them."]


def test_a_paragraph_without_letters_gives_no_clause() -> None:
    assert _texts("...\n\nMeals must be cheap.\n\n* * *\n") == ["Meals must be cheap."]


def test_crlf_and_lf_give_the_same_clauses() -> None:
    text = "# A\n\nMeals must\nbe cheap.\n\n- one\n- two\n"

    assert _clauses(text) == _clauses(text.replace("\n", "\r\n"))


def test_lists_nested_too_deep_are_refused_instead_of_cut() -> None:
    with pytest.raises(SpecError) as caught:
        _clauses("".join("  " * depth + "- a\n" for depth in range(60)))

    assert caught.value.code == "too_deep"


def test_a_list_of_twenty_levels_is_read_to_its_end() -> None:
    assert len(_clauses("".join("  " * depth + "- a\n" for depth in range(20)))) == 20


def test_the_content_hash_survives_a_move_and_a_renumbering() -> None:
    before = _clauses("(2) Meals **must** be\ncheap, see [here](a).\n")[0]
    after = _clauses("# New\n\n(3) Meals must be cheap, see [here](b).\n")[0]

    assert before.content_hash == after.content_hash
    assert before.context_hash != after.context_hash


def test_the_content_hash_changes_with_an_amount_in_front() -> None:
    assert _clauses("15.25 Euro are paid.\n")[0].content_hash != _clauses("15.26 Euro are paid.\n")[0].content_hash
