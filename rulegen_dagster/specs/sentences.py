"""Sentence boundaries for English, German, French and Japanese, in one linear pass.

A full stop ends a sentence unless a known abbreviation, an initial or an ordinal stands before it, or a small letter
comes next; the ideographic full stop always does.
"""

import re

_CANDIDATE = re.compile(
    r"(?<![.!?…])[.!?…]++[)\]\"'”\u2019»*_`]*+(?=\s|\Z)"
    r"|(?<![。\uff01\uff1f｡])[。\uff01\uff1f｡]++[」』\uff09)”\u2019\"*_]*+"
)
_WORD_BEFORE = re.compile(r"(?:[^\W\d_]+\.)*[^\W\d_]+\Z")
_NUMBER_BEFORE = re.compile(r"(?:\b(?P<before>[^\W\d_]+)\s+)?(?<![\d.,$€£¥])(?P<digits>\d{1,2})\Z")
_LOOK_BACK = 32

_ABBREVIATION_WORDS = (
    # English
    "e.g i.e vs cf approx dept est mr mrs ms dr prof st jr sr u.s u.k viz resp incl excl max min ref eg ie ph.d "
    # German
    "bzw ca d.h evtl ggf gem i.d.r i.v.m inkl lt o.ä o.g s.o s.u sog u.a u.ä usw vgl z.b z.t zzgl zit "
    "bzgl gem einschl ausschl ff mio mrd tsd vorauss v.h i.s.d i.h.v "
    # French
    "env m mm mme mlle p.ex ex réf"
)
_ABBREVIATIONS = frozenset(_ABBREVIATION_WORDS.split())
"""Words whose full stop ends no sentence, whatever comes next."""

_NUMBERED_WORDS = (
    "no nos nr nrn art artt abs uabs para paras sec secs fig pp p s vol ch rn rz tz ziff kap buchst lit anl anm al alin"
    " amdt tel jan feb mar mär apr jun jul aug sep sept oct okt nov dec dez"
)
_BEFORE_NUMBERS = frozenset(_NUMBERED_WORDS.split())
"""Words whose full stop ends no sentence where a number comes next."""

_ORDINAL_WORDS = "am vom zum im der die das dem den des ab bis seit und jeder jede jedes"
_BEFORE_ORDINALS = frozenset(_ORDINAL_WORDS.split())
_GERMAN_MONTHS = (
    "Januar",
    "Februar",
    "März",
    "April",
    "Mai",
    "Juni",
    "Juli",
    "August",
    "September",
    "Oktober",
    "November",
    "Dezember",
    *("Jan.", "Feb.", "Apr.", "Aug.", "Sept.", "Okt.", "Nov.", "Dez."),
)


_DATE_BEFORE = re.compile(r"\b\d{1,2}\.\s?\d{1,2}\Z")
_DAY_AND_MONTH = re.compile(r"(?:0?[1-9]|1[0-2])\.(?:\s|\Z)")
_YEAR = re.compile(r"(?:19|20)\d\d\b")
_FRENCH_ARTICLE = re.compile(r"[LRD]\.\s?\d")
"""French codes count their articles by letter and number: `art. L. 123-4`."""


def split_sentences(text: str) -> list[tuple[int, int]]:
    """Return the spans of a text's sentences, in order, without the white space between them."""
    spans: list[tuple[int, int]] = []
    start = 0
    for match in _CANDIDATE.finditer(text):
        if _ends_sentence(text, start, match):
            _append_trimmed(spans, text, start, match.end())
            start = match.end()
    _append_trimmed(spans, text, start, len(text))
    return spans


def _append_trimmed(spans: list[tuple[int, int]], text: str, start: int, end: int) -> None:
    piece = text[start:end]
    left = start + len(piece) - len(piece.lstrip())
    right = start + len(piece.rstrip())
    if left < right:
        spans.append((left, right))


def _ends_sentence(text: str, start: int, match: re.Match[str]) -> bool:
    if match[0][0] in "。\uff01\uff1f｡":
        return True
    following = text[match.end() : match.end() + _LOOK_BACK].lstrip()
    words = following.lstrip("([\"'“„«*_`")
    if words[:1].islower():
        return False
    if match[0][0] != "." or match[0].startswith(".."):
        return True
    before = text[max(start, match.start() - _LOOK_BACK) : match.start()]
    if word := _WORD_BEFORE.search(before):
        return not _is_abbreviation(word[0], words)
    if number := _NUMBER_BEFORE.search(before):
        return not _is_ordinal(before, number, following)
    return True


def _is_abbreviation(word: str, following: str) -> bool:
    folded = word.casefold()
    if folded in _BEFORE_NUMBERS:
        return following[:1].isdigit() or following.startswith("§") or bool(_FRENCH_ARTICLE.match(following))
    return folded in _ABBREVIATIONS or (len(word) == 1 and word != "I")


def _is_ordinal(before: str, number: re.Match[str], following: str) -> bool:
    if not before[: number.start("digits")].strip():
        return True  # the number of a list or heading, at the start of the sentence
    if _DAY_AND_MONTH.match(following) or (_DATE_BEFORE.search(before) and _YEAR.match(following)):
        return True
    return (number["before"] or "").casefold() in _BEFORE_ORDINALS or following.startswith(_GERMAN_MONTHS)
