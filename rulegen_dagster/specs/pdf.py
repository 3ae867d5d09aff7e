"""PDF with a text layer to canonical text and blocks: lines become paragraphs again, what repeats on pages goes.

A PDF knows neither paragraphs nor tables. Headings are told by their size, weight or number, paragraphs by distance,
marks and ends of sentences; a line that stands in columns stays a clause of its own.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from rulegen_dagster.domain.source_map import PlaceUnit
from rulegen_dagster.specs.assembly import Assembly, Reading, cleaned
from rulegen_dagster.specs.pdf_lines import Line, lines_of
from rulegen_dagster.specs.plain_text import bullet_of, numbered_level

_MARGIN = 0.12
_REPEATS = 0.5
_DIGITS = re.compile(r"\d+")
_PAGE_NUMBER = re.compile(
    r"\W*(?:(?:page|seite|p\.|s\.)\s*)?(?:\d{1,4}|[ivxlc]{1,7})(?:\s*(?:of|von|sur|de|/|\|)\s*\d{1,4})?(?:\s*ページ)?\W*",
    re.IGNORECASE,
)
_ENDS = (".", "!", "?", ":", "。", "\uff01", "\uff1f", ";", ".)", ".”", '."')
_STARTS_ITEM = re.compile(
    r"(?:\((?:\d{1,3}[a-z]?|[a-z]|[ivx]{1,5})\)|§+\s?\d|\d{1,3}(?:\.\d{1,3})+\.?\s)", re.IGNORECASE
)
_HYPHENS = ("-", "\u2010")
_KEEPS_HYPHEN = re.compile(r"(?:und|oder|bzw\.?|sowie|bis|and|or|to|et|ou)\b", re.IGNORECASE)
_WORD_BEFORE = re.compile(r"[^\W\d_]+\Z")
_WORD_AFTER = re.compile(r"[^\W\d_]+")
_CJK = re.compile(r"[\u3000-\u30ff\u3400-\u9fff\uff00-\uff60]")
_HEADING_SIZE = 1.15
_PARAGRAPH_GAP = 1.4
_SHORT_LINE = 0.8
_MAX_HEADING = 160
_COLUMN = 60.0
_DOTS = ("•", "‣", "·", "▪", "●", "◦", "\uf0b7")
_LIST_ENDS = (",", " und", " oder", " and", " or", " et", " ou")


def read_pdf(data: bytes) -> Reading:
    """Read a PDF; see `lines_of` for the errors. Native code: call it through `read_apart`."""
    return assembled(lines_of(data))


def assembled(lines: list[Line]) -> Reading:
    """Return the canonical text and blocks of a PDF's lines. Raises `SpecError` (`too_large`, `too_many_lines`)."""
    shown = without_page_furniture(lines)
    reader = _Paragraphs(Assembly(unit=PlaceUnit.PAGE), _Measure.of(shown), _hyphenated_words(shown), _Edges(shown))
    for line in shown:
        reader.take(line)
    reader.flush()
    return reader.assembly.finish()


def without_page_furniture(lines: list[Line]) -> list[Line]:
    """Return the lines without headers, footers and page numbers.

    A line at a page's edge goes where the same words, numbers aside, stand at that edge on half of the pages and at
    least on two, or where it is a page number and nothing else.
    """
    edges = [_edge_of(line) for line in lines]
    pages = len({line.page for line in lines})
    seen: dict[tuple[int, str], set[int]] = {}
    for line, edge in zip(lines, edges, strict=True):
        if edge:
            seen.setdefault((edge, _without_numbers(line.text)), set()).add(line.page)
    repeated = {key for key, found in seen.items() if len(found) >= max(2, _REPEATS * pages)}
    return [
        line
        for line, edge in zip(lines, edges, strict=True)
        if not edge or ((edge, _without_numbers(line.text)) not in repeated and not _PAGE_NUMBER.fullmatch(line.text))
    ]


def _edge_of(line: Line) -> int:
    """Return 1 for a line in the upper margin, 2 in the lower one, 0 elsewhere."""
    if line.page_height <= 0:
        return 0
    height = line.y / line.page_height
    return 1 if height > 1 - _MARGIN else 2 if height < _MARGIN else 0


def _without_numbers(text: str) -> str:
    return _DIGITS.sub("#", text.casefold())


@dataclass(frozen=True, kw_only=True)
class _Measure:
    """The size of running text, the distance of its lines, and the sizes of headings, largest first."""

    size: float
    pitch: float
    heading_sizes: tuple[float, ...]

    @classmethod
    def of(cls, lines: list[Line]) -> "_Measure":
        """Measure: what most characters have is running text."""
        sizes: Counter[float] = Counter()
        for line in lines:
            sizes[round(line.size, 1)] += len(line.text)
        size = sizes.most_common(1)[0][0] if sizes else 10.0
        steps = Counter(
            round(before.y - after.y, 1)
            for before, after in pairwise(lines)
            if before.page == after.page and 0 < before.y - after.y < 4 * size and round(after.size, 1) == size
        )
        pitch = min((step for step, count in steps.items() if count * 4 >= max(steps.values())), default=1.2 * size)
        larger = sorted((found for found in sizes if found >= _HEADING_SIZE * size), reverse=True)
        return cls(size=size, pitch=pitch, heading_sizes=tuple(larger))


def _hyphenated_words(lines: Iterable[Line]) -> frozenset[str]:
    """Return the words with a hyphen that the text writes within one line."""
    return frozenset(word.casefold() for line in lines for word in re.findall(r"[^\W\d_]+-[^\W\d_]+", line.text))


@dataclass
class _Paragraphs:
    """Joins lines to paragraphs and hands each over with the places of its lines."""

    assembly: Assembly
    measure: _Measure
    hyphenated: frozenset[str]
    edges: "_Edges"
    lines: list[Line] = field(default_factory=list)
    left_edge: float = 0.0

    def take(self, line: Line) -> None:
        """Take the next line of the text."""
        if self.lines and self._begins(self.lines[-1], line):
            self.flush()
        self.lines.append(line)

    def _begins(self, before: Line, line: Line) -> bool:
        """Tell whether a line begins a paragraph."""
        if before.gaps or line.gaps or line.text.startswith(_DOTS):
            return True
        if abs(before.size - line.size) > 0.1 * line.size:
            return True
        if self._is_heading_line(before) != self._is_heading_line(line):
            return True
        is_short = before.right < before.left + _SHORT_LINE * (self.edges.of(before) - before.left)
        has_ended = before.text.endswith(_ENDS)
        step = before.y - line.y
        if before.page != line.page or step <= 0:
            # A sentence goes on over the end of a page or column, a new one begins a paragraph.
            return has_ended or (is_short and not line.text[:1].islower())
        scale = max(line.size / self.measure.size, 1.0)
        is_apart = step > _PARAGRAPH_GAP * self.measure.pitch * scale
        if _begins_item(line.text):
            # "... vom 15." and "... nach § 4" may stand at a line's end with the rest in the next line.
            return has_ended or is_short or is_apart or before.text.endswith(_LIST_ENDS)
        if is_apart:
            return has_ended or is_short or self._is_heading_line(line)
        return has_ended and (is_short or line.left > before.left + line.size)

    def _is_heading_line(self, line: Line) -> bool:
        return round(line.size, 1) in self.measure.heading_sizes or line.bold

    def flush(self) -> None:
        """End the paragraph that was being read."""
        lines, self.lines = self.lines, []
        if not lines:
            return
        text, places = self._joined(lines)
        if not text:
            return
        if level := self._heading_level(lines, text):
            self.assembly.heading(level, text, places[0][1])
            return
        bullet = bullet_of(text)
        if bullet is None:
            self.assembly.paragraph(text, places)
            return
        body = text[bullet.width :]
        shifted = [(max(offset - bullet.width, 0), place) for offset, place in places]
        self.assembly.paragraph(
            body, shifted, depth=self._depth(lines[0]), label=bullet.label, mark=bullet.label or "-"
        )

    def _depth(self, line: Line) -> int:
        if not self.left_edge:
            self.left_edge = line.left
        return 1 + max(0, min(8, round((line.left - self.left_edge) / (2 * line.size))))

    def _heading_level(self, lines: list[Line], text: str) -> int:
        if len(text) > _MAX_HEADING or any(line.gaps for line in lines):
            return 0
        size = round(lines[0].size, 1)
        if size in self.measure.heading_sizes:
            return self.measure.heading_sizes.index(size) + 1
        if text.endswith(_ENDS) or (bullet_of(text) is not None and not lines[0].bold):
            return 0
        below = len(self.measure.heading_sizes)
        if all(line.bold for line in lines):
            return below + (numbered_level(text) or 1)
        numbered = numbered_level(text)
        return (
            below + numbered
            if numbered and len(lines) == 1 and len(text) <= _MAX_HEADING / 2 and "§" in text[:2]
            else 0
        )

    def _joined(self, lines: list[Line]) -> tuple[str, list[tuple[int, str]]]:
        """Join lines; a word cut at a line's end becomes whole again, and Japanese has no space between lines."""
        text = ""
        places: list[tuple[int, str]] = []
        for line in lines:
            shown = cleaned(line.text)
            if not shown:
                continue
            if text:
                text = self._continued(text, shown)
            places.append((len(text), f"page {line.page}, line {line.number}"))
            text += shown
        return text, places

    def _continued(self, text: str, following: str) -> str:
        """Return a text in the form in which the next line can be put behind it."""
        if text.endswith(_HYPHENS) and len(text) > 1 and not text[-2].isspace():
            if _KEEPS_HYPHEN.match(following):
                return f"{text} "
            before, after = _WORD_BEFORE.search(text[:-1]), _WORD_AFTER.match(following)
            if before is None or after is None or not following[0].islower():
                return text
            return text if f"{before[0]}-{after[0]}".casefold() in self.hyphenated else text[:-1]
        return text if _CJK.match(text[-1]) and _CJK.match(following) else f"{text} "


def _begins_item(text: str) -> bool:
    return bullet_of(text) is not None or bool(_STARTS_ITEM.match(text))


class _Edges:
    """Where the text of each page and column ends on the right."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self._right: dict[tuple[int, int], float] = {}
        for line in lines:
            key = (line.page, int(line.left // _COLUMN))
            self._right[key] = max(self._right.get(key, 0.0), line.right)

    def of(self, line: Line) -> float:
        """Return the right edge of the lines that begin near a line."""
        column = int(line.left // _COLUMN)
        return max(self._right.get((line.page, near), 0.0) for near in (column - 1, column, column + 1))
