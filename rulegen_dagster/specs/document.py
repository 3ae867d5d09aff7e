"""The entry point: an uploaded file to a parsed specification."""

from rulegen_dagster.domain.clause import ParsedSpec
from rulegen_dagster.domain.errors import SpecError
from rulegen_dagster.specs.clauses import clauses_of
from rulegen_dagster.specs.decoding import MARKDOWN, canonical_text_of, format_of
from rulegen_dagster.specs.markdown import markdown_blocks
from rulegen_dagster.specs.plain_text import plain_text_blocks

MAX_LINES = 50_000
"""Most lines of one specification; bounds the time of the Markdown parser, which counts by lines."""


def read_document(data: bytes, file_name: str, *, max_bytes: int) -> ParsedSpec:
    """Parse an upload into its canonical text and clauses.

    Raises `SpecError` with code `unknown_format`, `empty_file`, `too_large`, `not_text`, `wrong_encoding`, `too_deep`,
    `too_many_lines`, `too_many_clauses` or `no_clauses`. The same bytes and extension give the same value.
    """
    spec_format = format_of(file_name)
    text = canonical_text_of(data, max_bytes=max_bytes)
    if text.count("\n") > MAX_LINES:
        raise SpecError(
            f"the text has more than {MAX_LINES:,} lines; split it into several specifications",
            code="too_many_lines",
        )
    blocks = markdown_blocks(text) if spec_format == MARKDOWN else plain_text_blocks(text)
    clauses = clauses_of(text, blocks)
    if not clauses:
        raise SpecError(
            "the text has headings, code or markup only, and no sentence; upload the policy with its wording",
            code="no_clauses",
        )
    return ParsedSpec(format=spec_format, canonical_text=text, clauses=clauses)
