"""Grounding: every quote stands verbatim in its clause, and every number stands in its quote.

What a rule may quote from a neighbouring clause is told by `context_quotes`, units by `quantities`.
For comparison white space and invisible characters are left out, and typographic quotation marks, dashes and
compatibility forms are folded; what is returned and stored is always the raw slice of the text.
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from functools import lru_cache
from typing import Final

from rulegen_dagster.domain.clause import Clause, ClauseKind
from rulegen_dagster.domain.money import exponent
from rulegen_dagster.domain.rule import IntParam, MoneyParam, Param, RateParam, Source
from rulegen_dagster.rules.numerals import Numeral, amounts_in, numerals_in
from rulegen_dagster.rules.quantities import states_count

MAX_QUOTE: Final = 4_000
_MAX_OCCURRENCES: Final = 64


class QuoteProblem(StrEnum):
    """Why a quote is refused; the values are failure codes."""

    NOT_VERBATIM = "quote_not_verbatim"
    NOT_SENTENCE_ALIGNED = "quote_not_sentence_aligned"
    READS_LIKE_AN_INSTRUCTION = "quote_reads_like_an_instruction"
    NOT_IN_CONTEXT = "clause_not_in_context"
    NUMBER_OF_ANOTHER_CLAUSE = "number_of_another_clause"


PROBLEM_MESSAGES: Final = {
    QuoteProblem.NOT_VERBATIM: "the quote does not stand in the clause word for word",
    QuoteProblem.NOT_SENTENCE_ALIGNED: "the quote must be whole sentences of the clause, or whole cells of its row",
    QuoteProblem.READS_LIKE_AN_INSTRUCTION: "the quote addresses a language model, not the readers of a policy",
    QuoteProblem.NOT_IN_CONTEXT: "no clause of this number was given as context from which this may be quoted",
    QuoteProblem.NUMBER_OF_ANOTHER_CLAUSE: "the clause states such a number itself, or does not point at the other one",
}


@dataclass(frozen=True, slots=True)
class Span:
    """A slice of a text, in code points."""

    start: int
    end: int


def ground_sentence(quote: str, clause: Clause) -> Source | QuoteProblem:
    """Return where a sentence-aligned quote stands in its clause, or why it is refused."""
    spans = locate(quote, clause.text)
    if not spans:
        return QuoteProblem.NOT_VERBATIM
    aligned = next((span for span in spans if _is_aligned(span, clause)), None)
    if aligned is None:
        return QuoteProblem.NOT_SENTENCE_ALIGNED
    if _INSTRUCTION.search(clause.text[aligned.start : aligned.end]):
        return QuoteProblem.READS_LIKE_AN_INSTRUCTION
    return _source(aligned, clause)


def ground_fragment(quote: str, clause: Clause) -> Source | QuoteProblem:
    """Return where whole words of a clause stand; an exception is often only a part of its sentence."""
    spans = locate(quote, clause.text)
    return _source(spans[0], clause) if spans else QuoteProblem.NOT_VERBATIM


def ground_parameter_quote(quote: str, clause: Clause) -> str | QuoteProblem:
    """Return the raw words of a parameter's quote, from the clause, its lead or its table header."""
    for text in (clause.text, clause.lead or "", *clause.table_header, " | ".join(clause.table_header)):
        for span in locate(quote, text):
            if span.end - span.start <= MAX_QUOTE:
                return text[span.start : span.end]
    return QuoteProblem.NOT_VERBATIM


def states_parameter(quote: str, param: Param) -> bool:
    """Return whether a quote states the number of a parameter, in one of its readings, in its unit or another one."""
    match param:
        case MoneyParam(minor=minor, currency=currency):
            return Decimal(minor).scaleb(-exponent(currency)) in amounts_in(quote)
        case RateParam(micros=micros):
            return Decimal(micros).scaleb(-6) in amounts_in(quote)
        case IntParam(value=value, unit=unit):
            return states_count(quote, Decimal(abs(value)), unit)


def contradicts_currency(quote: str, param: Param) -> bool:
    """Return whether a quote names currencies, and the parameter's is none of them (`€75` as 75 USD)."""
    if isinstance(param, IntParam):
        return False
    marks = [match[0].casefold() for match in _CURRENCY_MARK.finditer(quote)]
    return bool(marks) and not any(param.currency in _CURRENCIES.get(mark, {mark.upper()}) for mark in marks)


def names_approver(text: str, approver: str) -> bool:
    """Return whether a text names an approver in these words; case and a leading article do not matter."""
    return bool(locate(_ARTICLE.sub("", approver.strip()).casefold(), text.casefold()))


def words_around(clause: Clause) -> str:
    """Return the words of a clause, its lead and its table header, in which its numbers stand."""
    return "\n".join((clause.text, clause.lead or "", *clause.table_header))


def locate(quote: str, text: str) -> tuple[Span, ...]:
    """Return every place where a quote stands in a text, as raw slices that cut no word and no number."""
    wanted, _ = _fold(quote)
    folded, offsets = _fold(text)
    if not wanted or wanted not in folded:
        return ()
    numerals = numerals_in(text)
    spans = []
    at = -1
    for _ in range(_MAX_OCCURRENCES):
        at = folded.find(wanted, at + 1)
        if at < 0:
            break
        last = at + len(wanted) - 1
        span = Span(offsets[at], offsets[last] + 1)
        # One character may fold to several; a match that begins or ends inside it is none.
        whole = (at == 0 or offsets[at - 1] != span.start) and (
            last + 1 == len(offsets) or offsets[last + 1] != offsets[last]
        )
        if whole and not any(_cuts_word(text, edge) or _cuts_number(numerals, edge) for edge in (span.start, span.end)):
            spans.append(span)
    return tuple(spans)


def _source(span: Span, clause: Clause) -> Source | QuoteProblem:
    if span.end - span.start > MAX_QUOTE:
        return QuoteProblem.NOT_SENTENCE_ALIGNED
    return Source(
        clause_ordinal=clause.ordinal,
        quote=clause.text[span.start : span.end],
        start=clause.start + span.start,
        end=clause.start + span.end,
    )


class _Folds(dict[str, str]):
    """What each character counts as in a comparison, worked out once per character."""

    def __missing__(self, character: str) -> str:
        if character.isspace() or unicodedata.category(character) == "Cf":
            folded = ""
        else:
            decomposed = unicodedata.normalize("NFKD", character)
            folded = "".join(_TYPOGRAPHIC.get(part, part) for part in decomposed if not part.isspace())
        self[character] = folded
        return folded


_TYPOGRAPHIC: Final = (
    dict.fromkeys("\u2018\u2019\u201a\u201b\u2032\u0060\u00b4\u2039\u203a", "'")
    | dict.fromkeys("\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb", '"')
    | dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-")
)
_FOLDS: Final = _Folds()


@lru_cache(maxsize=128)
def _fold(text: str) -> tuple[str, tuple[int, ...]]:
    """Return the comparable form of a text, and for each of its characters the index in the raw text.

    Cached, since every quote of a draft is looked for in the same few texts.
    """
    folds = [_FOLDS[character] for character in text]
    return "".join(folds), tuple(index for index, folded in enumerate(folds) for _ in folded)


def _cuts_number(numerals: tuple[Numeral, ...], edge: int) -> bool:
    return any(numeral.start < edge < numeral.end for numeral in numerals)


def _cuts_word(text: str, edge: int) -> bool:
    if not 0 < edge < len(text):
        return False
    before, after = text[edge - 1], text[edge]
    # Scripts without spaces between words have no word boundary to respect.
    return all(character.isalnum() and ord(character) < 0x2E80 for character in (before, after))


_LABEL = r"(?:\(?[0-9A-Za-z]{1,4}(?:\.[0-9]{1,3})*[.)]|§+\s?[0-9]{1,4}[a-z]?|[0-9]{1,3}(?:\.[0-9]{1,3})+)(?=\s)"
_LEADING_MARKUP = re.compile(rf"(?:[\s>#*+_|`~–—•·\-]|\[[ xX]\]|{_LABEL})*+")
_TRAILING_MARKUP = re.compile(r"[\s*_|`~.,;:!?。)\]\"'”’»]*+")
_SENTENCE_END = re.compile(r"[.!?;:。！？；：][)\]\"'”’»*_]*+\s*+\Z")
_ABBREVIATION = re.compile(
    r"(?<![^\W\d_])(?:[^\W\d_]|etc|vgl|bzw|ggf|usw|incl|inkl|max|min|no|nr|art|abs)\.\s*+\Z", re.IGNORECASE
)
_CURRENCIES: Final = {
    "$": {"USD", "CAD", "AUD", "NZD", "SGD", "HKD", "MXN"},
    "€": {"EUR"}, "euro": {"EUR"}, "euros": {"EUR"}, "£": {"GBP"}, "¥": {"JPY", "CNY"},
}  # fmt: skip
_CURRENCY_MARK = re.compile(r"[$€£¥]|\b(?:euros?|usd|eur|gbp|chf|jpy|cad|aud|nzd)\b", re.IGNORECASE)
_CELL_EDGES: Final = ("|", "\t")

_ARTICLE = re.compile(r"(?:(?:the|an?|der|die|das|dem|den|des|eine?[mnrs]?|le|la|les|une?|du)\s+|l['’])", re.IGNORECASE)

# Narrow on purpose: "disregard prior approvals" is policy, "disregard prior instructions" is not. What it misses is
# still held against the clause, and shown to a person beside its quote.
_INSTRUCTION = re.compile(
    r"""
    \b(?:ignore|disregard|forget)\b .{0,40} \b(?:previous|above|prior|earlier)\b .{0,20} \b(?:instructions?|prompts?)\b
    | \b(?:ignorieren?|ignoriere|vergiss|vergessen|missachten?|missachte)\b .{0,40}
      \b(?:bisherigen?|vorherigen?|vorigen?|obigen?|früheren?)\b .{0,20} \b(?:anweisung(?:en)?|prompts?|vorgaben?)\b
    | \b(?:new\ instructions?|neue\ anweisung(?:en)?)\s*:
    | \bsystem[- ]?prompt\b | </?(?:system|assistant|user)> | ^\W*(?:system|assistant|user)\s?[:,]\s
    | \b(?:language\ model|model\ reading\ this|sprachmodell)\b
    | \b(?:you\ are\ now|du\ bist\ (?:jetzt|nun))\b
    | \b(?:applies_when|no_rule|clause_id|expect_cap_minor)\b | ``` | <!--
    | \b(?:output|emit|reply|respond|print|antworte|gib)\b .{0,40} \b(?:decision|entscheidung|json|list\ of\ rules)\b
    """,
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)


def _is_aligned(span: Span, clause: Clause) -> bool:
    before, inside, after = (
        clause.text[: span.start],
        clause.text[span.start : span.end],
        clause.text[span.end :],
    )
    is_row = clause.kind is ClauseKind.TABLE_ROW
    return _starts_sentence(before, inside, clause.label, is_row) and _ends_sentence(inside, after, is_row)


def _starts_sentence(before: str, inside: str, label: str | None, is_row: bool) -> bool:
    if label:
        before = before.replace(label, "", 1)
    if _LEADING_MARKUP.fullmatch(before) or (is_row and before.rstrip(" ").endswith(_CELL_EDGES)):
        return True
    glued = not before[-1].isspace() and not inside[:1].isspace() and ord(before[-1]) < 0x2E80
    return _ends_a_sentence(before) and not glued


def _ends_sentence(inside: str, after: str, is_row: bool) -> bool:
    if _TRAILING_MARKUP.fullmatch(after) or _ends_a_sentence(inside):
        return True
    if is_row and after.lstrip(" ").startswith(_CELL_EDGES):
        return True
    # A quote may leave out the full stop that ends its sentence.
    return any(_ends_a_sentence(inside + after[:size]) for size in _stop_sizes(after))


def _stop_sizes(after: str) -> Iterator[int]:
    match = re.match(r"[.!?;:。！？；：]+(?=\s|\Z|[\"'”’»)\]*_])|[。！？]", after)
    if match:
        yield match.end()


def _ends_a_sentence(text: str) -> bool:
    return bool(_SENTENCE_END.search(text)) and not _ABBREVIATION.search(text)
