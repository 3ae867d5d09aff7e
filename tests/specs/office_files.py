"""DOCX files for tests, written part by part, so that a test says exactly what is in them."""

import io
import zipfile
from collections.abc import Mapping

NAMESPACE = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
_MAIN = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"


def run(text: str, properties: str = "") -> str:
    return f'<w:r><w:rPr>{properties}</w:rPr><w:t xml:space="preserve">{text}</w:t></w:r>'


def paragraph(text: str, *, style: str = "", number: str = "", level: int = 0) -> str:
    styled = f'<w:pStyle w:val="{style}"/>' if style else ""
    listed = f'<w:numPr><w:ilvl w:val="{level}"/><w:numId w:val="{number}"/></w:numPr>' if number else ""
    return f"<w:p><w:pPr>{styled}{listed}</w:pPr>{text if text.startswith('<') else run(text)}</w:p>"


def cell(text: str, properties: str = "") -> str:
    return f"<w:tc><w:tcPr>{properties}</w:tcPr>{text if text.startswith('<w:') else paragraph(text)}</w:tc>"


def row(*cells: str, properties: str = "") -> str:
    shown = "".join(text if text.startswith("<w:tc>") else cell(text) for text in cells)
    return f"<w:tr><w:trPr>{properties}</w:trPr>{shown}</w:tr>"


def table(*rows: str, properties: str = "") -> str:
    return f"<w:tbl><w:tblPr>{properties}</w:tblPr>{''.join(rows)}</w:tbl>"


def level(index: int, kind: str, pattern: str, extra: str = "") -> str:
    return (
        f'<w:lvl w:ilvl="{index}"><w:start w:val="1"/><w:numFmt w:val="{kind}"/>{extra}<w:lvlText w:val="{pattern}"/>'
        "</w:lvl>"
    )


def numbering(*levels: str, numbers: Mapping[str, str] | None = None) -> str:
    """One abstract list with these levels; `numbers` gives each list of it its overrides."""
    lists = "".join(
        f'<w:num w:numId="{name}"><w:abstractNumId w:val="0"/>{overrides}</w:num>'
        for name, overrides in (numbers or {"1": ""}).items()
    )
    return part("numbering", f'<w:abstractNum w:abstractNumId="0">{"".join(levels)}</w:abstractNum>{lists}')


def style(name: str, *, shown: str = "", based_on: str = "", properties: str = "") -> str:
    based = f'<w:basedOn w:val="{based_on}"/>' if based_on else ""
    return (
        f'<w:style w:type="paragraph" w:styleId="{name}"><w:name w:val="{shown or name}"/>{based}'
        f"<w:pPr>{properties}</w:pPr></w:style>"
    )


def part(root: str, content: str, *, before: str = "") -> str:
    return f'<?xml version="1.0" encoding="UTF-8"?>{before}<w:{root} xmlns:w="{NAMESPACE}">{content}</w:{root}>'


def document(*body: str) -> str:
    return part("document", f"<w:body>{''.join(body)}</w:body>")


def types(main: str = _MAIN) -> str:
    return (
        f'<Types xmlns="{_PACKAGE}/content-types">'
        f'<Override PartName="/word/document.xml" ContentType="{main}"/></Types>'
    )


def docx(*body: str, parts: Mapping[str, str | bytes] | None = None) -> bytes:
    """A document with this body; `parts` adds parts or replaces the usual ones."""
    contents: dict[str, str | bytes] = {
        "[Content_Types].xml": types(),
        "word/document.xml": document(*body),
        **(parts or {}),
    }
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    return file.getvalue()
