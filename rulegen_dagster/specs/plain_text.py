"""Plain text to blocks: paragraphs between blank lines, headings, list items and numbered paragraphs."""

import re
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from rulegen_dagster.domain.clause import ClauseKind
from rulegen_dagster.specs.blocks import Block, label_of, lead_of
from rulegen_dagster.specs.leads import Leads, series_of

_MAX_HEADING = 80
_BULLET = re.compile(r"[ \t]*(?:[-*•‣·▪●◦\uf0b7\u2013]|\d{1,3}[.)]|[a-z][.)]|\([a-z0-9]{1,3}\))[ \t]+", re.IGNORECASE)
_NUMBERED_HEADING = re.compile(r"(?:§+\s?)?(?P<number>\d{1,3}[a-z]?(?:\.\d{1,3})*)\.?\s+\S", re.IGNORECASE)
_UNDERLINE = re.compile(r"[ \t]*(?P<mark>[=\-~^])(?P=mark){2,}[ \t]*\Z")
_SENTENCE_ENDS = (".", ":", ";", ",", "!", "?", "。", "\uff1a", "、")


@dataclass(frozen=True, kw_only=True)
class _Line:
    start: int
    end: int
    text: str


class Bullet(NamedTuple):
    """The mark of an item at the start of a line: how long it is, and its number, none for a dot or dash."""

    width: int
    label: str | None


def bullet_of(line: str) -> Bullet | None:
    """Return the mark that a line of text begins with, or None; a number in brackets stays part of the text."""
    bullet = _BULLET.match(line)
    if bullet is None or line.lstrip().startswith("("):
        return None
    mark = bullet[0].strip()
    return Bullet(bullet.end(), label_of(line) or (mark if mark[:-1].isalnum() else None))


def numbered_level(line: str) -> int:
    """Return the level that the number of a heading gives, 1 for `3` and `§ 3`, 2 for `3.1`; 0 without a number."""
    numbered = _NUMBERED_HEADING.match(line)
    return numbered["number"].count(".") + 1 if numbered else 0


def plain_text_blocks(text: str) -> list[Block]:
    """Return the blocks of a plain text, in order."""
    reader = _Reader()
    for paragraph in _paragraphs(text):
        reader.read(paragraph)
    return reader.finish()


def _paragraphs(text: str) -> list[list[_Line]]:
    paragraphs: list[list[_Line]] = [[]]
    position = 0
    for raw in text.split("\n"):
        if shown := raw.strip():
            left = position + raw.index(shown)
            paragraphs[-1].append(_Line(start=left, end=left + len(shown), text=raw))
        elif paragraphs[-1]:
            paragraphs.append([])
        position += len(raw) + 1
    return [paragraph for paragraph in paragraphs if paragraph]


@dataclass
class _Reader:
    """Keeps what a clause inherits: the headings above it and the paragraph that introduces its list."""

    blocks: list[Block] = field(default_factory=list)
    headings: list[tuple[int, str]] = field(default_factory=list)
    leads: Leads = field(default_factory=Leads)

    def read(self, paragraph: list[_Line]) -> None:
        """Take one paragraph: a heading, or one or more items and sentences."""
        if len(paragraph) >= 2 and _UNDERLINE.match(paragraph[1].text):
            level = 1 if paragraph[1].text.strip().startswith("=") else 2
            self._heading(level, paragraph[0])
            paragraph = paragraph[2:]
        elif len(paragraph) == 1 and (level := _heading_level(paragraph[0])):
            self._heading(level, paragraph[0])
            return
        if not paragraph:
            return
        for group in _split_items(paragraph):
            self._add(group)

    def finish(self) -> list[Block]:
        """Return the blocks."""
        return self.blocks

    def _heading(self, level: int, line: _Line) -> None:
        kept = [heading for heading in self.headings if heading[0] < level]
        self.headings = [*kept, (level, " ".join(line.text.split()))]
        self.leads.reset()

    def _add(self, lines: list[_Line]) -> None:
        is_item = _BULLET.match(lines[0].text) is not None
        spans = [(line.start, line.end) for line in lines]
        shown = " ".join(line.text.strip() for line in lines)
        label = label_of(shown)
        if (item := bullet_of(lines[0].text)) is not None:
            indent = len(lines[0].text) - len(lines[0].text.lstrip())
            spans[0] = (min(lines[0].start + item.width - indent, lines[0].end), lines[0].end)
            shown = shown[item.width - indent :]
            label = label or item.label
        if not shown.strip() or not any(start < end for start, end in spans):
            return
        depth = 1 if is_item else 0
        series = series_of(lines[0].text.split(maxsplit=1)[0]) if is_item else "-"
        introduced = self.leads.enter(depth, series)
        if introduced.by is not None:
            self.blocks[introduced.by] = replace(self.blocks[introduced.by], introduces_list=True)
        self.blocks.append(
            Block(
                lines=tuple(span for span in spans if span[0] < span[1]),
                kind=ClauseKind.LIST_ITEM if is_item else ClauseKind.SENTENCE,
                heading_path=tuple(heading for _, heading in self.headings),
                lead=introduced.lead if is_item else None,
                label=label,
            )
        )
        self.leads.leave(depth, series, lead_of(shown), len(self.blocks) - 1)


def _split_items(paragraph: list[_Line]) -> list[list[_Line]]:
    groups: list[list[_Line]] = []
    for line in paragraph:
        if not groups or _BULLET.match(line.text):
            groups.append([line])
        else:
            groups[-1].append(line)
    return groups


def _heading_level(line: _Line) -> int:
    """Guess the level of a line that stands alone: 0 for none, by its number, else 1."""
    shown = line.text.strip()
    if len(shown) > _MAX_HEADING or shown.endswith(_SENTENCE_ENDS) or line.text != line.text.lstrip():
        return 0
    if numbered := numbered_level(shown):
        return numbered
    if _BULLET.match(shown) or not (shown[0].isupper() or shown[0] == "§"):
        return 0
    return 1
