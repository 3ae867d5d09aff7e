"""PDF files for tests, written object by object: lines of text in Helvetica, pictures, and what must not be there."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

HEIGHT = 800


class Text(NamedTuple):
    """One line at a place, in points from the lower left corner."""

    x: float
    y: float
    text: str
    size: float = 10
    bold: bool = False


PICTURE = b"q 600 0 0 800 0 0 cm /Im0 Do Q\n"
"""Draws the picture of the file over the whole page."""


def column(lines: Sequence[str], *, top: float = 700, pitch: float = 12, x: float = 50) -> list[Text]:
    return [Text(x, top - index * pitch, line) for index, line in enumerate(lines)]


def content(page: Sequence[Text]) -> bytes:
    return b"".join(
        b"BT /F%d %g Tf 1 0 0 1 %g %g Tm (%s) Tj ET\n" % (1 + line.bold, line.size, line.x, line.y, _escaped(line.text))
        for line in page
    )


def _escaped(text: str) -> bytes:
    data = text.encode("cp1252")
    for special in (b"\\", b"(", b")"):
        data = data.replace(special, b"\\" + special)
    return data


def pdf(
    *pages: Sequence[Text] | bytes,
    filters: bytes = b"",
    extra: Mapping[int, bytes] | None = None,
    trailer: bytes = b"",
    catalog: bytes = b"",
) -> bytes:
    """A PDF with these pages: lines, or the bytes of a content stream.

    Objects 1 to 5 are catalog, page tree, two fonts and a picture; `extra` replaces or adds objects by number.
    """
    objects: dict[int, bytes] = {
        1: b"<</Type/Catalog/Pages 2 0 R%s>>" % catalog,
        3: b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>",
        4: b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica-Bold/Encoding/WinAnsiEncoding>>",
        5: b"<</Type/XObject/Subtype/Image/Width 2/Height 2/BitsPerComponent 8/ColorSpace/DeviceGray/Length 4>>"
        b"stream\n\x00\xff\xff\x00\nendstream",
    }
    kids = []
    for index, page in enumerate(pages):
        number = 10 + 2 * index
        stream = page if isinstance(page, bytes) else content(page)
        objects[number] = (
            b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 600 800]/Contents %d 0 R"
            b"/Resources<</Font<</F1 3 0 R/F2 4 0 R>>/XObject<</Im0 5 0 R>>>>>>" % (number + 1)
        )
        objects[number + 1] = b"<</Length %d%s>>stream\n%s\nendstream" % (len(stream), filters, stream)
        kids.append(b"%d 0 R" % number)
    objects[2] = b"<</Type/Pages/Count %d/Kids[%s]>>" % (len(kids), b" ".join(kids))
    return _written({**objects, **(extra or {})}, trailer)


def _written(objects: Mapping[int, bytes], trailer: bytes) -> bytes:
    data = bytearray(b"%PDF-1.7\n")
    offsets: dict[int, int] = {}
    for number, body in sorted(objects.items()):
        offsets[number] = len(data)
        data += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    start = len(data)
    size = max(objects) + 1
    data += b"xref\n0 %d\n0000000000 65535 f \n" % size
    for number in range(1, size):
        data += b"%010d 00000 n \n" % offsets[number] if number in offsets else b"0000000000 00000 f \n"
    data += b"trailer\n<</Size %d/Root 1 0 R%s>>\nstartxref\n%d\n%%%%EOF\n" % (size, trailer, start)
    return bytes(data)
