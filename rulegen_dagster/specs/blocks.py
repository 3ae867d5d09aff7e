"""Blocks: the paragraphs, list items and table rows that a format yields, and same-length masks over their text.

A mask replaces characters one for one, so that an offset into masked text is an offset into the canonical text.
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

from rulegen_dagster.domain.clause import ClauseKind
from rulegen_dagster.specs.sentences import split_sentences

CUT = "\ue000"
"""Stands in masked text for characters that belong to no clause: comments, alert marks. A clause never spans one."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """One paragraph, list item or table row: the spans of its lines, without the marks of lists and quotes.

    `introduces_list` is true for a paragraph with a lead that stands directly before a list or table.
    """

    lines: tuple[tuple[int, int], ...]
    kind: ClauseKind
    heading_path: tuple[str, ...]
    lead: str | None = None
    label: str | None = None
    table_header: tuple[str, ...] = ()
    introduces_list: bool = False

    @property
    def start(self) -> int:
        """Where the block's first character stands in the canonical text."""
        return self.lines[0][0]

    @property
    def end(self) -> int:
        """Where the block ends in the canonical text (exclusive)."""
        return self.lines[-1][1]


_ALERT_MARK = re.compile(r"\[!(?:note|tip|important|warning|caution)\]", re.IGNORECASE)
_SHORTCODES = (("{{%", "%}}"), ("{{<", ">}}"), ("{%", "%}"))
_HIDDEN = (("<!--", "-->"), ("<script", "</script>"), ("<style", "</style>"))
_COLONS = (":", "\uff1a")
_MAX_LEAD = 1000
_MIN_LEAD_WORDS = 3
_EMPHASIS = str.maketrans("", "", "*_`")
_SPACES = re.compile(r"\s+")
_SKIPPED = frozenset(CUT + " \t\n")
_LABEL = re.compile(
    r"\s*(?P<label>\((?:\d{1,4}[a-z]?|[a-zA-Z]|[ivx]{1,5})\)|§+\s?\d{1,4}[a-z]?(?:\.\d{1,4})*"
    r"|\d{1,4}(?:\.\d{1,4})+(?!\s?(?:[€%]|eur|usd|us\$|cent|prozent|percent))(?=\.?(?:\s|[A-Z]))"
    r"|\d{1,3}(?=[.)]\s))[.)]?\s*",
    re.IGNORECASE,
)
"""A label. A decimal amount at the start of a sentence is none: its digits must stay in the clause's hash."""


def masked(text: str, block: Block) -> str:
    """Return a block's stretch of the canonical text, same length, with what is not its own text masked."""
    parts: list[str] = []
    position = block.start
    for start, end in block.lines:
        # Between two lines stand the newline, the indentation and the marks of block quotes.
        parts.append(" " * (start - position))
        parts.append(text[start:end])
        position = end
    shown = "".join(parts)
    alert = _ALERT_MARK.match(shown)
    if alert:
        shown = CUT * alert.end() + shown[alert.end() :]
    for opening, closing in _HIDDEN:
        shown = _cut_between(shown, opening, closing)
    return _cut_edges(shown)


def label_of(text: str) -> str | None:
    """Return the number that a paragraph begins with, such as `(2)`, `4.1.3` or `§ 3`, or None."""
    match = _LABEL.match(text)
    return _SPACES.sub(" ", match["label"]) if match else None


def lead_of(text: str) -> str | None:
    """Return the sentence at the end of a paragraph that introduces a list behind it, or None where none does.

    It ends with a colon or, as in laws, with no mark at all: "(2) No allowance is paid".
    """
    shown = text.rstrip()
    if not shown.endswith(_COLONS) and not _is_open(shown):
        return None
    start, end = split_sentences(shown)[-1]
    return shown[start:end] if end - start <= _MAX_LEAD else None


def _is_open(text: str) -> bool:
    # One or two words are a title in bold print rather than half a sentence.
    return text[-1:].isalnum() and len(text.split(maxsplit=_MIN_LEAD_WORDS)) >= _MIN_LEAD_WORDS


def normalized(text: str) -> str:
    """Return the form of a text that survives renumbering, re-wrapping and emphasis, for hashing only."""
    folded = unicodedata.normalize("NFKC", text)
    label = _LABEL.match(folded)
    folded = without_link_targets(folded[label.end() :] if label else folded)
    return _SPACES.sub(" ", folded.translate(_EMPHASIS)).strip().casefold()


def _cut_between(text: str, opening: str, closing: str) -> str:
    """Cut each stretch from an opening to its closing mark; an opening without a closing is ordinary text."""
    folded = text.lower() if len(text.lower()) == len(text) else text
    start = folded.find(opening)
    if start < 0:
        return text
    parts: list[str] = []
    position = 0
    while start >= 0:
        end = folded.find(closing, start + len(opening))
        if end < 0:
            break
        end += len(closing)
        parts += [text[position:start], CUT * (end - start)]
        position = end
        start = folded.find(opening, position)
    return "".join([*parts, text[position:]])


def _cut_edges(text: str) -> str:
    """Cut template shortcodes at the edges of a block; inside a sentence (a link, mostly) they stay."""
    left = _after_shortcodes(text)
    right = _before_shortcodes(text, left)
    return CUT * left + text[left:right] + CUT * (len(text) - right)


def _after_shortcodes(text: str) -> int:
    left = 0
    position = _skip_right(text, 0)
    while pair := next((pair for pair in _SHORTCODES if text.startswith(pair[0], position)), None):
        end = text.find(pair[1], position)
        if end < 0:
            break
        left = end + len(pair[1])
        position = _skip_right(text, left)
    return left


def _before_shortcodes(text: str, left: int) -> int:
    right = len(text)
    position = _skip_left(text, right, left)
    while pair := next((pair for pair in _SHORTCODES if text.endswith(pair[1], left, position)), None):
        start = text.rfind(pair[0], left, position)
        if start < 0:
            break
        right = start
        position = _skip_left(text, right, left)
    return right


def _skip_right(text: str, position: int) -> int:
    while position < len(text) and text[position] in _SKIPPED:
        position += 1
    return position


def _skip_left(text: str, position: int, left: int) -> int:
    while position > left and text[position - 1] in _SKIPPED:
        position -= 1
    return position


def without_link_targets(text: str) -> str:
    """Return a text without the targets of its Markdown links, whose words are not the text's."""
    parts: list[str] = []
    for piece, is_target in _split_link_targets(text):
        parts.append("]" if is_target else piece)
    return "".join(parts)


def _split_link_targets(text: str) -> Iterator[tuple[str, bool]]:
    position = 0
    while (start := text.find("](", position)) >= 0 and (end := text.find(")", start)) >= 0:
        yield text[position:start], False
        yield text[start : end + 1], True
        position = end + 1
    yield text[position:], False
