"""Where a piece of the canonical text stands in the uploaded file, in words for people."""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate, pairwise
from typing import Any


class PlaceUnit(StrEnum):
    """What a place counts: lines of a text, paragraphs of a document, elements of a web page, pages of a PDF."""

    LINE = "line"
    PARAGRAPH = "paragraph"
    ELEMENT = "element"
    PAGE = "page"


@dataclass(frozen=True, kw_only=True)
class SourceMap:
    """The way back from canonical text to the file: `places[i]` holds from offset `starts[i]` to the next start.

    Offsets are Unicode code points, ascending. Where the canonical text is the file itself (`LINE`) both are empty:
    the text's own line feeds say it all.
    """

    unit: PlaceUnit = PlaceUnit.LINE
    starts: tuple[int, ...] = ()
    places: tuple[str, ...] = ()

    def location_of(self, text: str, offset: int) -> str:
        """Return where an offset of the canonical `text` stands: `line 12`, `page 3, line 14`, `paragraph 7`."""
        if self.unit is PlaceUnit.LINE:
            return f"line {text.count(chr(10), 0, offset) + 1}"
        index = bisect_right(self.starts, offset) - 1
        return self.places[max(index, 0)] if self.places else ""

    def to_json(self) -> dict[str, Any]:
        """Return the form for the ledger; the starts as distances, which keeps it short."""
        steps = [after - before for before, after in pairwise((0, *self.starts))]
        return {"unit": self.unit.value, "steps": steps, "places": list(self.places)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any] | None) -> "SourceMap":
        """Return what `to_json` wrote; lines of the text where an older release kept nothing."""
        if not content:
            return cls()
        return cls(
            unit=PlaceUnit(content["unit"]),
            starts=tuple(accumulate(content["steps"])),
            places=tuple(content["places"]),
        )
