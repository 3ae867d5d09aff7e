"""Canonical text for formats that have none of their own (HTML, DOCX, PDF): paragraphs in, text and blocks out.

Headings, paragraphs, items and rows stand on lines of their own with an empty line between. A number that the format
makes ("3.2", "(a)") is written before its paragraph, as a reader sees it, and is no part of the clause.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rulegen_dagster.domain.clause import ClauseKind
from rulegen_dagster.domain.source_map import PlaceUnit, SourceMap
from rulegen_dagster.specs.blocks import Block, label_of, lead_of
from rulegen_dagster.specs.leads import Leads, series_of
from rulegen_dagster.specs.refusals import Refusal, refused

MAX_CHARACTERS = 5_000_000
"""Most characters of an extracted text: twenty times the longest policy known to us."""

MAX_BLOCKS = 50_000
"""Most paragraphs, items and rows of one specification."""

_MAX_HEADING = 300
_MAX_COLUMNS = 64
_INVISIBLE = dict.fromkeys(map(ord, "\u00ad\u200b\u200c\u200d\u2060\ufeff\ufffe\x02"))
_LIGATURES = {0xFB00: "ff", 0xFB01: "fi", 0xFB02: "fl", 0xFB03: "ffi", 0xFB04: "ffl", 0xFB05: "st", 0xFB06: "st"}
_CHARACTERS = str.maketrans({**_INVISIBLE, **_LIGATURES, **dict.fromkeys(range(0xD800, 0xE001), "\ufffd")})
_CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f]+")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What one format's reader found: canonical text, its blocks in order, and the way back to the file."""

    text: str
    blocks: tuple[Block, ...]
    source_map: SourceMap


def cleaned(text: str) -> str:
    """Return a text with single spaces, without invisible characters, ligatures and controls."""
    shown = text if text.isascii() else text.translate(_CHARACTERS)
    return " ".join(_CONTROLS.sub(" ", shown).split())


@dataclass
class Assembly:
    """Takes the parts of a document in reading order; all texts have been through `cleaned`.

    Each part names its place in the file. Raises `SpecError` (`too_large`, `too_many_lines`) beyond the limits.
    """

    unit: PlaceUnit
    _parts: list[str] = field(default_factory=list)
    _blocks: list[Block] = field(default_factory=list)
    _starts: list[int] = field(default_factory=list)
    _places: list[str] = field(default_factory=list)
    _headings: list[tuple[int, str]] = field(default_factory=list)
    _leads: Leads = field(default_factory=Leads)
    _length: int = 0

    def heading(self, level: int, text: str, place: str) -> None:
        """Take a heading; it becomes the context of what follows, not a clause."""
        if not text:
            return
        self._write(text, ((0, place),))
        kept = [heading for heading in self._headings if heading[0] < level]
        self._headings = [*kept, (level, text[:_MAX_HEADING])]
        self.break_list()

    def paragraph(
        self,
        text: str,
        places: Sequence[tuple[int, str]],
        *,
        depth: int = 0,
        label: str | None = None,
        mark: str = "",
        series: str | None = None,
    ) -> None:
        """Take a paragraph, or an item where `depth` is 1 or more.

        `places` are offsets within `text`, the first one 0. `mark` (a made number, a bullet) is written before it;
        `label` is the item's number, else the number that the text itself begins with. `series` names the item's list
        where the format knows it, else the form of its mark does.
        """
        if not text:
            return
        start = self._write(text, places, mark=f"{mark} " if mark else "")
        kind = series if series is not None else series_of(mark)
        introduced = self._introduce(depth, kind)
        self._add(
            Block(
                lines=((start, start + len(text)),),
                kind=ClauseKind.LIST_ITEM if depth else ClauseKind.SENTENCE,
                heading_path=self._path(),
                lead=introduced if depth else None,
                label=label or label_of(text),
            )
        )
        self._leads.leave(depth, kind, lead_of(text), len(self._blocks) - 1)

    def row(self, cells: Sequence[str], place: str, *, header: Sequence[str]) -> None:
        """Take a table row whose columns `header` names (empty where the table has none)."""
        shown = cells[:_MAX_COLUMNS]
        if not any(shown):
            return
        text = " | ".join(shown)
        start = self._write(text, ((0, place),))
        # An empty first or last cell leaves a bar and a space at the edge.
        left, right = len(text) - len(text.lstrip(" |")), len(text.rstrip(" |"))
        introduced = self._introduce(self._leads.below, "row")
        self._leads.skip()
        self._add(
            Block(
                lines=((start + left, start + right),),
                kind=ClauseKind.TABLE_ROW,
                heading_path=self._path(),
                lead=introduced,
                table_header=tuple(name[:_MAX_HEADING] for name in header[:_MAX_COLUMNS]),
            )
        )

    def break_list(self) -> None:
        """Forget the paragraph that introduced a list or table: something else stands between."""
        self._leads.reset()

    def finish(self) -> Reading:
        """Return the whole."""
        return Reading(
            text="".join(self._parts),
            blocks=tuple(self._blocks),
            source_map=SourceMap(unit=self.unit, starts=tuple(self._starts), places=tuple(self._places)),
        )

    def _write(self, text: str, places: Sequence[tuple[int, str]], *, mark: str = "") -> int:
        line_start = self._length
        start = line_start + len(mark)
        for offset, place in places:
            if not self._places or self._places[-1] != place:
                self._starts.append(start + offset if offset else line_start)
                self._places.append(place)
        self._parts.append(f"{mark}{text}\n\n")
        self._length = start + len(text) + 2
        if self._length > MAX_CHARACTERS:
            raise refused(
                Refusal.TOO_LARGE,
                f"the file holds more than {MAX_CHARACTERS:,} characters of text; split it into several specifications",
            )
        return start

    def _add(self, block: Block) -> None:
        if len(self._blocks) >= MAX_BLOCKS:
            raise refused(
                Refusal.TOO_MANY_LINES,
                f"the file has more than {MAX_BLOCKS:,} paragraphs; split it into several specifications",
            )
        self._blocks.append(block)

    def _introduce(self, depth: int, series: str) -> str | None:
        lead, index = self._leads.enter(depth, series)
        if index is not None:
            self._blocks[index] = replace(self._blocks[index], introduces_list=True)
        return lead

    def _path(self) -> tuple[str, ...]:
        return tuple(text for _, text in self._headings)
