"""The entry point: an uploaded file to a parsed specification."""

from rulegen_dagster.domain.clause import ParsedSpec
from rulegen_dagster.domain.source_map import SourceMap
from rulegen_dagster.specs.apart import read_apart
from rulegen_dagster.specs.assembly import Reading
from rulegen_dagster.specs.clauses import clauses_of
from rulegen_dagster.specs.decoding import canonical_text_of, check_size
from rulegen_dagster.specs.detection import Format, format_of
from rulegen_dagster.specs.markdown import markdown_blocks
from rulegen_dagster.specs.plain_text import plain_text_blocks
from rulegen_dagster.specs.refusals import Refusal, refused

MAX_LINES = 50_000
"""Most lines of one specification; bounds the time of the Markdown parser, which counts by lines."""


def read_document(data: bytes, file_name: str, *, max_bytes: int) -> ParsedSpec:
    """Parse an upload into its canonical text and clauses.

    Raises `SpecError` with a code of `Refusal`, and `ParserProcessError` where the file could not be read this time.
    The same bytes and ending give the same value. HTML, DOCX and PDF are read in a process of their own.
    """
    check_size(data, max_bytes=max_bytes)
    spec_format = format_of(data, file_name)
    if spec_format in (Format.MARKDOWN, Format.PLAIN_TEXT):
        reading = _read_text(canonical_text_of(data, max_bytes=max_bytes), spec_format)
    else:
        reading = read_apart(data, spec_format)
    if not reading.text:
        raise refused(Refusal.EMPTY_FILE, "the file holds no text that a reader sees; upload the specification itself")
    clauses = clauses_of(reading.text, reading.blocks)
    if not clauses:
        raise refused(
            Refusal.NO_CLAUSES,
            "the text has headings, code or markup only, and no sentence; upload the policy with its wording",
        )
    return ParsedSpec(
        format=spec_format.value, canonical_text=reading.text, clauses=clauses, source_map=reading.source_map
    )


def _read_text(text: str, spec_format: Format) -> Reading:
    if text.count("\n") > MAX_LINES:
        raise refused(
            Refusal.TOO_MANY_LINES,
            f"the text has more than {MAX_LINES:,} lines; split it into several specifications",
        )
    blocks = markdown_blocks(text) if spec_format is Format.MARKDOWN else plain_text_blocks(text)
    return Reading(text=text, blocks=tuple(blocks), source_map=SourceMap())
