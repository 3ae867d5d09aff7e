"""What a DOCX document's paragraph styles say: headings, numbers, entries of a table of contents."""

import re
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from rulegen_dagster.specs.word_numbering import W, number_in, value_of

_HEADING = re.compile(r"heading ([1-9])\Z", re.IGNORECASE)
_CONTENTS = re.compile(r"toc [1-9]\Z|toc ?heading\Z|table of figures\Z", re.IGNORECASE)
_MAX_CHAIN = 12


@dataclass(frozen=True, kw_only=True)
class Style:
    """One paragraph style with all that it inherits; `level` is that of a heading, from 1."""

    level: int | None = None
    number: str | None = None
    number_level: int | None = None
    is_contents: bool = False
    is_hidden: bool = False


def styles_of(root: Element | None) -> dict[str, Style]:
    """Return the paragraph styles of `word/styles.xml` by their ids."""
    if root is None:
        return {}
    known = {style.get(f"{W}styleId", ""): style for style in root.iter(f"{W}style")}
    return {name: _resolved(name, known) for name in known}


def _resolved(name: str, known: dict[str, Element]) -> Style:
    level = number = number_level = None
    is_contents = is_hidden = False
    current: str | None = name
    for _ in range(_MAX_CHAIN):
        style = known.get(current or "")
        if style is None:
            break
        shown = value_of(style, "name") or ""
        properties = style.find(f"{W}pPr")
        listed = properties.find(f"{W}numPr") if properties is not None else None
        heading = _HEADING.match(shown)
        outline = number_in(properties, "outlineLvl")
        if level is None and (heading or shown.lower() == "title"):
            level = int(heading[1]) if heading else 1
        elif level is None and outline is not None and 0 <= outline < 9:
            level = outline + 1
        number = number or value_of(listed, "numId")
        number_level = number_in(listed, "ilvl") if number_level is None else number_level
        is_contents = is_contents or bool(_CONTENTS.match(shown))
        is_hidden = is_hidden or is_on(style.find(f"{W}rPr"), "vanish")
        current = value_of(style, "basedOn")
    return Style(level=level, number=number, number_level=number_level, is_contents=is_contents, is_hidden=is_hidden)


def is_on(properties: Element | None, name: str) -> bool:
    """Tell whether a switch such as `w:vanish` is set: present, and not turned off."""
    if properties is None or properties.find(f"{W}{name}") is None:
        return False
    return value_of(properties, name) not in ("0", "false", "off")
