"""HTML to clauses: all visible text, whatever element it stands in, and nothing else."""

import pytest

from rulegen_dagster.domain.clause import Clause, ClauseKind
from rulegen_dagster.domain.errors import SpecError
from rulegen_dagster.specs.clauses import clauses_of
from rulegen_dagster.specs.document import read_document
from rulegen_dagster.specs.hypertext import read_html


def _clauses(body: str) -> tuple[Clause, ...]:
    reading = read_html(f"<!doctype html><html><body>{body}</body></html>".encode())
    return clauses_of(reading.text, reading.blocks)


def _texts(body: str) -> list[str]:
    return [clause.text for clause in _clauses(body)]


def test_text_in_any_block_is_read() -> None:
    body = (
        "Bare text must be.<div>Breakfast $12<div>Lunch $20</div>Dinner $40</div><section>It <b>must</b> be.</section>"
    )

    assert _texts(body) == ["Bare text must be.", "Breakfast $12", "Lunch $20", "Dinner $40", "It must be."]


HIDDEN = {
    "a script": "<script>HIDDEN must</script>",
    "a style": "<style>.HIDDEN{}</style>",
    "a comment": "<!-- HIDDEN must -->",
    "navigation": "<nav><ul><li>HIDDEN must</ul></nav>",
    "navigation by role": '<div role="navigation">HIDDEN must</div>',
    "a banner": '<header role="banner">HIDDEN must</header>',
    "the page's footer": "<footer>HIDDEN must</footer>",
    "hidden by attribute": "<p hidden>HIDDEN must</p>",
    "hidden by style": '<p style="color:red; display : none">HIDDEN must</p>',
    "hidden from readers": '<span aria-hidden="true">HIDDEN must</span>',
    "a template": "<template><p>HIDDEN must</p></template>",
    "no script": "<noscript>HIDDEN must</noscript>",
    "a button": "<button>HIDDEN must</button>",
    "a choice": "<select><option>HIDDEN must</select>",
    "a picture": '<svg><text>HIDDEN must</text></svg><img alt="HIDDEN must">',
    "a frame": '<iframe srcdoc="HIDDEN must">HIDDEN must</iframe>',
    "code": "<pre><code>HIDDEN must</code></pre>",
    "attributes": '<p title="HIDDEN must" data-x="HIDDEN">It is.</p>',
}


@pytest.mark.parametrize("hidden", HIDDEN.values(), ids=HIDDEN.keys())
def test_what_is_not_the_pages_text_is_not_read(hidden: str) -> None:
    assert not any("HIDDEN" in text for text in _texts(f"<p>It must be.</p>{hidden}<p>So must it.</p>"))
    assert {"It must be.", "So must it."} <= set(_texts(f"<p>It must be.</p>{hidden}<p>So must it.</p>"))


def test_the_footer_of_an_article_is_its_text() -> None:
    assert _texts("<article><p>It is.<footer>Exceptions must be approved.</footer></article>") == [
        "It is.",
        "Exceptions must be approved.",
    ]


def test_headings_and_leads_are_context() -> None:
    clauses = _clauses(
        "<h1>Travel</h1><h3>Meals</h3><p>Not paid:</p><ul><li>Fines<li>Alcohol</ul><h2>Hotels</h2><p>Ok."
    )

    assert [(clause.text, clause.heading_path, clause.lead) for clause in clauses] == [
        ("Not paid:", ("Travel", "Meals"), None),
        ("Fines", ("Travel", "Meals"), "Not paid:"),
        ("Alcohol", ("Travel", "Meals"), "Not paid:"),
        ("Ok.", ("Travel", "Hotels"), None),
    ]
    assert clauses[1].kind is ClauseKind.LIST_ITEM


def test_items_keep_the_numbers_that_are_shown() -> None:
    body = "<ol start=3><li>Three<li value=7>Seven<li>Eight<ol type=a><li>A<li>B</ol></ol><ol type=I><li>One</ol>"

    assert [clause.label for clause in _clauses(body)] == ["3", "7", "8", "a", "b", "I"]


def test_a_line_break_separates_words_and_soft_marks_do_not() -> None:
    assert _texts("<p>Meals<br>must&nbsp;be re&shy;imbursed<wbr>.</p>") == ["Meals must be reimbursed."]


def test_rows_have_the_names_of_their_columns() -> None:
    body = (
        "<p>Limits:</p><table><caption>Cap</caption><thead><tr><th>Meal<th colspan=2>Limit<tr><th><th>Home<th>Abroad"
        "<tbody><tr><td rowspan=2>Lunch<td>$20<td>$30<tr><td>$21<td>$31<tr><th>Dinner<td>$40<td><ul><li>$50<li>$60</ul>"
        "</table>"
    )

    rows = [clause for clause in _clauses(body) if clause.kind is ClauseKind.TABLE_ROW]

    assert [clause.text for clause in rows] == ["Lunch | $20 | $30", "Lunch | $21 | $31", "Dinner | $40 | $50 $60"]
    assert {clause.table_header for clause in rows} == {("Meal", "Limit / Home", "Abroad")}
    assert {clause.lead for clause in rows} == {"Limits:"}


@pytest.mark.parametrize(
    "body",
    [
        "<table><tr><td>It must be.<td><table><tr><td>a<td>b</table></table>",
        "<table><tr><td><h2>Meals</h2>It must be.<td>a</table>",
        "<table role=presentation><tr><td>It must be.<td>a</table>",
        "<table><tr><td>It must be.<tr><td>a</table>",
    ],
)
def test_a_table_for_layout_is_read_as_its_blocks(body: str) -> None:
    assert "It must be." in _texts(body)


def test_a_place_is_the_path_of_the_paragraph() -> None:
    data = b"<!doctype html><main><p>It <i>must</i> be.</p><p>So must it.</p><ul><li>Item</ul></main>"

    parsed = read_document(data, "policy.html", max_bytes=1000)

    assert [parsed.location_of(clause.start) for clause in parsed.clauses] == [
        "body/main[1]/p[1]",
        "body/main[1]/p[2]",
        "body/main[1]/ul[1]/li[1]",
    ]


@pytest.mark.parametrize(
    "data",
    [
        '<html><meta charset="iso-8859-1"><p>Über 5 €'.encode("cp1252"),
        '<html><meta http-equiv=x content="text/html; charset=windows-1252"><p>Über 5 €'.encode("cp1252"),
        "\ufeff<html><p>Über 5 €".encode(),
        b"<html><p>&Uuml;ber 5 &#8364;",
    ],
)
def test_a_page_is_decoded_as_it_declares(data: bytes) -> None:
    assert read_html(data).text == "Über 5 €\n\n"


@pytest.mark.parametrize("data", [b"<html><meta charset=x-user><p>a", "<html><p>ü".encode("latin-1")])
def test_a_page_that_cannot_be_decoded_is_refused(data: bytes) -> None:
    with pytest.raises(SpecError) as caught:
        read_html(data)

    assert caught.value.code == "wrong_encoding"
