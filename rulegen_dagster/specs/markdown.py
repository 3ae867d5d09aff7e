"""Markdown to blocks, by the block grammar of markdown-it-py (CommonMark with tables).

Only block structure is read: inline markup is part of the text, which keeps offsets exact and the time linear.
Front matter, code, HTML blocks and link definitions give no blocks.
"""

from dataclasses import dataclass, field

from markdown_it import MarkdownIt
from markdown_it.token import Token

from rulegen_dagster.domain.clause import ClauseKind
from rulegen_dagster.specs.blocks import Block, label_of, lead_of
from rulegen_dagster.specs.refusals import Refusal, refused

MAX_NESTING = 60
"""Deepest nesting of lists and quotes, in levels of the parser (a list takes two)."""

_FRONT_MATTER_FENCES = ("---", "+++")


def markdown_blocks(text: str) -> list[Block]:
    """Return the blocks of a Markdown text, in order; raise `SpecError` (`too_deep`) beyond `MAX_NESTING`."""
    offset = _front_matter_end(text)
    tokens = _parser().parse(text[offset:])
    if any(token.level >= MAX_NESTING - 1 for token in tokens):
        raise refused(
            Refusal.TOO_DEEP,
            f"lists or quotes are nested deeper than {MAX_NESTING // 2} levels; flatten them",
        )
    reader = _Reader(text, offset)
    for index, token in enumerate(tokens):
        reader.read(token, tokens[index + 2] if index + 2 < len(tokens) else None)
    return reader.blocks


def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"maxNesting": MAX_NESTING}).enable("table")
    parser.disable(["inline", "text_join"])
    return parser


def _front_matter_end(text: str) -> int:
    for fence in _FRONT_MATTER_FENCES:
        first_line_end = text.find("\n")
        if first_line_end < 0 or text[:first_line_end].rstrip() != fence:
            continue
        position = first_line_end
        while (position := text.find("\n" + fence, position)) >= 0:
            line_end = text.find("\n", position + 1)
            line_end = len(text) if line_end < 0 else line_end
            if text[position + 1 : line_end].rstrip() == fence:
                return min(line_end + 1, len(text))
            position += 1
    return 0


@dataclass
class _Level:
    """One open list: the lead that its items inherit, and the number of the open item."""

    lead: str | None
    number: str | None = None
    item_lead: str | None = None


@dataclass
class _Reader:
    """Walks the tokens once and keeps what a clause inherits: headings, leads, labels, table headers."""

    text: str
    offset: int
    blocks: list[Block] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._line_starts = [self.offset]
        position = self.offset
        while (position := self.text.find("\n", position) + 1) > 0:
            self._line_starts.append(position)
        self._headings: list[tuple[int, str]] = []
        self._heading_level = 0
        self._lists: list[_Level] = []
        self._lead: str | None = None
        self._in_table = self._in_table_head = False
        self._cells: list[str] = []
        self._table_header: tuple[str, ...] = ()
        self._row_line = 0

    def read(self, token: Token, after_next: Token | None) -> None:
        """Take one token; `after_next` tells whether a list or table follows the paragraph whose text this token is."""
        kind = token.type
        if kind == "heading_open":
            self._heading_level = int(token.tag[1])
        elif kind in ("bullet_list_open", "ordered_list_open"):
            parent = self._lists[-1] if self._lists else None
            lead = (parent.item_lead or parent.lead) if parent else self._lead
            self._lists.append(_Level(lead=lead))
        elif kind in ("bullet_list_close", "ordered_list_close"):
            self._lists.pop()
            self._lead = None
        elif kind == "list_item_open":
            self._lists[-1].number = token.info or None
            self._lists[-1].item_lead = None
        elif kind in ("table_open", "table_close"):
            self._in_table = kind == "table_open"
            self._table_header = ()
            if not self._in_table:
                self._lead = None
        elif kind in ("thead_open", "thead_close"):
            self._in_table_head = kind == "thead_open"
        elif kind == "tr_open":
            self._cells = []
            self._row_line = token.map[0] if token.map else -1
        elif kind == "tr_close":
            self._end_row()
        elif kind == "inline":
            self._read_inline(token, after_next)
        elif kind in ("fence", "code_block", "html_block", "hr"):
            self._lead = None

    def _read_inline(self, token: Token, after_next: Token | None) -> None:
        if self._in_table:
            self._cells.append(token.content.strip())
        elif self._heading_level:
            kept = [heading for heading in self._headings if heading[0] < self._heading_level]
            self._headings = [*kept, (self._heading_level, " ".join(token.content.split()))]
            self._heading_level = 0
            self._lead = None
        elif token.map:
            self._add_paragraph(token, token.map[0], after_next)

    def _add_paragraph(self, token: Token, first_line: int, after_next: Token | None) -> None:
        lines = self._line_spans(first_line, token.content)
        if not lines:
            return
        content = token.content.strip()
        lead = lead_of(content)
        before_items = after_next is not None and after_next.type.endswith(("_list_open", "table_open"))
        level = self._lists[-1] if self._lists else None
        self.blocks.append(
            Block(
                lines=lines,
                kind=ClauseKind.LIST_ITEM if level else ClauseKind.SENTENCE,
                heading_path=self._path(),
                lead=level.lead if level else None,
                label=label_of(content) or (level.number if level else None),
                introduces_list=before_items and lead is not None,
            )
        )
        if level:
            level.item_lead = lead
        else:
            self._lead = lead

    def _end_row(self) -> None:
        if self._in_table_head:
            self._table_header = tuple(self._cells)
            return
        if self._row_line < 0 or not any(self._cells):
            return
        start, end = self._line(self._row_line)
        row = self.text[start:end]
        left = len(row) - len(row.lstrip(" \t>"))
        self.blocks.append(
            Block(
                lines=((start + left, start + len(row.rstrip())),),
                kind=ClauseKind.TABLE_ROW,
                heading_path=self._path(),
                lead=self._lists[-1].lead if self._lists else self._lead,
                table_header=self._table_header,
            )
        )

    def _path(self) -> tuple[str, ...]:
        return tuple(heading for _, heading in self._headings)

    def _line(self, number: int) -> tuple[int, int]:
        start = self._line_starts[number]
        following = number + 1
        return start, self._line_starts[following] - 1 if following < len(self._line_starts) else len(self.text)

    def _line_spans(self, first_line: int, content: str) -> tuple[tuple[int, int], ...]:
        """Find each line of a paragraph in the source: it is the tail of its source line, behind all marks."""
        spans: list[tuple[int, int]] = []
        for number, line in enumerate(content.split("\n"), first_line):
            start, end = self._line(number)
            source, shown = self.text[start:end].rstrip(), line.strip()
            if shown and source.endswith(shown):
                spans.append((start + len(source) - len(shown), start + len(source)))
        return tuple(spans)
