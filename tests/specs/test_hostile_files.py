"""Hostile files of every format end as a typed refusal or as harmless clauses. The timeout is the assertion."""

import codecs
import io
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from rulegen_dagster.domain.errors import SpecError
from rulegen_dagster.specs.apart import read_apart
from rulegen_dagster.specs.detection import Format
from rulegen_dagster.specs.document import read_document
from rulegen_dagster.specs.refusals import Refusal
from tests.specs.office_files import document, docx, numbering, paragraph, part, row, run, style, table, types
from tests.specs.pdf_files import PICTURE, Text, content, pdf

GOOD = "Meals must be cheap."
SECRET = "Zebrafinch"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
COMPOUND = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(504)
PAGE = [Text(50, 700, GOOD)]
HTML = "<!doctype html><html><body>"

Make = Callable[[], bytes]


def _html(body: str) -> Make:
    return f"{HTML}<p>{GOOD}</p>{body}".encode


def _docx(*body: str, **parts: str) -> Make:
    return lambda: docx(paragraph(GOOD), *body, parts={f"word/{name}.xml": text for name, text in parts.items()})


def _with_entities(declarations: str, shown: str) -> Make:
    xml = document(paragraph(shown)).replace("<w:document", f"<!DOCTYPE x [{declarations}]><w:document", 1)
    return lambda: docx(parts={"word/document.xml": xml})


def _nested_tables(depth: int) -> str:
    inner = paragraph(GOOD)
    for _ in range(depth):
        inner = table(f"<w:tr><w:tc>{inner}{paragraph('')}</w:tc></w:tr>")
    return inner


def _declared(size: int) -> Make:
    """A document whose archive says another size of one part than it has."""

    def make() -> bytes:
        data = bytearray(docx(paragraph(GOOD)))
        entry = data.rfind(b"PK\x01\x02")
        data[entry + 24 : entry + 28] = struct.pack("<I", size)
        return bytes(data)

    return make


def _flagged() -> bytes:
    data = bytearray(docx(paragraph(GOOD)))
    for mark, at in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):
        position = data.find(mark)
        while position >= 0:
            data[position + at] |= 1
            position = data.find(mark, position + 4)
    return bytes(data)


def _twice() -> bytes:
    file = io.BytesIO(docx(paragraph(GOOD)))
    with zipfile.ZipFile(file, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("word/document.xml", document(paragraph("Anything goes.")))
    return file.getvalue()


def _spreadsheet() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("[Content_Types].xml", types())
        archive.writestr("xl/workbook.xml", "<workbook/>")
    return file.getvalue()


def _without_letters() -> bytes:
    mapping = (
        b"/CIDInit /ProcSet findresource begin 12 dict begin begincmap 1 begincodespacerange <00><FF>"
        b" endcodespacerange 1 beginbfrange <00><FF><E100> endbfrange endcmap end end"
    )
    font = b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/ToUnicode 6 0 R>>"
    return pdf(PAGE, extra={3: font, 6: b"<</Length %d>>stream\n%s\nendstream" % (len(mapping), mapping)})


def _locked() -> bytes:
    keys = b"/Encrypt<</Filter/Standard/V 1/R 2/O<%s>/U<%s>/P -4>>/ID[<00><00>]" % (b"ab" * 32, b"cd" * 32)
    return pdf(PAGE, trailer=keys)


def _form_in_itself() -> bytes:
    page = (
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 600 800]/Contents 11 0 R"
        b"/Resources<</Font<</F1 3 0 R>>/XObject<</Fm 20 0 R>>>>>>"
    )
    form = (
        b"<</Type/XObject/Subtype/Form/BBox[0 0 9 9]/Resources<</XObject<</Fm 20 0 R>>>>/Length 6>>stream\n"
        b"/Fm Do\nendstream"
    )
    return pdf(content(PAGE) + b"/Fm Do", extra={10: page, 20: form})


REFUSED: dict[str, tuple[str, Make, Refusal]] = {
    # what the name says is not what is in the file
    "a picture called PDF": ("a.pdf", lambda: PNG, Refusal.TYPE_MISMATCH),
    "a picture called DOCX": ("a.docx", lambda: PNG, Refusal.TYPE_MISMATCH),
    "a picture called HTML": ("a.html", lambda: PNG, Refusal.WRONG_ENCODING),
    "a picture called Markdown": ("a.md", lambda: PNG, Refusal.NOT_TEXT),
    "a text called PDF": ("a.pdf", GOOD.encode, Refusal.TYPE_MISMATCH),
    "a page called PDF": ("a.pdf", _html(""), Refusal.TYPE_MISMATCH),
    "a PDF called DOCX": ("a.docx", lambda: pdf(PAGE), Refusal.TYPE_MISMATCH),
    "a document called text": ("a.txt", _docx(), Refusal.TYPE_MISMATCH),
    "a spreadsheet called DOCX": ("a.docx", _spreadsheet, Refusal.TYPE_MISMATCH),
    "an ending that is not read": ("a.odt", _docx(), Refusal.UNKNOWN_FORMAT),
    "an old office file": ("a.docx", lambda: COMPOUND, Refusal.UNKNOWN_FORMAT),
    # PDF
    "a PDF cut in half": ("a.pdf", lambda: pdf(PAGE)[:450], Refusal.BROKEN_FILE),
    "the first line of a PDF": ("a.pdf", lambda: b"%PDF-1.7\n", Refusal.BROKEN_FILE),
    "a PDF of noise": ("a.pdf", lambda: b"%PDF-1.7\n" + bytes(range(256)) * 400, Refusal.BROKEN_FILE),
    "a PDF with a password": ("a.pdf", _locked, Refusal.ENCRYPTED),
    "a scanned PDF": ("a.pdf", lambda: pdf(PICTURE), Refusal.NO_TEXT_LAYER),
    "one scanned page among others": ("a.pdf", lambda: pdf(PAGE, PICTURE, PAGE), Refusal.NO_TEXT_LAYER),
    "a PDF of empty pages": ("a.pdf", lambda: pdf([], []), Refusal.NO_TEXT_LAYER),
    "a PDF whose font has no letters": ("a.pdf", _without_letters, Refusal.NO_TEXT_LAYER),
    "a PDF of 501 pages": ("a.pdf", lambda: pdf(*[PAGE] * 501), Refusal.TOO_MANY_PAGES),
    "pages that hold themselves": (
        "a.pdf",
        lambda: pdf(PAGE, extra={2: b"<</Type/Pages/Count 9/Kids[2 0 R 10 0 R]>>"}),
        Refusal.BROKEN_FILE,
    ),
    "a PDF that expands 1,000 times": (
        "a.pdf",
        lambda: pdf(zlib.compress(b" " * 50_000_000, 9), filters=b"/Filter/FlateDecode"),
        Refusal.NO_TEXT_LAYER,
    ),
    # DOCX
    "macros": ("a.docx", lambda: docx(paragraph(GOOD), parts={"word/vbaProject.bin": b"x"}), Refusal.MACROS),
    "macros by their type alone": (
        "a.docx",
        lambda: docx(
            paragraph(GOOD),
            parts={"[Content_Types].xml": types("application/vnd.ms-word.document.macroEnabled.main+xml")},
        ),
        Refusal.MACROS,
    ),
    "a name for macros": ("a.docm", _docx(), Refusal.MACROS),
    "a part that expands 1,000 times": (
        "a.docx",
        lambda: docx(paragraph(GOOD), parts={"word/styles.xml": b" " * 20_000_000}),
        Refusal.ARCHIVE_BOMB,
    ),
    "3,000 files": (
        "a.docx",
        lambda: docx(paragraph(GOOD), parts={f"word/{number}": b"" for number in range(3_000)}),
        Refusal.ARCHIVE_BOMB,
    ),
    "a part that is said to be huge": ("a.docx", _declared(0x7FFFFFFF), Refusal.ARCHIVE_BOMB),
    "a part that is larger than said": ("a.docx", _declared(10), Refusal.BROKEN_FILE),
    "two parts of one name": ("a.docx", _twice, Refusal.BROKEN_FILE),
    "a DOCX cut short": ("a.docx", lambda: docx(paragraph(GOOD))[:300], Refusal.BROKEN_FILE),
    "an empty archive": ("a.docx", lambda: b"PK\x05\x06" + bytes(18), Refusal.TYPE_MISMATCH),
    "an archive with a password": ("a.docx", _flagged, Refusal.ENCRYPTED),
    "a document with a password": (
        "a.docx",
        lambda: COMPOUND + "EncryptedPackage".encode("utf-16-le"),
        Refusal.ENCRYPTED,
    ),
    "entities that multiply": (
        "a.docx",
        _with_entities('<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">', "&b;"),
        Refusal.XML_ENTITIES,
    ),
    "an entity of a local file": (
        "a.docx",
        _with_entities('<!ENTITY a SYSTEM "file:///etc/passwd">', "&a;"),
        Refusal.XML_ENTITIES,
    ),
    "an entity of an address": (
        "a.docx",
        _with_entities('<!ENTITY % a SYSTEM "http://127.0.0.1:9/x"> %a;', GOOD),
        Refusal.XML_ENTITIES,
    ),
    "entities in the styles": (
        "a.docx",
        _docx(styles=part("styles", "", before='<!DOCTYPE x [<!ENTITY a "b">]>')),
        Refusal.XML_ENTITIES,
    ),
    "XML that is none": ("a.docx", lambda: docx(parts={"word/document.xml": "<w:document"}), Refusal.BROKEN_FILE),
    "5,000 controls in one another": (
        "a.docx",
        _docx("<w:sdt><w:sdtContent>" * 5_000 + paragraph(GOOD) + "</w:sdtContent></w:sdt>" * 5_000),
        Refusal.TOO_DEEP,
    ),
    "25 tables in one another": ("a.docx", _docx(_nested_tables(25)), Refusal.TOO_DEEP),
    "a file included": ("a.docx", _docx('<w:altChunk w:id="r1"/>'), Refusal.EMBEDDED_FILE),
    "a document without text": ("a.docx", lambda: docx(paragraph("")), Refusal.EMPTY_FILE),
    # HTML
    "20,000 open elements": ("a.html", _html("<div>" * 20_000), Refusal.TOO_DEEP),
    "1,000 elements in one another": ("a.html", _html("<div>" * 1_000 + "a" + "</div>" * 1_000), Refusal.TOO_DEEP),
    "100,000 open formats": ("a.html", _html("<p><b>" * 100_000), Refusal.TOO_DEEP),
    "30,000 tables in one another": ("a.html", _html("<table><tr><td>" * 30_000), Refusal.TOO_DEEP),
    "elements closed in a comment": ("a.html", _html("<div><!-- </div> -->" * 20_000 + "x"), Refusal.TOO_DEEP),
    "60,000 paragraphs": ("a.html", _html("<p>a" * 60_000), Refusal.TOO_MANY_LINES),
    "merged rows that multiply": (
        "a.html",
        _html("<table>" + f"<tr><td rowspan=999>{'x' * 300}<td>b" * 20_000),
        Refusal.TOO_LARGE,
    ),
    "a page of scripts": ("a.html", f"{HTML}<script>{GOOD}</script>".encode, Refusal.EMPTY_FILE),
    "a page in Latin-1": ("a.html", lambda: f"{HTML}Übernachtung".encode("latin-1"), Refusal.WRONG_ENCODING),
    "a page in UTF-16": ("a.html", lambda: f"{HTML}{GOOD}".encode("utf-16"), Refusal.WRONG_ENCODING),
    "a character set of its own": (
        "a.html",
        f'<html><meta charset="x-unknown">{GOOD}'.encode,
        Refusal.WRONG_ENCODING,
    ),
    # any format
    "larger than configured": ("a.pdf", lambda: pdf(PAGE) + b" " * 10**7, Refusal.TOO_LARGE),
    "white space": ("a.pdf", lambda: b" \n" * 1_000, Refusal.EMPTY_FILE),
    "a mark of UTF-32": ("a.txt", lambda: codecs.BOM_UTF32_LE + GOOD.encode("utf-32-le"), Refusal.WRONG_ENCODING),
}

HARMLESS: dict[str, tuple[str, Make]] = {
    "a script that never ends": (
        "a.pdf",
        lambda: pdf(PAGE, catalog=b"/OpenAction<</S/JavaScript/JS(for\\(;;\\);)>>"),
    ),
    "a file attached": ("a.pdf", lambda: pdf(PAGE, catalog=b"/Names<</EmbeddedFiles<</Names[(x)9 0 R]>>>>")),
    "a form in itself": ("a.pdf", _form_in_itself),
    "500,000 states saved": ("a.pdf", lambda: pdf(b"q " * 500_000 + content(PAGE))),
    "100,000 arrays in one another": (
        "a.pdf",
        lambda: pdf(PAGE, extra={6: b"[" * 100_000 + b"]" * 100_000}, catalog=b"/X 6 0 R"),
    ),
    "names that climb out of the archive": (
        "a.docx",
        lambda: docx(paragraph(GOOD), parts={"../../../tmp/evil": b"x", "/etc/evil": b"x"}),
    ),
    "an archive in the archive": (
        "a.docx",
        lambda: docx(paragraph(GOOD), parts={"word/embeddings/a.docx": docx(paragraph(SECRET))}),
    ),
    "a template at an address": (
        "a.docx",
        lambda: docx(
            paragraph(GOOD),
            parts={
                "word/_rels/settings.xml.rels": '<Relationships><Relationship Id="r" TargetMode="External"'
                ' Target="http://127.0.0.1:9/x"/></Relationships>'
            },
        ),
    ),
    "a cell as wide as a number goes": (
        "a.docx",
        _docx(table(row("a", "b")).replace("<w:tcPr>", '<w:tcPr><w:gridSpan w:val="999999999"/>')),
    ),
    "styles that inherit in a circle": (
        "a.docx",
        _docx(
            paragraph("Tips.", style="A"), styles=part("styles", style("A", based_on="B") + style("B", based_on="A"))
        ),
    ),
    "a list without levels": ("a.docx", _docx(paragraph("Tips.", number="1", level=8), numbering=numbering())),
    "a level beyond all levels": ("a.docx", _docx(paragraph("Tips.", number="1", level=999), numbering=numbering())),
    "20,000 runs": ("a.docx", _docx("<w:p>" + "".join(run(f"so {number} ") for number in range(20_000)) + "</w:p>")),
    "a document in UTF-16": (
        "a.docx",
        lambda: docx(
            parts={"word/document.xml": document(paragraph(GOOD)).replace("UTF-8", "UTF-16").encode("utf-16")}
        ),
    ),
    "frames, objects and links": (
        "a.html",
        _html(
            '<iframe src="file:///etc/passwd"></iframe><object data="file:///etc/passwd"></object>'
            '<link rel=import href="http://127.0.0.1:9/"><img src="http://127.0.0.1:9/">'
        ),
    ),
    "cells as wide as a number goes": ("a.html", _html("<table><tr><td colspan=99999 rowspan=99999>a<td>b</table>")),
    "a million attributes": ("a.html", _html("<p " + "a=1 " * 300_000 + ">")),
    "500,000 open comments": ("a.html", _html("<!--" * 500_000)),
    "references to no character": ("a.html", _html("&#xD800;&#0;&#x110000;&nosuch;" * 1_000)),
    "bytes of value zero": ("a.html", _html("<p>a\x00b</p>")),
    "HTML inside Markdown": ("a.md", f"<html>\n\n{GOOD}\n".encode),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("file_name", "make", "code"), REFUSED.values(), ids=REFUSED.keys())
def test_a_hostile_file_is_refused_with_its_code(file_name: str, make: Make, code: Refusal) -> None:
    data = make()

    with pytest.raises(SpecError) as caught:
        read_document(data, file_name, max_bytes=10**7)

    assert caught.value.code == code


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("file_name", "make"), HARMLESS.values(), ids=HARMLESS.keys())
def test_a_strange_file_is_read_as_its_text_and_nothing_else(file_name: str, make: Make, tmp_path: Path) -> None:
    parsed = read_document(make(), file_name, max_bytes=10**7)

    assert GOOD in [clause.text for clause in parsed.clauses]
    assert SECRET not in parsed.canonical_text
    assert "root:" not in parsed.canonical_text
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_takes_too_long_is_ended() -> None:
    # The time of the HTML parser grows with the square of the attributes of one element.
    names = " ".join(f"a{number}" for number in range(100_000))

    with pytest.raises(SpecError) as caught:
        read_apart(f"{HTML}<p {names}>{GOOD}".encode(), Format.HTML, cpu_seconds=1)

    assert caught.value.code == "too_complex"


@pytest.mark.parametrize("file_name", ["a.docx", "a.pdf", "a.html"])
def test_no_refusal_repeats_the_text(file_name: str) -> None:
    body = {
        "a.docx": _with_entities('<!ENTITY a "b">', SECRET)(),
        "a.pdf": pdf([Text(50, 700, SECRET)])[:450],
        "a.html": _html(SECRET + "<div>" * 20_000)(),
    }[file_name]

    with pytest.raises(SpecError) as caught:
        read_document(body, file_name, max_bytes=10**7)

    assert SECRET not in caught.value.message
