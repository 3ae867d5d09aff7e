"""Bytes to canonical text: what may be uploaded, and a typed refusal for everything else.

The canonical text of Markdown and plain text is the decoded source: a UTF-8 byte order mark is dropped, CRLF and lone
CR become LF, nothing else changes. All offsets of the project refer to this text.
"""

from rulegen_dagster.specs.refusals import Refusal, refused

_UTF8_MARK = b"\xef\xbb\xbf"
_UTF32_MARKS = (b"\xff\xfe\x00\x00", b"\x00\x00\xfe\xff")
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_BINARY_SIGNATURES = (b"%PDF-", b"PK\x03\x04", b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"\x1f\x8b", b"\xd0\xcf\x11\xe0")
_CONTROL_BYTES = bytes(code for code in range(32) if code not in (9, 10, 12, 13))
_MAX_CONTROL_SHARE = 0.02


def check_size(data: bytes, *, max_bytes: int) -> None:
    """Refuse an upload that is empty or larger than configured, with `empty_file` or `too_large`."""
    if len(data) > max_bytes:
        raise refused(
            Refusal.TOO_LARGE,
            f"the file has {len(data):,} bytes and the limit is {max_bytes:,}; split it or raise the limit",
        )
    if not data.strip():
        raise refused(Refusal.EMPTY_FILE, "the file holds no text; upload the specification itself")


def canonical_text_of(data: bytes, *, max_bytes: int) -> str:
    """Return the canonical text of an upload.

    Raises `SpecError` with code `empty_file`, `too_large`, `not_text` or `wrong_encoding`.
    """
    check_size(data, max_bytes=max_bytes)
    text = _decode(data).replace("\r\n", "\n").replace("\r", "\n")
    if not text.strip():
        raise refused(Refusal.EMPTY_FILE, "the file holds no text; upload the specification itself")
    return text


def _decode(data: bytes) -> str:
    for marks, name in ((_UTF32_MARKS, "UTF-32"), (_UTF16_MARKS, "UTF-16")):
        if data.startswith(marks):
            raise refused(
                Refusal.WRONG_ENCODING,
                f"the file is {name} (by its byte order mark), and only UTF-8 can be read; save it as UTF-8",
            )
    if b"\x00" in data or data.startswith(_BINARY_SIGNATURES):
        raise refused(
            Refusal.NOT_TEXT,
            "the file is binary, not text; export it as Markdown or plain text and upload that",
        )
    try:
        text = data.removeprefix(_UTF8_MARK).decode("utf-8")
    except UnicodeDecodeError as error:
        raise refused(
            Refusal.WRONG_ENCODING,
            f"the file is not UTF-8 (byte {error.start} cannot be decoded); save it as UTF-8",
        ) from None
    controls = len(data) - len(data.translate(None, _CONTROL_BYTES))
    if controls > _MAX_CONTROL_SHARE * len(data):
        raise refused(
            Refusal.NOT_TEXT,
            "the file is mostly control characters, not text; export it as Markdown or plain text",
        )
    return text
