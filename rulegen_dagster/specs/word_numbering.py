"""Automatic numbers of a DOCX document, counted as a word processor counts them: `3.2`, `(a)`, `§ 4`."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple
from xml.etree.ElementTree import Element

from rulegen_dagster.specs.list_numbers import numeral

W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
MAX_LEVELS = 9
_PLACE = re.compile(r"%([1-9])")
_MAX_MARK = 40


def value_of(parent: Element | None, name: str) -> str | None:
    """Return the `w:val` of a child, or None."""
    child = parent.find(f"{W}{name}") if parent is not None else None
    return child.get(f"{W}val") if child is not None else None


def number_in(parent: Element | None, name: str) -> int | None:
    """Return the `w:val` of a child as a number, or None where it is none."""
    value = value_of(parent, name)
    return int(value) if value and re.fullmatch(r"-?[0-9]{1,9}", value) else None


class Mark(NamedTuple):
    """What stands before a paragraph: the mark as shown, and its number (none for a bullet)."""

    shown: str
    label: str | None


@dataclass(frozen=True, kw_only=True)
class _Level:
    kind: str = "decimal"
    pattern: str = ""
    start: int = 1
    restarts: bool = True
    legal: bool = False


@dataclass(frozen=True, kw_only=True)
class _Number:
    """One list of the document: levels, whose counter it shares, and the levels that it starts anew."""

    counter: str
    levels: dict[int, _Level]
    starts: dict[int, int]


@dataclass
class Numbering:
    """All lists of a document with their counters; ask for each numbered paragraph once, in order."""

    numbers: dict[str, _Number] = field(default_factory=dict)
    style_levels: dict[str, tuple[str, int]] = field(default_factory=dict)
    _counts: dict[str, dict[int, int]] = field(default_factory=dict)
    _begun: set[str] = field(default_factory=set)
    _labels: dict[str, dict[int, str]] = field(default_factory=dict)

    @classmethod
    def of(cls, root: Element | None) -> "Numbering":
        """Read `word/numbering.xml`; without one no paragraph is numbered."""
        numbering = cls()
        if root is None:
            return numbering
        abstract = {found.get(f"{W}abstractNumId", ""): found for found in root.iter(f"{W}abstractNum")}
        by_style = {style: found for found in abstract.values() if (style := value_of(found, "styleLink"))}
        for number in root.iter(f"{W}num"):
            name = number.get(f"{W}numId", "")
            found = abstract.get(value_of(number, "abstractNumId") or "")
            if found is not None and (link := value_of(found, "numStyleLink")):
                found = by_style.get(link, found)
            if found is not None:
                numbering._add(name, number, found)
        return numbering

    def _add(self, name: str, number: Element, abstract: Element) -> None:
        levels = dict(_levels(abstract))
        starts: dict[int, int] = {}
        for override in number.iter(f"{W}lvlOverride"):
            levels.update(_levels(override))
            start = number_in(override, "startOverride")
            index = override.get(f"{W}ilvl", "")
            if start is not None and index.isdigit():
                starts[int(index)] = start
        for level in abstract.iter(f"{W}lvl"):
            if (style := value_of(level, "pStyle")) and level.get(f"{W}ilvl", "").isdigit():
                self.style_levels.setdefault(style, (name, int(level.get(f"{W}ilvl", "0"))))
        self.numbers[name] = _Number(counter=abstract.get(f"{W}abstractNumId", ""), levels=levels, starts=starts)

    def mark(self, name: str, index: int) -> Mark | None:
        """Count one paragraph of a list and return its mark; None where the list shows none."""
        number = self.numbers.get(name)
        if number is None or not 0 <= index < MAX_LEVELS:
            return None
        counts = self._counts.setdefault(number.counter, {})
        if name not in self._begun:
            self._begun.add(name)
            for begun in number.starts:
                counts.pop(begun, None)
        level = number.levels.get(index, _Level())
        start = number.starts.get(index, level.start)
        counts[index] = counts[index] + 1 if index in counts else start
        for deeper in [known for known in counts if known > index]:
            if number.levels.get(deeper, _Level()).restarts:
                del counts[deeper]
        if level.kind == "bullet":
            return Mark("-", None)
        if level.kind == "none" or not level.pattern.strip():
            return None
        shown = _PLACE.sub(lambda place: _shown(number, counts, int(place[1]) - 1, legal=level.legal), level.pattern)
        shown = " ".join(shown.split())[:_MAX_MARK]
        return Mark(shown, self._label(number.counter, index, shown, level.pattern)) if shown else None

    def _label(self, counter: str, index: int, shown: str, pattern: str) -> str:
        """Return a number with the one above it, unless it says that itself: "3.2 (a)", but "3.2.1"."""
        labels = self._labels.setdefault(counter, {})
        for deeper in [known for known in labels if known >= index]:
            del labels[deeper]
        above = labels.get(max(labels, default=-1))
        own = shown.rstrip(".")
        label = f"{above} {own}" if above and len(_PLACE.findall(pattern)) == 1 else own
        labels[index] = label
        return label


def _levels(parent: Element) -> Iterator[tuple[int, _Level]]:
    for level in parent.iter(f"{W}lvl"):
        index = level.get(f"{W}ilvl", "")
        if index.isdigit() and int(index) < MAX_LEVELS:
            start = number_in(level, "start")
            yield (
                int(index),
                _Level(
                    kind=value_of(level, "numFmt") or "decimal",
                    pattern=value_of(level, "lvlText") or "",
                    start=1 if start is None else start,
                    restarts=number_in(level, "lvlRestart") != 0,
                    legal=level.find(f"{W}isLgl") is not None,
                ),
            )


def _shown(number: _Number, counts: dict[int, int], index: int, *, legal: bool) -> str:
    level = number.levels.get(index, _Level())
    count = counts.get(index, number.starts.get(index, level.start))
    return numeral(count, "decimal" if legal else level.kind)
