"""HTML to canonical text and blocks: every visible text of the page, whatever element it stands in.

Nothing is fetched and nothing is run. Scripts, styles, navigation, forms' controls and hidden elements give no text.
"""

import codecs
import re
from dataclasses import dataclass, field
from typing import NamedTuple

from selectolax.lexbor import LexborHTMLParser, LexborNode

from rulegen_dagster.domain.source_map import PlaceUnit
from rulegen_dagster.specs.assembly import Assembly, Reading, cleaned
from rulegen_dagster.specs.html_tables import is_data_table, read_table
from rulegen_dagster.specs.list_numbers import numeral
from rulegen_dagster.specs.page_parts import BLOCKS, VOID, is_shown
from rulegen_dagster.specs.refusals import Refusal, refused

MAX_DEPTH = 256
"""Deepest nesting of elements; pages made by hand or by a generator stay below 60."""

_MAX_OPEN = 2_000
_TAG = re.compile(rb"<(/?)([a-zA-Z][a-zA-Z0-9]{0,15})")
_CLOSES_ITSELF = VOID | frozenset(
    "p li dt dd tr td th thead tbody tfoot option optgroup colgroup caption rt rp".split()
)
_CHARSET = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([a-zA-Z0-9_-]{1,40})", re.IGNORECASE)
_CHARSETS = frozenset(("utf-8", "iso8859-1", "iso8859-15", "cp1252", "ascii", "shift_jis", "euc_jp"))
_READ_AS = {"iso8859-1": "cp1252", "ascii": "cp1252"}
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_KINDS = {"a": "lowerLetter", "A": "upperLetter", "i": "lowerRoman", "I": "upperRoman"}


def read_html(data: bytes) -> Reading:
    """Read a page. Raises `SpecError` (`wrong_encoding`, `too_deep`, `too_large`, `too_many_lines`).

    A pure function, but the parser is native code and its time may be quadratic: call it through `read_apart`.
    """
    _refuse_deep(data)
    page = LexborHTMLParser(_decoded(data))
    walk = _Walk(Assembly(unit=PlaceUnit.ELEMENT))
    if page.body is not None:
        walk.over(page.body)
    return walk.assembly.finish()


def _decoded(data: bytes) -> str:
    """Decode by the byte order mark, else by what the page declares, else as UTF-8."""
    declared = _CHARSET.search(data[:2048])
    name = "utf-8"
    if declared and not data.startswith(codecs.BOM_UTF8):
        try:
            name = codecs.lookup(declared[1].decode("ascii")).name
        except LookupError:
            name = ""
        if name not in _CHARSETS:
            raise refused(
                Refusal.WRONG_ENCODING, "the page declares a character set that is not read here; save it as UTF-8"
            )
    try:
        return data.removeprefix(codecs.BOM_UTF8).decode(_READ_AS.get(name, name))
    except UnicodeDecodeError as error:
        raise refused(
            Refusal.WRONG_ENCODING,
            f"byte {error.start} of the page cannot be decoded as {name}; save it as UTF-8",
        ) from None


def _refuse_deep(data: bytes) -> None:
    """Refuse runs of unclosed elements before the parser sees them: its time grows with depth times length."""
    unclosed: dict[bytes, int] = {}
    depth = 0
    for slash, name in _TAG.findall(data):
        tag = name.lower()
        known = unclosed.get(tag, 0)
        if slash:
            if known:
                unclosed[tag] = known - 1
                depth -= 1
        elif tag.decode() not in _CLOSES_ITSELF:
            unclosed[tag] = known + 1
            depth += 1
            if depth > _MAX_OPEN:
                raise _too_deep()


def _too_deep() -> Exception:
    return refused(Refusal.TOO_DEEP, f"elements are nested deeper than {MAX_DEPTH} levels; flatten them")


@dataclass
class _List:
    """One open list: the kind of its numbers (none for bullets) and the next one."""

    kind: str | None
    series: str
    number: int = 1
    label: str | None = None


class _Open(NamedTuple):
    """One open element: its path for people, the counts of its children so far, and whether it is a list."""

    path: str
    counts: dict[str, int]
    is_list: bool


@dataclass
class _Walk:
    """Walks the elements once, without recursion, and cuts the text at every block."""

    assembly: Assembly
    text: list[str] = field(default_factory=list)
    lists: list[_List] = field(default_factory=list)
    level: int = 0
    place: str = ""
    item_started: bool = False
    list_count: int = 0

    def over(self, body: LexborNode) -> None:
        """Take the whole page."""
        opened: list[_Open] = [_Open("body", {}, is_list=False)]
        node = body.first_child
        nodes: list[LexborNode] = []
        self.place = "body"
        while True:
            if node is None:
                self._leave(opened.pop(), nodes[-1] if nodes else body, opened)
                if not nodes:
                    return
                node = nodes.pop().next
                continue
            child = self._enter(node, opened)
            if child is not None:
                nodes.append(node)
                node = child
            else:
                node = node.next

    def _enter(self, node: LexborNode, opened: list[_Open]) -> LexborNode | None:
        """Take one node; return its first child where the walk goes on inside."""
        if node.is_text_node:
            self.text.append(node.text_content or "")
            return None
        tag = node.tag or ""
        if not node.is_element_node or not is_shown(node):
            return None
        counts = opened[-1].counts
        counts[tag] = counts.get(tag, 0) + 1
        path = f"{opened[-1].path}/{tag}[{counts[tag]}]"
        if tag == "br":
            self.text.append("\n")
            return None
        if tag in BLOCKS:
            self._flush(path)
        if tag == "table" and is_data_table(node):
            read_table(node, path, self.assembly)
            return None
        if tag == "hr":
            self.assembly.break_list()
        child = node.first_child
        if child is None:
            return None
        if len(opened) > MAX_DEPTH:
            raise _too_deep()
        self._open(node, tag)
        # Words in bold are no place of their own: the path names the paragraph.
        inside = (
            _Open(path, {}, tag in ("ul", "ol")) if tag in BLOCKS else _Open(opened[-1].path, counts, is_list=False)
        )
        opened.append(inside)
        return child

    def _open(self, node: LexborNode, tag: str) -> None:
        if tag in _HEADINGS:
            self.level = _HEADINGS[tag]
        elif tag == "ul":
            self.lists.append(_List(None, self._series()))
        elif tag == "ol":
            attributes = node.attributes
            kind = _KINDS.get(attributes.get("type") or "1", "decimal")
            self.lists.append(_List(kind, self._series(), _number(attributes.get("start"), 1)))
        elif tag == "li" and self.lists:
            current = self.lists[-1]
            current.number = _number(node.attributes.get("value"), current.number)
            current.label = numeral(current.number, current.kind) if current.kind else None
            current.number += 1
            self.item_started = True

    def _series(self) -> str:
        self.list_count += 1
        return f"list {self.list_count}"

    def _leave(self, left: _Open, node: LexborNode, opened: list[_Open]) -> None:
        tag = node.tag or ""
        if tag in BLOCKS:
            self._flush(opened[-1].path if opened else "body")
        if tag in _HEADINGS:
            self.level = 0
        elif left.is_list and self.lists:
            self.lists.pop()

    def _flush(self, next_place: str) -> None:
        """End the paragraph that was being read."""
        place, self.place = self.place, next_place
        lines = [shown for line in "".join(self.text).split("\n") if (shown := cleaned(line))] if self.text else []
        self.text = []
        if not lines:
            return
        if self.level:
            self.assembly.heading(self.level, " ".join(lines), place)
            return
        current = self.lists[-1] if self.lists else None
        label = current.label if current else None
        mark = ""
        if current and self.item_started:
            mark = f"{label}." if label else "-"
        self.item_started = False
        self.assembly.paragraph(
            " ".join(lines),
            ((0, place),),
            depth=len(self.lists),
            label=label,
            mark=mark,
            series=current.series if current else None,
        )


def _number(value: str | None, default: int) -> int:
    return int(value) if value and re.fullmatch(r"-?[0-9]{1,6}", value) else default
