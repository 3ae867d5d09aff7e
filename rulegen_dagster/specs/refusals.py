"""Every reason why an upload is refused: one closed set, whatever the format."""

from enum import StrEnum

from rulegen_dagster.domain.errors import SpecError


class Refusal(StrEnum):
    """Why an upload cannot become a specification; the value is the `code` of the `SpecError`."""

    EMPTY_FILE = "empty_file"
    TOO_LARGE = "too_large"
    UNKNOWN_FORMAT = "unknown_format"
    TYPE_MISMATCH = "type_mismatch"
    NOT_TEXT = "not_text"
    WRONG_ENCODING = "wrong_encoding"
    BROKEN_FILE = "broken_file"
    ENCRYPTED = "encrypted"
    MACROS = "macros"
    XML_ENTITIES = "xml_entities"
    EMBEDDED_FILE = "embedded_file"
    ARCHIVE_BOMB = "archive_bomb"
    NO_TEXT_LAYER = "no_text_layer"
    TOO_DEEP = "too_deep"
    TOO_COMPLEX = "too_complex"
    TOO_MANY_PAGES = "too_many_pages"
    TOO_MANY_LINES = "too_many_lines"
    TOO_MANY_CLAUSES = "too_many_clauses"
    NO_CLAUSES = "no_clauses"


def refused(code: Refusal, message: str) -> SpecError:
    """Return the error to raise; the message holds nothing of the file's text."""
    return SpecError(message, code=code.value)
