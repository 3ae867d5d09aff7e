"""Alignment: which clause of a new revision is which of the old one, whatever its number or place.

Three looks, each over what the one before left: equal texts in the same order, equal texts elsewhere (moved), and the
most similar of the rest (edited). What then has no partner is new or removed. A number in front of a clause is no part
of its text, so a list that is renumbered has kept every clause.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from enum import StrEnum
from typing import Final

from rulegen_dagster.domain.clause import Clause
from rulegen_dagster.specs.blocks import normalized

SIMILAR: Final = 0.55
"""Least similarity of two texts that are one clause edited; 1 is equal."""

_SAME_PLACE: Final = 0.05
_WIDE: Final = 0x2E80
# Words that a large part of the clauses share say nothing about which is which, and would pair all with all.
_COMMON: Final = 0.2
_FEW: Final = 50


class ChangeKind(StrEnum):
    """What became of a clause between two revisions."""

    EQUAL = "equal"
    #: The same text in the same place under another number.
    RENUMBERED = "renumbered"
    #: The same text under a changed heading or introduction, which may change what it means.
    NEW_CONTEXT = "new_context"
    MOVED = "moved"
    EDITED = "edited"
    NEW = "new"
    REMOVED = "removed"

    @property
    def needs_validation(self) -> bool:
        """Whether a rule of the clause must be validated again before it is used."""
        return self not in (ChangeKind.EQUAL, ChangeKind.RENUMBERED)


@dataclass(frozen=True, kw_only=True)
class ClauseChange:
    """One clause of either revision with its partner; `similarity` is 1.0 for equal texts, 0.0 without a partner.

    `new_context` tells that heading path or introduction differ, also for a clause that was moved or edited.
    """

    kind: ChangeKind
    old: Clause | None
    new: Clause | None
    similarity: float
    new_context: bool = False


def align(old: Sequence[Clause], new: Sequence[Clause]) -> tuple[ClauseChange, ...]:
    """Return every clause of both revisions once: those of the new one in order, each removed one where it stood."""
    partners: dict[int, tuple[int, float]] = {}
    in_order: set[int] = set()
    hashes = [[clause.content_hash for clause in revision] for revision in (old, new)]
    matcher = SequenceMatcher(None, hashes[0], hashes[1], autojunk=False)
    for block in matcher.get_matching_blocks():
        for step in range(block.size):
            partners[block.b + step] = (block.a + step, 1.0)
            in_order.add(block.b + step)
    free_old = _without(range(len(old)), (at for at, _ in partners.values()))
    free_new = _without(range(len(new)), partners)
    for at, partner in _equal_elsewhere(old, new, free_old, free_new):
        partners[at] = (partner, 1.0)
    free_old = _without(free_old, (at for at, _ in partners.values()))
    free_new = _without(free_new, partners)
    for at, partner, similarity in _most_similar(old, new, free_old, free_new):
        partners[at] = (partner, similarity)
    return tuple(_changes(old, new, partners, in_order))


def _without(positions: Sequence[int] | range, taken: Iterator[int] | dict[int, tuple[int, float]]) -> list[int]:
    gone = set(taken)
    return [at for at in positions if at not in gone]


def _equal_elsewhere(
    old: Sequence[Clause], new: Sequence[Clause], free_old: Sequence[int], free_new: Sequence[int]
) -> Iterator[tuple[int, int]]:
    left: dict[str, list[int]] = defaultdict(list)
    for at in free_old:
        left[old[at].content_hash].append(at)
    for at in free_new:
        candidates = left.get(new[at].content_hash)
        if candidates:
            # Of several equal texts the one with the same heading is meant, then the first.
            best = min(candidates, key=lambda found: old[found].context_hash != new[at].context_hash)
            candidates.remove(best)
            yield at, best


def _most_similar(
    old: Sequence[Clause], new: Sequence[Clause], free_old: Sequence[int], free_new: Sequence[int]
) -> Iterator[tuple[int, int, float]]:
    words_old = {at: _words(old[at].text) for at in free_old}
    words_new = {at: _words(new[at].text) for at in free_new}
    pairs = []
    for at, candidates in _candidates(words_old, words_new):
        for found in candidates:
            similarity = _similarity(words_old[found], words_new[at])
            if similarity >= SIMILAR:
                same = old[found].context_hash == new[at].context_hash
                pairs.append((similarity + _SAME_PLACE * same, -abs(found - at), at, found, similarity))
    taken_old: set[int] = set()
    taken_new: set[int] = set()
    for _, _, at, found, similarity in sorted(pairs, reverse=True):
        if at not in taken_new and found not in taken_old:
            taken_new.add(at)
            taken_old.add(found)
            yield at, found, similarity


def _candidates(
    words_old: dict[int, tuple[str, ...]], words_new: dict[int, tuple[str, ...]]
) -> Iterator[tuple[int, set[int]]]:
    """Yield for each new text the old ones that share a telling word with it."""
    holders: dict[str, list[int]] = defaultdict(list)
    for at, words in words_old.items():
        for word in set(words):
            holders[word].append(at)
    most = max(_FEW, int(_COMMON * len(words_old)))
    for at, words in words_new.items():
        yield at, {found for word in set(words) if len(holders.get(word, ())) <= most for found in holders[word]}


def _similarity(first: tuple[str, ...], second: tuple[str, ...]) -> float:
    # What both have in common in any order bounds what they have in the same order, and is counted at once.
    shared = sum((Counter(first) & Counter(second)).values())
    if 2 * shared < SIMILAR * (len(first) + len(second)):
        return 0.0
    return SequenceMatcher(None, first, second, autojunk=False).ratio()


def _words(text: str) -> tuple[str, ...]:
    """Return the words of a text as they are compared; where a script knows no spaces, its characters."""
    words: list[str] = []
    for word in normalized(text).split():
        words += list(word) if any(ord(character) >= _WIDE for character in word) else [word.strip(".,;:()[]\"'")]
    return tuple(word for word in words if word)


def _changes(
    old: Sequence[Clause],
    new: Sequence[Clause],
    partners: dict[int, tuple[int, float]],
    in_order: set[int],
) -> Iterator[ClauseChange]:
    kept = {found for found, _ in partners.values()}
    told = 0
    for at, clause in enumerate(new):
        partner = partners.get(at)
        if partner is None:
            yield ClauseChange(kind=ChangeKind.NEW, old=None, new=clause, similarity=0.0)
            continue
        found, similarity = partner
        if at in in_order:
            for gone in range(told, found):
                if gone not in kept:
                    yield _removed(old[gone])
            told = max(told, found + 1)
        yield _kept(old[found], clause, similarity, in_order=at in in_order)
    for gone in range(told, len(old)):
        if gone not in kept:
            yield _removed(old[gone])


def _removed(clause: Clause) -> ClauseChange:
    return ClauseChange(kind=ChangeKind.REMOVED, old=clause, new=None, similarity=0.0)


def _kept(old: Clause, new: Clause, similarity: float, *, in_order: bool) -> ClauseChange:
    new_context = old.context_hash != new.context_hash
    if old.content_hash != new.content_hash:
        kind = ChangeKind.EDITED
    elif not in_order:
        kind = ChangeKind.MOVED
    elif new_context:
        kind = ChangeKind.NEW_CONTEXT
    elif old.label != new.label:
        kind = ChangeKind.RENUMBERED
    else:
        kind = ChangeKind.EQUAL
    return ClauseChange(kind=kind, old=old, new=new, similarity=similarity, new_context=new_context)
