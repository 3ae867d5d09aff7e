"""Hostile uploads end in bounded time, as clauses or as a typed refusal. The timeout is the assertion."""

import pytest

from rulegen_dagster.domain.clause import ParsedSpec
from rulegen_dagster.domain.errors import SpecError
from rulegen_dagster.specs.context import retrieve_context
from rulegen_dagster.specs.document import read_document

SIZE = 2_000_000
HOSTILE = {
    "one line of sentences": "Meals must be cheap. " * (SIZE // 21),
    "one word": "a" * SIZE,
    "full stops": "." * SIZE,
    "white space": "a" + " " * SIZE + "b",
    "obligations": "must " * (SIZE // 5),
    "german obligations": "haben " * (SIZE // 6),
    "emphasis": "*" * SIZE,
    "brackets": "[" * SIZE,
    "link targets": "](" * (SIZE // 2),
    "backticks": "`" * SIZE,
    "pipes": "|" * SIZE,
    "digits": "1" * SIZE,
    "open comments": "x <!--" * (SIZE // 6),
    "comments": "x <!-- y --> " * (SIZE // 13),
    "shortcodes": "{% a %}" * (SIZE // 7),
    "open shortcodes": "{%" * (SIZE // 2),
    "nested quotes": "> " * 10_000 + "a",
    "nested lists in a line": "- " * 10_000 + "a",
    "nested lists": "".join("  " * depth + "- a\n" for depth in range(1_400)),
    "many lines": "a\n" * (SIZE // 2),
    "many table rows": "|a|b|\n|-|-|\n" + "|c|d|\n" * 20_000,
    "wide table": "|".join("a" * 20_000) + "\n" + "|".join(["-"] * 20_000) + "\n" + "x\n" * 1_000,
    "many items": "- a\n  - b\n" * 10_000,
    "underlines": "a\n=\n" * 20_000,
    "many definitions": "# Definitions\n\n"
    + "".join(f"term{n} means foo.\n\nA term{n} must be.\n\n" for n in range(4_000)),
    "many references": "# 1 a\n\n" + "You must see section 1. " * 9_000,
    "long lead": "x" * 500_000 + ":\n\n" + "- must b\n" * 6_000,
    "long heading": "# " + "x" * 500_000 + "\n\n" + "It must b.\n\n" * 6_000,
}


@pytest.mark.timeout(30)
@pytest.mark.parametrize("extension", [".md", ".txt"])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_text_ends_in_bounded_time(name: str, extension: str) -> None:
    parsed, code = _outcome(HOSTILE[name], extension)

    assert parsed or code in {"too_deep", "too_many_lines", "too_many_clauses", "no_clauses"}
    assert parsed is None or all(
        clause.text == parsed.canonical_text[clause.start : clause.end] for clause in parsed.clauses
    )


def _outcome(text: str, extension: str) -> tuple[ParsedSpec | None, str]:
    try:
        parsed = read_document(text.encode(), f"policy{extension}", max_bytes=10**7)
    except SpecError as refusal:
        return None, refusal.code
    retrieve_context(parsed)
    return parsed, ""
