"""Neighbours: the sentences around a clause at which it points back, or that speak of the same thing.

Policies say a limit in one sentence and its exception in the next. Which neighbour belongs to which is told from the
words alone: a pronoun or the definite name of a quantity points at the sentence before, and a rare word in common (a
German compound counts by its parts) makes two clauses speak of one thing. Words of policies in general ("limited",
"erstattet") are none of these, so that "Hotels are limited to …" is no neighbour of "Meals are limited to …".
"""

import re
from collections import Counter
from typing import Final

from rulegen_dagster.domain.clause import Clause, ClauseKind, ClauseRole, ContextRelation, ParsedSpec
from rulegen_dagster.specs.topic_words import is_telling, stem

MAX_LINKED: Final = 6
"""Most neighbours of one clause that speak of the same thing."""

_WINDOW: Final = 8
_MAX_CHAIN: Final = 3
_COMMON_SHARE: Final = 0.2
_FEW: Final = 8
_SHORTEST_PART: Final = 5
_MAX_READ: Final = 2_000
_WORD = re.compile(r"[^\W\d_]+")
_BLANK_LINE = re.compile(r"\n[ \t>]*\n")
_WITHIN_A_BLOCK: Final = " \t\r\n>"

_FIRST_WORDS = re.compile(
    r"[\s*_\"'“„(]*(?:"
    r"(?:it|they|this|these|that|those|such|the (?:same|above|former|latter)|both|in (?:this|that|such|these))\b"
    r"|(?:sie|er|diese[rsmn]?|dies|das (?:gilt|gleiche)|dasselbe|gleiches|hier(?:für|bei|von)|dabei|dafür|davon"
    r"|solche[rsmn]?|in (?:diesem|diesen|solchen))\b"
    r"|(?:ils|elles|cet|cette|ces|celui|celle|ceux)\b|(?:この|その|これ|それ|同))",
    re.IGNORECASE,
)
_NAMED_QUANTITY = re.compile(
    r"\b(?:the|this|that|such|its|their) (?:[a-z]+ )?(?:maximum|limit|cap|amount|rate|allowance|ceiling|threshold"
    r"|deadline|period|percentage)\b"
    r"|\b(?:der|die|das|den|dem|des|diese[rsmn]?|deren|dessen)\s+(?:\w+\s+)?(?:höchst(?:betrag|satz|grenze|wert)\w*"
    r"|betrag\w*|grenz(?:e|wert)\w*|obergrenze\w*|satz(?:es)?|sätzen?|pauschalen?|frist(?:en)?)\b",
    re.IGNORECASE,
)


def points_back(text: str) -> bool:
    """Return whether a sentence speaks of something that another one has named, or of a quantity by its name alone."""
    shown = text[:_MAX_READ]
    return bool(_FIRST_WORDS.match(shown) or _NAMED_QUANTITY.search(shown))


class Neighbours:
    """The neighbours of each clause of one specification; a look-up reads a few clauses, whatever the text's length."""

    def __init__(self, parsed: ParsedSpec) -> None:
        """Find the paragraphs and the words of every clause."""
        self._clauses = parsed.clauses
        self._paragraphs = _paragraphs(parsed)
        own = [_stems(clause.text) for clause in parsed.clauses]
        leads: dict[str, frozenset[str]] = {}
        counts = Counter(word for words in own for word in words)
        most = max(_FEW, int(_COMMON_SHARE * len(own)))
        common = frozenset(word for word, count in counts.items() if count > most)
        self._words = [words - common for words in own]
        for clause in parsed.clauses:
            if clause.lead and clause.lead not in leads:
                leads[clause.lead] = _stems(clause.lead) - common
        self._leads = leads
        self._topics: list[frozenset[str]] = []
        for position in range(len(own)):
            before = self._antecedent_of(position)
            self._topics.append(self._words[position] | (self._topics[before] if before is not None else frozenset()))

    def antecedents_of(self, clause: Clause) -> list[Clause]:
        """Return the sentences of its paragraph at which a clause points back, the nearest first."""
        found: list[Clause] = []
        position: int | None = clause.ordinal
        while position is not None and len(found) < _MAX_CHAIN:
            position = self._antecedent_of(position)
            if position is not None:
                found.append(self._clauses[position])
        return found

    def linked_to(self, clause: Clause) -> list[tuple[ContextRelation, Clause]]:
        """Return the neighbours that speak of the same thing: those of its paragraph first, each the nearest first."""
        if clause.kind is ClauseKind.TABLE_ROW:
            return []
        at = clause.ordinal
        around = [position for distance in range(1, _WINDOW + 1) for position in (at + distance, at - distance)]
        found = [
            (self._relation(at, position), self._clauses[position])
            for position in around
            if 0 <= position < len(self._clauses) and self._is_linked(at, position)
        ]
        # Sorting is stable: the nearest stay in front.
        return sorted(found, key=lambda pair: pair[0] is not ContextRelation.SAME_PARAGRAPH)[:MAX_LINKED]

    def _relation(self, at: int, position: int) -> ContextRelation:
        same = self._paragraphs[at] == self._paragraphs[position]
        return ContextRelation.SAME_PARAGRAPH if same else ContextRelation.SAME_SECTION

    def _is_linked(self, at: int, position: int) -> bool:
        one, other = self._clauses[at], self._clauses[position]
        if other.heading_path != one.heading_path or other.kind is ClauseKind.TABLE_ROW:
            return False
        if other.role is ClauseRole.INFORMATIVE:
            return False
        # Items of one list share its lead, which makes no two of them speak of one thing.
        leads = (one.lead, other.lead) if one.lead != other.lead else (None, None)
        mine, others = (
            self._topics[place] | self._leads.get(lead or "", frozenset())
            for place, lead in zip((at, position), leads, strict=True)
        )
        return _share_a_word(mine, others)

    def _antecedent_of(self, position: int) -> int | None:
        clause = self._clauses[position]
        if position == 0 or self._paragraphs[position - 1] != self._paragraphs[position]:
            return None
        return position - 1 if points_back(clause.text) else None


def _paragraphs(parsed: ParsedSpec) -> list[int]:
    """Return the number of the paragraph, item or row in which each clause stands."""
    numbers: list[int] = []
    for position, clause in enumerate(parsed.clauses):
        before = parsed.clauses[position - 1] if position else None
        goes_on = before is not None and _is_one_block(before, clause, parsed.canonical_text[before.end : clause.start])
        numbers.append(numbers[-1] if goes_on else position)
    return numbers


def _is_one_block(before: Clause, after: Clause, between: str) -> bool:
    return (
        before.kind is after.kind is not ClauseKind.TABLE_ROW
        and before.heading_path == after.heading_path
        and not between.strip(_WITHIN_A_BLOCK)
        and not _BLANK_LINE.search(between)
    )


def _stems(text: str) -> frozenset[str]:
    words = (word.casefold() for word in _WORD.findall(text[:_MAX_READ]))
    return frozenset(stem(word) for word in words if is_telling(word))


def _share_a_word(one: frozenset[str], other: frozenset[str]) -> bool:
    return not one.isdisjoint(other) or any(
        _is_part(a, b) or _is_part(b, a) for a in one if len(a) >= _SHORTEST_PART for b in other
    )


def _is_part(word: str, of: str) -> bool:
    """Return whether a word begins or ends a compound."""
    return len(of) > len(word) >= _SHORTEST_PART and (of.startswith(word) or of.endswith(word))
