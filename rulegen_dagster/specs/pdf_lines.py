"""PDF pages to lines: what is written on the page, in the order of the file, with its place and size."""

import ctypes
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

import pypdfium2 as pdfium
import pypdfium2.raw as pdfium_c

from rulegen_dagster.specs.assembly import MAX_CHARACTERS
from rulegen_dagster.specs.refusals import Refusal, refused

MAX_PAGES = 500
"""Most pages of one PDF."""

_NAMES = 128
_WRITTEN = re.compile(r"[^\s\x00\x02\ufffe][^\r\n\x02\ufffe]*[\x02\ufffe]?")
"""What is written in one line. In place of a hyphen and a line end the library may put one of its own marks."""
_NO_CHARACTER = 0x110000
_HYPHEN_MARKS = "\x02\ufffe"
_SCANNED_SHARE = 0.4
_FEW = 8
_UNREADABLE_SHARE = 0.05
_WIDE_GAP = 1.6


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a page; lengths in points, y upwards from the page's lower edge.

    `gaps` tells that the line has columns: a space far wider than one between words.
    """

    page: int
    number: int
    text: str
    left: float
    right: float
    y: float
    size: float
    bold: bool
    gaps: bool
    page_height: float


def lines_of(data: bytes) -> list[Line]:
    """Return the lines of a PDF, page by page.

    Raises `SpecError` (`broken_file`, `encrypted`, `too_many_pages`, `no_text_layer`, `too_large`).
    """
    document = _opened(data)
    try:
        if len(document) > MAX_PAGES:
            raise refused(
                Refusal.TOO_MANY_PAGES,
                f"the PDF has {len(document):,} pages and the limit is {MAX_PAGES:,}; split it",
            )
        lines: list[Line] = []
        characters = 0
        scanned: list[int] = []
        for index in range(len(document)):
            found, count = _page_lines(document, index, scanned)
            characters += count
            if characters > MAX_CHARACTERS:
                raise refused(Refusal.TOO_LARGE, f"the PDF has more than {MAX_CHARACTERS:,} characters; split it")
            lines += found
    finally:
        document.close()
    _judge(lines, scanned)
    return lines


def _opened(data: bytes) -> pdfium.PdfDocument:
    try:
        document = pdfium.PdfDocument(data)
    except pdfium.PdfiumError:
        if pdfium_c.FPDF_GetLastError() in (pdfium_c.FPDF_ERR_PASSWORD, pdfium_c.FPDF_ERR_SECURITY):
            raise refused(
                Refusal.ENCRYPTED, "the PDF is protected by a password; save it without one and upload that"
            ) from None
        raise refused(Refusal.BROKEN_FILE, "the PDF is damaged or cut short; export it anew") from None
    if not len(document):
        raise refused(Refusal.BROKEN_FILE, "the PDF has no page that can be read; export it anew")
    return document


def _judge(lines: list[Line], scanned: list[int]) -> None:
    """Refuse what cannot be read whole: a page left out silently would be rules left out silently."""
    if scanned:
        shown = ", ".join(str(page) for page in scanned[:10])
        raise refused(
            Refusal.NO_TEXT_LAYER,
            f"a picture without text fills page {shown}; run text recognition over the PDF, or take such pages out",
        )
    text = "".join(line.text for line in lines)
    if not text.strip():
        raise refused(Refusal.NO_TEXT_LAYER, "the PDF has no text layer; run text recognition over it first")
    unreadable = sum(1 for character in text if unicodedata.category(character) in ("Co", "Cn", "Cs"))
    if unreadable + text.count("\ufffd") + text.count("\x00") > _UNREADABLE_SHARE * len(text):
        raise refused(
            Refusal.NO_TEXT_LAYER,
            "the PDF's fonts do not say which letters they draw; export it with text, or run text recognition over it",
        )


def _page_lines(document: pdfium.PdfDocument, index: int, scanned: list[int]) -> tuple[list[Line], int]:
    try:
        page = document[index]
        text_page = page.get_textpage()
    except pdfium.PdfiumError:
        raise refused(Refusal.BROKEN_FILE, f"page {index + 1} of the PDF cannot be read; export it anew") from None
    try:
        count = max(pdfium_c.FPDFText_CountChars(text_page.raw), 0)
        if count > MAX_CHARACTERS:
            return [], count
        reader = _Characters(text_page.raw, page.get_bbox())
        lines = list(reader.lines(index + 1, count, page.get_height()))
        if sum(len(line.text) for line in lines) < _FEW and _picture_share(page) > _SCANNED_SHARE:
            scanned.append(index + 1)
        return lines, count
    finally:
        text_page.close()
        page.close()


def _picture_share(page: pdfium.PdfPage) -> float:
    """Return how much of a page its largest picture covers, 0 to 1."""
    width, height = page.get_size()
    largest = 0.0
    for item in page.get_objects(filter=(pdfium_c.FPDF_PAGEOBJ_IMAGE,), max_depth=4):
        left, bottom, right, top = item.get_bounds()
        largest = max(largest, abs(right - left) * abs(top - bottom))
    return largest / (width * height) if width * height else 0.0


class _Characters:
    """Reads the characters of one page; a line is what lies between two line ends of the text page."""

    def __init__(self, text_page: object, box: tuple[float, float, float, float]) -> None:
        self._page = text_page
        self._box = box
        self._numbers = [ctypes.c_double() for _ in range(4)]

    def lines(self, page: int, count: int, height: float) -> Iterator[Line]:
        """Yield the lines that lie on the page."""
        number = 0
        for match in _WRITTEN.finditer(self._text(count)):
            line = self._line(page, number + 1, match.start(), match[0], height)
            if line is not None:
                number += 1
                yield line

    def _text(self, count: int) -> str:
        """Return the page's text with one character for each of its numbers."""
        space = ctypes.create_string_buffer(2 * count + 2)
        units = ctypes.cast(space, ctypes.POINTER(ctypes.c_ushort))
        written = pdfium_c.FPDFText_GetText(self._page, 0, count, units)
        text = space.raw[: 2 * max(written - 1, 0)].decode("utf-16-le", "replace")
        if len(text) == count:
            return text
        # Characters beyond the first plane take two units, and some have none: then each is asked for.
        codes = (pdfium_c.FPDFText_GetUnicode(self._page, index) for index in range(count))
        return "".join(chr(code) if code < _NO_CHARACTER else "\ufffd" for code in codes)

    def _line(self, page: int, number: int, first: int, text: str, height: float) -> Line | None:
        left, y = self._box_of(first)[0], self._origin(first)
        page_left, page_bottom, page_right, page_top = self._box
        if left > page_right or not page_bottom - 1 <= y <= page_top + 1:
            return None  # written beside the page, where no reader sees it
        last = first + len(text) - 1
        while last > first and (text[last - first].isspace() or self._box_of(last)[0] > page_right):
            last -= 1
        text, right = text[: last - first + 1], self._box_of(last)[1]
        if right < page_left:
            return None
        size = self._size(first)
        return Line(
            page=page,
            number=number,
            text="".join("-" if character in _HYPHEN_MARKS else character for character in text),
            left=left,
            right=right,
            y=y,
            size=size,
            bold=self._bold(first) and self._bold(last),
            gaps=self._has_gaps(first, text, size),
            page_height=height,
        )

    def _has_gaps(self, first: int, text: str, size: float) -> bool:
        space = text.find(" ")
        while space > 0:
            index = first + space
            if self._box_of(index + 1)[0] - self._box_of(index - 1)[1] > _WIDE_GAP * size:
                return True
            space = text.find(" ", space + 1)
        return False

    def _box_of(self, index: int) -> tuple[float, float]:
        """Return where a character begins and ends from left to right."""
        left, right, bottom, top = self._numbers
        pdfium_c.FPDFText_GetCharBox(self._page, index, left, right, bottom, top)
        return left.value, right.value

    def _origin(self, index: int) -> float:
        x, y, *_ = self._numbers
        pdfium_c.FPDFText_GetCharOrigin(self._page, index, x, y)
        return y.value

    def _size(self, index: int) -> float:
        matrix = pdfium_c.FS_MATRIX()
        size = float(pdfium_c.FPDFText_GetFontSize(self._page, index))
        # A font of size 1 may be drawn through a matrix that makes it 10 points high.
        if pdfium_c.FPDFText_GetMatrix(self._page, index, matrix):
            size *= (matrix.c**2 + matrix.d**2) ** 0.5 or 1.0
        return size or 1.0

    def _bold(self, index: int) -> bool:
        if pdfium_c.FPDFText_GetFontWeight(self._page, index) >= 600:
            return True
        name = ctypes.create_string_buffer(_NAMES)
        flags = ctypes.c_int()
        length = pdfium_c.FPDFText_GetFontInfo(self._page, index, name, _NAMES, flags)
        return 0 < length <= _NAMES and b"bold" in name.value.lower()
