"""Which sentence introduces an item or row: the open lists of a document, from the outermost to the innermost."""

import re
from dataclasses import dataclass, field
from typing import NamedTuple

_LETTERS_AND_DIGITS = re.compile(r"\w+")


class Introduced(NamedTuple):
    """The lead of an item or row, and the block directly before it that introduces it, by index; each may be None."""

    lead: str | None
    by: int | None


class _Level(NamedTuple):
    depth: int
    series: str
    lead: str | None
    block: int


def series_of(label: str | None) -> str:
    """Return the form of an item's mark, by which lists that follow one another are told apart: `(1)` from `1.`."""
    return _LETTERS_AND_DIGITS.sub("x", label) if label else "-"


@dataclass
class Leads:
    """Follows paragraphs, items and rows in order.

    An item of another series belongs below the item directly before it, where that one is open: in laws "(2) … if"
    and "1. …" stand at the same depth.
    """

    _levels: list[_Level] = field(default_factory=list)
    _direct: int | None = None

    def enter(self, depth: int, series: str) -> Introduced:
        """Return what introduces the next item or row; paragraphs have depth 0."""
        while self._levels and self._levels[-1].depth > depth:
            self._levels.pop()
        same = [level.series for level in self._levels if level.depth == depth]
        if series in same or depth == 0:
            while self._levels and self._levels[-1].depth == depth and self._levels.pop().series != series:
                pass
        elif same and self._levels[-1].block != self._direct:
            while self._levels and self._levels[-1].depth == depth:
                self._levels.pop()
        if not self._levels:
            return Introduced(None, None)
        nearest = self._levels[-1]
        lead = next((level.lead for level in reversed(self._levels) if level.lead), None)
        return Introduced(lead, nearest.block if nearest.block == self._direct else None)

    def leave(self, depth: int, series: str, lead: str | None, block: int) -> None:
        """Keep what was entered: its own lead, if what follows may be introduced by it, and its index."""
        self._levels.append(_Level(depth, series, lead, block))
        self._direct = block if lead else None

    def skip(self) -> None:
        """Tell that something stands between, such as a table row, that introduces nothing."""
        self._direct = None

    @property
    def below(self) -> int:
        """The depth of a row of the table that stands here: below whatever is open."""
        return self._levels[-1].depth + 1 if self._levels else 1

    def reset(self) -> None:
        """Forget all: a heading or a rule stands between."""
        self._levels = []
        self._direct = None
