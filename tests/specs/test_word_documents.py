"""DOCX to clauses: automatic numbers as a reader sees them, tables with headers, and nothing that is not the text."""

import pytest

from rulegen_dagster.domain.clause import Clause, ClauseKind, ParsedSpec
from rulegen_dagster.specs.document import read_document
from tests.specs.office_files import cell, docx, level, numbering, paragraph, part, row, run, style, table

LEGAL = (level(0, "decimal", "%1"), level(1, "decimal", "%1.%2"), level(2, "lowerLetter", "(%3)"))


def _parsed(*body: str, parts: dict[str, str | bytes] | None = None) -> ParsedSpec:
    return read_document(docx(*body, parts=parts), "policy.docx", max_bytes=10**7)


def _clauses(*body: str, parts: dict[str, str | bytes] | None = None) -> tuple[Clause, ...]:
    return _parsed(*body, parts=parts).clauses


def _labels(*levels: int, lists: str, number: str = "1") -> list[str | None]:
    body = [paragraph("Meals must be cheap.", number=number, level=depth) for depth in levels]
    return [clause.label for clause in _clauses(*body, parts={"word/numbering.xml": lists})]


def test_numbers_are_those_that_a_reader_sees_with_the_one_above() -> None:
    assert _labels(0, 1, 1, 2, 2, 1, 0, 1, 2, lists=numbering(*LEGAL)) == [
        *("1", "1.1", "1.2", "1.2 (a)", "1.2 (b)", "1.3", "2", "2.1", "2.1 (a)"),
    ]


@pytest.mark.parametrize(
    ("kind", "pattern", "labels"),
    [
        ("decimal", "(%1)", ["(1)", "(2)"]),
        ("decimal", "§ %1", ["§ 1", "§ 2"]),
        ("upperRoman", "%1.", ["I", "II"]),
        ("lowerLetter", "%1)", ["a)", "b)"]),
        ("decimalZero", "%1", ["01", "02"]),
        ("bullet", "", [None, None]),
        ("none", "", [None, None]),
    ],
)
def test_each_form_of_a_number_is_kept(kind: str, pattern: str, labels: list[str | None]) -> None:
    assert _labels(0, 0, lists=numbering(level(0, kind, pattern))) == labels


def test_a_list_that_starts_anew_counts_from_its_own_start() -> None:
    anew = '<w:lvlOverride w:ilvl="0"><w:startOverride w:val="5"/></w:lvlOverride>'
    lists = numbering(level(0, "decimal", "%1."), numbers={"1": "", "2": anew, "3": ""})
    body = [paragraph("It must be.", number=number) for number in ("1", "1", "2", "2", "3")]

    labels = [clause.label for clause in _clauses(*body, parts={"word/numbering.xml": lists})]

    assert labels == ["1", "2", "5", "6", "7"]


def test_legal_numbers_write_the_levels_above_in_digits() -> None:
    lists = numbering(level(0, "upperRoman", "%1"), level(1, "decimal", "%1.%2", "<w:isLgl/>"))

    assert _labels(0, 0, 1, lists=lists) == ["I", "II", "2.1"]


def test_the_number_stands_in_the_canonical_text_and_not_in_the_clause() -> None:
    parsed = _parsed(paragraph("It must be.", number="1"), parts={"word/numbering.xml": numbering(*LEGAL)})

    assert parsed.canonical_text == "1 It must be.\n\n"
    assert parsed.clauses[0].text == "It must be."


def test_renumbering_does_not_change_the_hash() -> None:
    first = paragraph("Other words must be.", number="1")
    same = paragraph("It must be.", number="1")
    lists: dict[str, str | bytes] = {"word/numbering.xml": numbering(*LEGAL)}

    assert _clauses(same, parts=lists)[0].content_hash == _clauses(first, same, parts=lists)[1].content_hash


def test_a_style_can_number_its_paragraphs_and_name_headings() -> None:
    styles = part(
        "styles",
        style("H", shown="heading 2")
        + style("Mine", based_on="H")
        + style("Listed", properties='<w:numPr><w:ilvl w:val="1"/><w:numId w:val="1"/></w:numPr>')
        + style("Loop", based_on="Pool")
        + style("Pool", based_on="Loop"),
    )
    parts: dict[str, str | bytes] = {"word/styles.xml": styles, "word/numbering.xml": numbering(*LEGAL)}

    clauses = _clauses(
        paragraph("Travel", style="Mine"),
        paragraph("It must be.", style="Listed"),
        paragraph("So must it.", style="Loop"),
        parts=parts,
    )

    assert [(clause.label, clause.heading_path) for clause in clauses] == [("1.1", ("Travel",)), (None, ("Travel",))]


def test_a_numbered_heading_keeps_its_number() -> None:
    styles = part("styles", style("H", shown="heading 1"))
    parts: dict[str, str | bytes] = {"word/styles.xml": styles, "word/numbering.xml": numbering(*LEGAL)}

    (clause,) = _clauses(paragraph("Travel", style="H", number="1"), paragraph("It must be."), parts=parts)

    assert clause.heading_path == ("1 Travel",)


def test_items_know_the_paragraph_that_introduces_them() -> None:
    lists: dict[str, str | bytes] = {"word/numbering.xml": numbering(level(0, "bullet", "•"))}

    clauses = _clauses(
        paragraph("These are not paid:"),
        paragraph("Fines", number="1"),
        paragraph("Alcohol", number="1"),
        paragraph("Thanks."),
        parts=lists,
    )

    assert [clause.lead for clause in clauses] == [None, "These are not paid:", "These are not paid:", None]
    assert clauses[0].role_reason == "introduces_list"
    assert clauses[1].kind is ClauseKind.LIST_ITEM


def test_a_list_below_an_open_item_is_introduced_by_it() -> None:
    lists = part(
        "numbering",
        "".join(
            f'<w:abstractNum w:abstractNumId="{name}">{level(0, "decimal", form)}</w:abstractNum>'
            for name, form in (("0", "(%1)"), ("1", "%1."))
        )
        + "".join(f'<w:num w:numId="{n}"><w:abstractNumId w:val="{n}"/></w:num>' for n in ("0", "1"))
        + '<w:num w:numId="2"><w:abstractNumId w:val="0"/></w:num>',
    )
    clauses = _clauses(
        paragraph("No allowance is paid if travellers", number="2"),
        paragraph("use a car of the company,", number="1"),
        paragraph("stay at home.", number="1"),
        paragraph("The rest must be paid.", number="2"),
        parts={"word/numbering.xml": lists},
    )

    lead = "No allowance is paid if travellers"
    assert [(clause.label, clause.lead) for clause in clauses] == [
        *(("(1)", None), ("1", lead), ("2", lead), ("(2)", None)),
    ]


def test_a_table_gives_a_clause_for_each_row_with_the_names_of_its_columns() -> None:
    head = row("Meal", "Limit", properties="<w:tblHeader/>")

    clauses = _clauses(paragraph("Limits:"), table(head, row("Lunch", "$20"), row("Dinner", "$40")))

    assert [(clause.text, clause.table_header) for clause in clauses[1:]] == [
        ("Lunch | $20", ("Meal", "Limit")),
        ("Dinner | $40", ("Meal", "Limit")),
    ]
    assert {clause.lead for clause in clauses[1:]} == {"Limits:"}
    assert all(clause.kind is ClauseKind.TABLE_ROW for clause in clauses[1:])


def test_a_first_row_that_only_looks_apart_names_columns_and_stays_a_clause() -> None:
    look = '<w:tblLook w:val="0420"/>'

    clauses = _clauses(table(row("Lunch", "$20 at most"), row("Dinner", "$40"), properties=look))

    assert [(clause.text, clause.table_header) for clause in clauses] == [
        ("Lunch | $20 at most", ()),
        ("Dinner | $40", ("Lunch", "$20 at most")),
    ]


def test_merged_cells_are_read_in_each_row_that_depends_on_them() -> None:
    start, goes_on = '<w:vMerge w:val="restart"/>', "<w:vMerge/>"
    wide = cell("All meals", '<w:gridSpan w:val="2"/>')

    clauses = _clauses(
        table(
            row(cell("Abroad", start), "Lunch", "$20"),
            row(cell("", goes_on), "Dinner", "$40"),
            row(wide, "$60"),
        )
    )

    assert [clause.text for clause in clauses] == [
        "Abroad | Lunch | $20",
        "Abroad | Dinner | $40",
        "All meals |  | $60",
    ]


def test_a_table_for_layout_is_read_as_its_paragraphs() -> None:
    inner = table(row("Lunch", "$20"))

    clauses = _clauses(table(row(cell(paragraph("It must be. So must that.") + inner))))

    assert [clause.text for clause in clauses] == ["It must be.", "So must that.", "Lunch | $20"]


HIDDEN = {
    "a deletion": f"<w:p><w:del><w:r><w:delText>HIDDEN must.</w:delText></w:r></w:del>{run('It must be.')}</w:p>",
    "a moved text": f"<w:p><w:moveFrom>{run('HIDDEN must. ')}</w:moveFrom>{run('It must be.')}</w:p>",
    "hidden text": f"<w:p>{run('HIDDEN must. ', '<w:vanish/>')}{run('It must be.')}</w:p>",
    "a field": f"<w:p><w:r><w:instrText>HIDDEN must.</w:instrText></w:r>{run('It must be.')}</w:p>",
    "contents": f"{paragraph('HIDDEN must 4', style='TOC1')}{paragraph('It must be.')}",
    "contents in a control": (
        '<w:sdt><w:sdtPr><w:docPartObj><w:docPartGallery w:val="Table of Contents"/></w:docPartObj></w:sdtPr>'
        f"<w:sdtContent>{paragraph('HIDDEN must 4')}</w:sdtContent></w:sdt>{paragraph('It must be.')}"
    ),
    "a deleted row": (table(row("HIDDEN", "must", properties="<w:del/>"), row("b", "c")) + paragraph("It must be.")),
}


@pytest.mark.parametrize("body", HIDDEN.values(), ids=HIDDEN.keys())
def test_what_a_reader_does_not_see_is_no_text(body: str) -> None:
    parsed = _parsed(body, parts={"word/styles.xml": part("styles", style("TOC1", shown="toc 1"))})

    assert "HIDDEN" not in parsed.canonical_text
    assert "It must be." in [clause.text for clause in parsed.clauses]


def test_headers_footers_and_comments_are_not_read() -> None:
    other: dict[str, str | bytes] = {
        f"word/{name}.xml": part(root, paragraph("HIDDEN must be."))
        for name, root in (("header1", "hdr"), ("footer1", "ftr"), ("comments", "comments"))
    }

    assert _parsed(paragraph("It must be."), parts=other).canonical_text == "It must be.\n\n"


def test_insertions_links_and_text_boxes_are_text() -> None:
    box = f"<w:r><w:pict><w:txbxContent>{paragraph('Boxed must be.')}</w:txbxContent></w:pict></w:r>"
    body = f"<w:p><w:ins>{run('It ')}</w:ins><w:hyperlink>{run('must')}</w:hyperlink>{run(' be.')}{box}</w:p>"

    assert [clause.text for clause in _clauses(body)] == ["It must be.", "Boxed must be."]


def test_notes_follow_the_text() -> None:
    notes = part(
        "footnotes",
        f'<w:footnote w:type="separator" w:id="0">{paragraph("HIDDEN")}</w:footnote>'
        f'<w:footnote w:id="1">{paragraph("Tips must be small.")}</w:footnote>',
    )
    parsed = _parsed(paragraph("It must be."), parts={"word/footnotes.xml": notes})

    assert [clause.text for clause in parsed.clauses] == ["It must be.", "Tips must be small."]
    assert parsed.location_of(parsed.clauses[1].start) == "footnote 1"


def test_a_place_is_a_paragraph_or_a_row() -> None:
    parsed = _parsed(
        paragraph("It must be."), paragraph(""), table(row("a", "b"), row("c", "d")), paragraph("So must.")
    )

    assert [parsed.location_of(clause.start) for clause in parsed.clauses] == [
        *("paragraph 1", "table 1, row 1", "table 1, row 2", "paragraph 7"),
    ]
