"""PDF to clauses: lines joined to paragraphs again, page furniture left out, each clause with its page and line."""

import pytest

from rulegen_dagster.domain.clause import Clause
from rulegen_dagster.specs.assembly import Reading
from rulegen_dagster.specs.clauses import clauses_of
from rulegen_dagster.specs.document import read_document
from rulegen_dagster.specs.pdf import assembled, read_pdf
from rulegen_dagster.specs.pdf_lines import Line
from tests.specs.pdf_files import Text, column, pdf


def _texts(*pages: list[Text]) -> list[str]:
    return [clause.text for clause in _clauses(read_pdf(pdf(*pages)))]


def _clauses(reading: Reading) -> tuple[Clause, ...]:
    return clauses_of(reading.text, reading.blocks)


def _line(text: str, *, page: int = 1, y: float = 500, left: float = 50, right: float = 500) -> Line:
    return Line(
        page=page,
        number=1,
        text=text,
        left=left,
        right=right,
        y=y,
        size=10,
        bold=False,
        gaps=False,
        page_height=800,
    )


def _joined(*texts: str) -> str:
    lines = [_line(text, y=500 - 12 * index) for index, text in enumerate(texts)]
    return assembled(lines).text.strip()


WIDE = "Meals on a journey of more than eight hours are paid up to the limit of the country in which"


def test_lines_are_joined_to_sentences() -> None:
    page = column([WIDE, "the journey ends. Receipts must be", "", "Hotels must be cheap."])

    assert _texts(page) == [
        f"{WIDE} the journey ends.",
        "Receipts must be",
        "Hotels must be cheap.",
    ]


def test_a_sentence_goes_on_over_the_end_of_a_page() -> None:
    reading = read_pdf(pdf(column([WIDE]), column(["the journey ends.", "Others must be cheap."])))

    assert [clause.text for clause in _clauses(reading)] == [f"{WIDE} the journey ends.", "Others must be cheap."]


def test_a_place_is_a_page_and_a_line() -> None:
    data = pdf(column(["Travel must be cheap.", "Meals must be cheap."]), column(["Hotels must be cheap."]))

    parsed = read_document(data, "policy.pdf", max_bytes=10**6)

    assert [parsed.location_of(clause.start) for clause in parsed.clauses] == [
        "page 1, line 1",
        "page 1, line 2",
        "page 2, line 1",
    ]


@pytest.mark.parametrize(
    ("lines", "joined"),
    [
        (("Every reim-", "bursement is paid."), "Every reimbursement is paid."),
        (("Fahrt- und Flug-", "kosten werden gezahlt."), "Fahrt- und Flugkosten werden gezahlt."),
        (("Alle Fahrt-", "und Flugkosten werden gezahlt."), "Alle Fahrt- und Flugkosten werden gezahlt."),
        (("Die Kfz-", "Nutzung wird gezahlt."), "Die Kfz-Nutzung wird gezahlt."),
        (("It is pre-approved and pre-", "approved must be."), "It is pre-approved and pre-approved must be."),
        (("A 14-", "day limit is set."), "A 14-day limit is set."),
        (("Limits of 5 -", "and more."), "Limits of 5 - and more."),
        (("A soft\u00ad", "ened word."), "A soft ened word."),
        (("経費は上限", "までです。"), "経費は上限までです。"),
        (
            ("Die Frist endet nach § 4 Abs. 1 und nach", "§ 5 des Gesetzes."),
            "Die Frist endet nach § 4 Abs. 1 und nach § 5 des Gesetzes.",
        ),
        (("Gezahlt wird vom", "15. Tag an."), "Gezahlt wird vom 15. Tag an."),
    ],
)
def test_words_and_sentences_cut_by_a_line_end_are_whole_again(lines: tuple[str, ...], joined: str) -> None:
    assert _joined(*lines) == joined


def test_words_cut_in_the_file_are_whole_again() -> None:
    page = column(["Every single reim-", "bursement of Fahrt-", "und Flugkosten for a 14-", "day trip must be paid."])

    assert _texts(page) == ["Every single reimbursement of Fahrt- und Flugkosten for a 14-day trip must be paid."]


def test_items_are_told_by_their_marks() -> None:
    page = column(["These are not paid:", "• Fines", "• Alcohol, also", "wine", "(2) Tips must be small.", "1. First."])

    clauses = _clauses(read_pdf(pdf(page)))

    assert [(clause.text, clause.label) for clause in clauses] == [
        ("These are not paid:", None),
        ("Fines", None),
        ("Alcohol, also wine", None),
        ("(2) Tips must be small.", "(2)"),
        ("First.", "1"),
    ]
    assert clauses[1].lead == "These are not paid:"
    assert clauses[0].role_reason == "introduces_list"


def test_headings_are_told_by_size_and_weight() -> None:
    page = [
        Text(50, 700, "Travel policy", 20),
        Text(50, 660, "Meals", 14),
        Text(50, 640, "Meals must be cheap."),
        Text(50, 610, "2.1 Tips", 10, bold=True),
        Text(50, 590, "Tips must be small."),
        Text(50, 560, "Lunch up to $20 per day"),
    ]

    clauses = _clauses(read_pdf(pdf(page)))

    assert [(clause.text, clause.heading_path) for clause in clauses] == [
        ("Meals must be cheap.", ("Travel policy", "Meals")),
        ("Tips must be small.", ("Travel policy", "Meals", "2.1 Tips")),
        ("Lunch up to $20 per day", ("Travel policy", "Meals", "2.1 Tips")),
    ]


def test_headers_footers_and_page_numbers_are_no_text() -> None:
    pages = [
        [
            Text(50, 780, "ACME travel policy"),
            *column([f"Rule {name} must be kept."]),
            Text(50, 30, f"Version 3, page {number} of 3"),
            Text(300, 20, str(number)),
        ]
        for number, name in enumerate(("one", "two", "three"), 1)
    ]

    assert _texts(*pages) == ["Rule one must be kept.", "Rule two must be kept.", "Rule three must be kept."]


def test_what_stands_at_the_edge_of_one_page_alone_is_text() -> None:
    assert _texts([Text(50, 780, "Meals must be cheap.")], [Text(50, 30, "Hotels must be cheap.")]) == [
        "Meals must be cheap.",
        "Hotels must be cheap.",
    ]


def test_the_lines_of_a_table_stay_apart() -> None:
    cells = [("Lunch", "$20"), ("Dinner", "$40")]
    page = [
        text
        for index, (meal, limit) in enumerate(cells)
        for text in (Text(50, 700 - 12 * index, meal), Text(200, 700 - 12 * index, limit))
    ]

    assert _texts(page) == ["Lunch $20", "Dinner $40"]


def test_two_columns_are_read_one_after_the_other() -> None:
    left = column(["Meals on a journey must", "be cheap. Hotels must", "be close to the"], x=50)
    right = column(["office of the company.", "Tips must be small."], x=320)

    assert _texts([*left, *right]) == [
        "Meals on a journey must be cheap.",
        "Hotels must be close to the office of the company.",
        "Tips must be small.",
    ]


def test_text_beside_the_page_is_not_read() -> None:
    page = [Text(50, 700, "It must be."), Text(5000, 700, "HIDDEN"), Text(50, -90, "HIDDEN"), Text(-500, 600, "HIDDEN")]

    assert _texts(page) == ["It must be."]
