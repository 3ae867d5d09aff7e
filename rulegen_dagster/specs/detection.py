"""Which format an upload is: told by its bytes, and held against what its name says."""

import re
from enum import StrEnum
from pathlib import PurePath

from rulegen_dagster.specs.refusals import Refusal, refused


class Format(StrEnum):
    """A format that is read; the value is kept with the job."""

    MARKDOWN = "markdown"
    PLAIN_TEXT = "text"
    HTML = "html"
    DOCX = "docx"
    PDF = "pdf"


SUFFIXES = {
    ".md": Format.MARKDOWN,
    ".markdown": Format.MARKDOWN,
    ".txt": Format.PLAIN_TEXT,
    ".html": Format.HTML,
    ".htm": Format.HTML,
    ".xhtml": Format.HTML,
    ".docx": Format.DOCX,
    ".pdf": Format.PDF,
}
"""What a name says, by its ending."""

_SHOWN = {
    Format.MARKDOWN: "Markdown (.md, .markdown)",
    Format.PLAIN_TEXT: "plain text (.txt)",
    Format.HTML: "HTML (.html, .htm)",
    Format.DOCX: "DOCX (.docx)",
    Format.PDF: "PDF with text (.pdf)",
}
_TEXTS = frozenset((Format.MARKDOWN, Format.PLAIN_TEXT, Format.HTML))
_MACRO_SUFFIXES = frozenset((".docm", ".dotm"))
_PDF_WITHIN = 1024
_ZIP = (b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08")
_COMPOUND = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_ENCRYPTED_PACKAGE = "EncryptedPackage".encode("utf-16-le")
_PAGE = re.compile(
    rb"\A(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]{0,200}\?>\s*)?(?:<!--(?:(?!-->).){0,2000}-->\s*)*<(?:!doctype\s+html|html[\s>])",
    re.IGNORECASE | re.DOTALL,
)


def format_of(data: bytes, file_name: str) -> Format:
    """Return the format of an upload.

    Markdown and plain text cannot be told apart by their bytes: there the name decides. Everywhere else the bytes do,
    and a name that says otherwise is refused. Raises `SpecError` (`unknown_format`, `type_mismatch`, `not_text`,
    `encrypted`, `macros`).
    """
    suffix = PurePath(file_name).suffix.lower()
    named = SUFFIXES.get(suffix)
    if suffix in _MACRO_SUFFIXES:
        raise refused(Refusal.MACROS, "a file of this kind may hold macros; save it as DOCX without them")
    if named is None and suffix:
        raise _unknown()
    found = _by_content(data)
    if found is None:
        if named is None:
            raise _unknown()
        if named not in _TEXTS and data.strip():
            raise _mismatch(named, "something else")
        return named
    if named not in (None, found):
        # A page inside Markdown or text is that text's own business; a document inside it cannot be.
        if found is Format.HTML and named in _TEXTS:
            return named
        raise _mismatch(named, found.name)
    return found


def _by_content(data: bytes) -> Format | None:
    """Return the format that the bytes cannot deny, or None for text and for what is not known."""
    # A text may speak of the mark; a PDF has it at the start, or an end that says so.
    if data.startswith(b"%PDF-") or (b"%PDF-" in data[:_PDF_WITHIN] and b"startxref" in data[-2048:]):
        return Format.PDF
    if data.startswith(_ZIP):
        return Format.DOCX
    if data.startswith(_COMPOUND):
        if _ENCRYPTED_PACKAGE in data:
            raise refused(Refusal.ENCRYPTED, "the document is protected by a password; save it without one")
        raise refused(Refusal.UNKNOWN_FORMAT, "the file is of an old office format; save it as DOCX or PDF")
    if _PAGE.match(data[:4096]):
        return Format.HTML
    return None


def _unknown() -> Exception:
    return refused(
        Refusal.UNKNOWN_FORMAT,
        f"the file's ending is not one that can be read; upload {', '.join(_SHOWN.values())}",
    )


def _mismatch(named: Format | None, found: str) -> Exception:
    said = _SHOWN[named] if named else "nothing"
    return refused(
        Refusal.TYPE_MISMATCH,
        f"the file's name says {said} and its content is {found}; give it its right ending, or export it anew",
    )
