"""Uploads that are read, and typed refusals for those that are not."""

import pytest

from rulegen_dagster.domain.errors import SpecError
from rulegen_dagster.specs.decoding import canonical_text_of
from rulegen_dagster.specs.document import MAX_LINES, read_document

WORD = "Zebrafinch"


def _refusal(data: bytes, file_name: str = "policy.md", max_bytes: int = 100_000) -> SpecError:
    with pytest.raises(SpecError) as caught:
        read_document(data, file_name, max_bytes=max_bytes)
    return caught.value


@pytest.mark.parametrize(
    ("data", "file_name", "code"),
    [
        (b"", "policy.md", "empty_file"),
        (b" \r\n\t", "policy.txt", "empty_file"),
        (b"\xef\xbb\xbf", "policy.md", "empty_file"),
        (b"Meals must be cheap.", "policy.pdf", "type_mismatch"),
        (b"Meals must be cheap.", "policy.rtf", "unknown_format"),
        (b"Meals must be cheap.", "policy", "unknown_format"),
        (b"Meals must\x00 be cheap.", "policy.md", "not_text"),
        (b"%PDF-1.7 binary", "policy.txt", "type_mismatch"),
        (b"PK\x03\x04 a zip", "policy.md", "type_mismatch"),
        (b"\x01\x02\x03\x04 abc", "policy.md", "not_text"),
        ("Übernachtung".encode("latin-1"), "policy.md", "wrong_encoding"),
        ("Meals must be cheap.".encode("utf-16"), "policy.md", "wrong_encoding"),
        ("Meals must be cheap.".encode("utf-32"), "policy.md", "wrong_encoding"),
        (b"# Heading\n\n## Another\n", "policy.md", "no_clauses"),
        (b"<!-- only a comment -->\n", "policy.md", "no_clauses"),
        (b"---\ntitle: only front matter\n---\n", "policy.md", "no_clauses"),
        (b"***\n", "policy.md", "no_clauses"),
    ],
)
def test_what_cannot_become_a_specification_is_refused_with_its_code(data: bytes, file_name: str, code: str) -> None:
    assert _refusal(data, file_name).code == code


def test_a_file_over_the_limit_is_refused_with_both_numbers() -> None:
    refusal = _refusal(b"x" * 1001, max_bytes=1000)

    assert refusal.code == "too_large"
    assert "1,001" in refusal.message
    assert "1,000" in refusal.message


def test_a_file_at_the_limit_is_read() -> None:
    data = b"Meals must be cheap."

    assert read_document(data, "policy.md", max_bytes=len(data)).normative


def test_a_text_with_too_many_lines_is_refused() -> None:
    assert _refusal(b"a\n" * (MAX_LINES + 1), max_bytes=10**6).code == "too_many_lines"


def test_a_utf16_file_is_named_as_such() -> None:
    assert "UTF-16" in _refusal("Meals must be cheap.".encode("utf-16")).message


def test_the_position_of_a_byte_that_is_not_utf8_is_named() -> None:
    assert "byte 6" in _refusal(b"Meals \xe9 must be cheap.").message


@pytest.mark.parametrize(
    ("data", "file_name"),
    [
        (f"# {WORD}\n".encode(), "policy.md"),
        (f"{WORD} \xe9".encode("latin-1"), "policy.md"),
        (f"{WORD}\x00".encode(), "policy.md"),
        (f"{WORD} must be".encode(), "policy.docx"),
        (("> " * 200 + WORD).encode(), "policy.md"),
    ],
)
def test_no_refusal_repeats_the_text(data: bytes, file_name: str) -> None:
    assert WORD not in _refusal(data, file_name).message


def test_a_byte_order_mark_is_dropped_and_offsets_do_not_count_it() -> None:
    parsed = read_document(b"\xef\xbb\xbfMeals must be cheap.", "policy.md", max_bytes=1000)

    assert parsed.canonical_text == "Meals must be cheap."
    assert parsed.clauses[0].start == 0


def test_line_ends_become_line_feeds() -> None:
    assert canonical_text_of(b"a\r\nb\rc\n", max_bytes=100) == "a\nb\nc\n"


@pytest.mark.parametrize(
    ("file_name", "expected"),
    [("a.md", "markdown"), ("a.MARKDOWN", "markdown"), ("dir.pdf/a.txt", "text")],
)
def test_the_extension_decides_the_format(file_name: str, expected: str) -> None:
    assert read_document(b"Meals must be cheap.", file_name, max_bytes=1000).format == expected
