"""DOCX to canonical text and blocks: the body and its notes, with automatic numbers, as a reader sees them.

Accepted changes only: deleted and hidden text, comments, headers, footers, fields' codes and tables of contents give
no text. Other parts of the archive are not opened, and nothing outside it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.etree.ElementTree import Element

from rulegen_dagster.domain.source_map import PlaceUnit
from rulegen_dagster.specs.archives import Archive
from rulegen_dagster.specs.assembly import Assembly, Reading, cleaned
from rulegen_dagster.specs.refusals import Refusal, refused
from rulegen_dagster.specs.table_grid import Cell, Grid, joined_header
from rulegen_dagster.specs.word_numbering import Numbering, W, number_in, value_of
from rulegen_dagster.specs.word_styles import Style, is_on, styles_of

DOCUMENT = "word/document.xml"
MAX_TABLE_NESTING = 20

_TYPES = "[Content_Types].xml"
_MACROS = ("vbaproject.bin", "vbadata.xml")
_FALLBACK = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"
_TEXT_BOX = f"{W}txbxContent"
_NO_TEXT = frozenset(
    (f"{W}del", f"{W}moveFrom", f"{W}pPr", f"{W}rPr", f"{W}instrText", f"{W}delText", _FALLBACK, _TEXT_BOX)
)
_BREAKS = frozenset((f"{W}tab", f"{W}br", f"{W}cr", f"{W}ptab"))
_HEXADECIMAL = re.compile(r"[0-9a-fA-F]{1,4}")
_FIRST_ROW = 0x20
_NOTES = (("word/footnotes.xml", "footnote"), ("word/endnotes.xml", "endnote"))


def read_docx(data: bytes) -> Reading:
    """Read a document.

    Raises `SpecError` (`broken_file`, `type_mismatch`, `encrypted`, `macros`, `archive_bomb`, `xml_entities`,
    `embedded_file`, `too_deep`, `too_complex`, `too_large`, `too_many_lines`).
    """
    archive = Archive(data)
    _refuse_macros(archive)
    root = archive.xml(DOCUMENT)
    if root is None:
        raise refused(Refusal.TYPE_MISMATCH, "the archive holds no DOCX document; export the specification as DOCX")
    body = root.find(f"{W}body")
    if body is None:
        raise refused(Refusal.BROKEN_FILE, "the document has no body in the expected form; save it anew as DOCX")
    walk = _Walk(
        Assembly(unit=PlaceUnit.PARAGRAPH),
        styles_of(archive.xml("word/styles.xml")),
        Numbering.of(archive.xml("word/numbering.xml")),
    )
    walk.over(body)
    walk.assembly.break_list()
    for name, kind in _NOTES:
        walk.notes(archive.xml(name), kind)
    return walk.assembly.finish()


def _refuse_macros(archive: Archive) -> None:
    types = archive.xml(_TYPES)
    declared = (element.get("ContentType", "").lower() for element in types) if types is not None else ()
    if any(name.lower().endswith(_MACROS) for name in archive.names) or any("macro" in kind for kind in declared):
        raise refused(Refusal.MACROS, "the document holds macros; save it as DOCX without them")


@dataclass
class _Walk:
    """Reads the body's paragraphs and tables in order."""

    assembly: Assembly
    styles: dict[str, Style]
    numbering: Numbering
    paragraphs: int = 0
    tables: int = 0
    _depth: int = field(default=0)

    def over(self, parent: Element) -> None:
        """Take the paragraphs and tables below an element."""
        for child in parent:
            if child.tag == f"{W}p":
                self._paragraph(child)
            elif child.tag == f"{W}tbl":
                self._table(child)
            elif child.tag == f"{W}altChunk":
                raise refused(
                    Refusal.EMBEDDED_FILE,
                    "the document includes another file, which is not read; paste its text into the document",
                )
            elif child.tag == f"{W}sdt":
                if not _is_contents(child):
                    self.over(child)
            elif child.tag not in _NO_TEXT:
                self.over(child)

    def notes(self, root: Element | None, kind: str) -> None:
        """Take the footnotes or endnotes; the separators between text and notes are none."""
        for note in () if root is None else root:
            if note.get(f"{W}type") in (None, "normal"):
                text = cleaned(" ".join("".join(_texts(part)) for part in note.iter(f"{W}p")))
                self.assembly.break_list()
                self.assembly.paragraph(text, ((0, f"{kind} {note.get(f'{W}id', '?')}"),))

    def _paragraph(self, paragraph: Element) -> None:
        self.paragraphs += 1
        place = f"paragraph {self.paragraphs}"
        properties = paragraph.find(f"{W}pPr")
        style = self.styles.get(value_of(properties, "pStyle") or "", Style())
        text = "" if style.is_contents or style.is_hidden else cleaned("".join(_texts(paragraph)))
        if text:
            self._shown(text, place, properties, style)
        for box in _text_boxes(paragraph):
            self.over(box)

    def _shown(self, text: str, place: str, properties: Element | None, style: Style) -> None:
        outline = number_in(properties, "outlineLvl")
        level = outline + 1 if outline is not None and 0 <= outline < 9 else style.level
        number, index = self._list_of(properties, style)
        mark = self.numbering.mark(number, index) if number else None
        if level:
            self.assembly.heading(level, f"{mark.shown} {text}" if mark and mark.label else text, place)
            return
        self.assembly.paragraph(
            text,
            ((0, place),),
            depth=index + 1 if mark else 0,
            label=mark.label if mark else None,
            mark=mark.shown if mark else "",
        )

    def _list_of(self, properties: Element | None, style: Style) -> tuple[str | None, int]:
        listed = properties.find(f"{W}numPr") if properties is not None else None
        linked = self.numbering.style_levels.get(value_of(properties, "pStyle") or "")
        number = value_of(listed, "numId") or style.number
        index = number_in(listed, "ilvl")
        if index is None and linked and linked[0] == number:
            index = linked[1]
        if index is None:
            index = style.number_level or 0
        return (None, 0) if number in (None, "0") else (number, index)

    def _table(self, table: Element) -> None:
        self.tables += 1
        number = self.tables
        rows = [row for row in _below(table, f"{W}tr") if not _is_deleted(row)]
        if max((len(list(_below(row, f"{W}tc"))) for row in rows), default=0) < 2 or _has_table(rows):
            self._layout(rows)
            return
        self._data(rows, number, first_is_header=_first_row_looks_apart(table))
        self.assembly.break_list()

    def _layout(self, rows: list[Element]) -> None:
        """Take a table of one column, or one with tables inside, as the paragraphs that it holds."""
        self._depth += 1
        if self._depth > MAX_TABLE_NESTING:
            raise refused(Refusal.TOO_DEEP, f"tables are nested deeper than {MAX_TABLE_NESTING} levels; flatten them")
        for row in rows:
            for cell in _below(row, f"{W}tc"):
                self.over(cell)
        self._depth -= 1

    def _data(self, rows: list[Element], table: int, *, first_is_header: bool) -> None:
        grid = _merged(rows)
        header_rows: list[list[str]] = []
        for index, (row, values) in enumerate(zip(rows, grid, strict=True)):
            place = f"table {table}, row {index + 1}"
            is_marked = is_on(row.find(f"{W}trPr"), "tblHeader")
            if is_marked and len(header_rows) == index:
                header_rows.append(values)
                continue
            self.assembly.row(values, place, header=joined_header(header_rows))
            # Word sets this look on nearly every table, so such a row names the columns and stays a row as well.
            if index == 0 and first_is_header:
                header_rows.append(values)
        self.paragraphs += sum(len(list(row.iter(f"{W}p"))) for row in rows)


def _merged(rows: list[Element]) -> list[list[str]]:
    """Return the texts of all rows; a cell that is merged downwards is read again in each row."""
    grid: list[list[str]] = []
    above: list[str] = []
    for row in rows:
        values: list[str] = []
        before = number_in(row.find(f"{W}trPr"), "gridBefore") or 0
        values += [""] * min(max(before, 0), 64)
        for cell in _below(row, f"{W}tc"):
            properties = cell.find(f"{W}tcPr")
            merge = properties.find(f"{W}vMerge") if properties is not None else None
            width = min(max(number_in(properties, "gridSpan") or 1, 1), 64)
            text = cleaned(" ".join("".join(_texts(part)) for part in cell.iter(f"{W}p")))
            if merge is not None and merge.get(f"{W}val", "continue") == "continue" and len(values) < len(above):
                text = above[len(values)]
            values += Grid().add([Cell(text, width)])
        grid.append(values)
        above = values
    return grid


def _texts(element: Element) -> Iterator[str]:
    """Yield the shown text below a paragraph, without that of its text boxes."""
    for child in element:
        if child.tag == f"{W}t":
            yield child.text or ""
        elif child.tag in _BREAKS:
            yield " "
        elif child.tag == f"{W}noBreakHyphen":
            yield "-"
        elif child.tag not in _NO_TEXT and not (child.tag == f"{W}r" and is_on(child.find(f"{W}rPr"), "vanish")):
            yield from _texts(child)


def _text_boxes(element: Element) -> Iterator[Element]:
    for child in element:
        if child.tag == _TEXT_BOX:
            yield child
        elif child.tag not in _NO_TEXT:
            yield from _text_boxes(child)


def _below(parent: Element, tag: str) -> Iterator[Element]:
    """Yield children of one kind, also those in content controls and in what was inserted."""
    for child in parent:
        if child.tag == tag:
            yield child
        elif child.tag in (f"{W}sdt", f"{W}sdtContent", f"{W}ins", f"{W}customXml"):
            yield from _below(child, tag)


def _is_deleted(row: Element) -> bool:
    properties = row.find(f"{W}trPr")
    return properties is not None and properties.find(f"{W}del") is not None


def _is_contents(control: Element) -> bool:
    gallery = control.find(f"{W}sdtPr/{W}docPartObj/{W}docPartGallery")
    return gallery is not None and "contents" in (gallery.get(f"{W}val") or "").lower()


def _first_row_looks_apart(table: Element) -> bool:
    look = table.find(f"{W}tblPr/{W}tblLook")
    if look is None:
        return False
    first = look.get(f"{W}firstRow")
    if first is not None:
        return first in ("1", "true", "on")
    value = look.get(f"{W}val") or "0"
    return bool(int(value, 16) & _FIRST_ROW) if _HEXADECIMAL.fullmatch(value) else False


def _has_table(rows: list[Element]) -> bool:
    return any(next(row.iter(f"{W}tbl"), None) is not None for row in rows)
