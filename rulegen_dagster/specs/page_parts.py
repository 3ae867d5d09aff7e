"""The elements of a web page: which begin a new line, which are shown, and the text of one cell."""

import re

from selectolax.lexbor import LexborNode

from rulegen_dagster.specs.assembly import cleaned

VOID = frozenset("area base br col embed hr img input link meta source track wbr".split())
"""Elements that never have a closing tag."""

BLOCKS = frozenset(
    (
        "address article aside blockquote body caption center dd details dialog dir div dl dt fieldset figcaption"
        " figure footer form h1 h2 h3 h4 h5 h6 header hgroup hr html legend li main menu ol p pre section summary table"
        " tbody td tfoot th thead tr ul"
    ).split()
)
"""Elements that begin and end a paragraph; text on two sides of one never makes a sentence."""

_SKIPPED = frozenset(
    (
        "applet area audio base button canvas datalist embed frame frameset head iframe img input link map meta meter"
        " nav noembed noframes noscript object option optgroup param picture progress script select source style svg"
        " template textarea title track video"
    ).split()
)
_SKIPPED_ROLES = frozenset("navigation banner contentinfo search menu menubar toolbar tablist".split())
_HIDDEN_STYLE = re.compile(r"(?:display\s*:\s*none|visibility\s*:\s*hidden)", re.IGNORECASE)


def is_shown(node: LexborNode) -> bool:
    """Tell whether an element's text is the document's own: not code, not navigation, not hidden."""
    tag = node.tag or ""
    if tag in _SKIPPED:
        return False
    if tag == "pre" and (child := node.first_child) is not None and child.tag == "code":
        return False
    if tag == "footer" and not _inside_a_section(node):
        return False
    attributes = node.attributes
    if not attributes:
        return True
    return not (
        "hidden" in attributes
        or attributes.get("aria-hidden") == "true"
        or (attributes.get("role") or "") in _SKIPPED_ROLES
        or _HIDDEN_STYLE.search((attributes.get("style") or "")[:2000])
    )


def text_of(cell: LexborNode) -> str:
    """Return the visible text of a cell in one line; its paragraphs and items follow one another."""
    parts: list[str] = []
    nodes: list[LexborNode] = []
    node = cell.first_child
    while node is not None or nodes:
        if node is None:
            left = nodes.pop()
            if left.tag in BLOCKS:
                parts.append(" ")
            node = left.next
            continue
        if node.is_text_node:
            parts.append(node.text_content or "")
        elif node.is_element_node and is_shown(node):
            if node.tag in BLOCKS or node.tag == "br":
                parts.append(" ")
            if (child := node.first_child) is not None:
                nodes.append(node)
                node = child
                continue
        node = node.next
    return cleaned("".join(parts))


def _inside_a_section(node: LexborNode) -> bool:
    parent = node.parent
    while parent is not None:
        if parent.tag in ("article", "main", "section", "blockquote"):
            return True
        parent = parent.parent
    return False
