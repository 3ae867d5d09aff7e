"""Shared terms: definitions that a clause does not name and still speaks about, found by BM25 over the job's own text.

Words that stand in many clauses, short words and numbers are left out, a hit needs two words in common, and its score
must reach what one rare word would score: in a short text little is said by a word or two, and noise is no context.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from rulegen_dagster.domain.clause import Clause

if TYPE_CHECKING:
    from lunr.index import Index

MAX_HITS: Final = 3
"""Most definitions that are found for one clause."""

_LEAST_WORDS: Final = 2
_COMMON_SHARE: Final = 0.2
_RARE: Final = 2
"""In how many clauses a word stands that is worth the floor."""
_SHORTEST: Final = 4
_FIELD: Final = "text"


class SharedTerms:
    """An index over the words of every clause, asked for definitions alone."""

    def __init__(self, clauses: Sequence[tuple[Clause, tuple[str, ...]]], definitions: Sequence[Clause]) -> None:
        """Index the clauses by their words, given in the form in which they are compared."""
        self._definitions = {definition.ordinal: definition for definition in definitions}
        counts = Counter(word for _, words in clauses for word in set(words))
        most = max(_RARE, int(_COMMON_SHARE * len(clauses)))
        telling = {word for word, count in counts.items() if count <= most and _is_telling(word)}
        self._floor = math.log(1 + max(len(clauses) - _RARE + 0.5, 0) / (_RARE + 0.5))
        # Only a word of some definition can find one.
        self._asked = telling.intersection(
            word for clause, words in clauses if clause.ordinal in self._definitions for word in words
        )
        self._index = _built(clauses) if self._asked else None

    def spoken_of(self, clause: Clause, words: Sequence[str]) -> list[Clause]:
        """Return at most `MAX_HITS` definitions, the best first; none where nothing reaches the floor."""
        asked = sorted(self._asked.intersection(words))
        if self._index is None or len(asked) < _LEAST_WORDS:
            return []
        query = self._index.create_query()
        for word in asked:
            query.term(word, use_pipeline=False)
        hits = (
            (int(hit["ref"]), hit["score"])
            for hit in self._index.query(query)
            if len(hit["match_data"].metadata) >= _LEAST_WORDS and hit["score"] >= self._floor
        )
        found = sorted(
            ((score, ordinal) for ordinal, score in hits if ordinal in self._definitions and ordinal != clause.ordinal),
            key=lambda hit: (-hit[0], hit[1]),
        )
        return [self._definitions[ordinal] for _, ordinal in found[:MAX_HITS]]


def _is_telling(word: str) -> bool:
    # In a short text even "for" is rare. Scripts without spaces between words have no short words.
    return not word.isdigit() and (len(word) >= _SHORTEST or ord(word[0]) >= 0x2E80)


def _built(clauses: Sequence[tuple[Clause, tuple[str, ...]]]) -> "Index":
    # Most texts define nothing, and are not to wait for the import.
    from lunr.builder import Builder  # noqa: PLC0415

    builder = Builder()
    builder.ref("ordinal")
    builder.field(_FIELD)
    for clause, words in clauses:
        builder.add({"ordinal": clause.ordinal, _FIELD: list(words)})
    return builder.build()
