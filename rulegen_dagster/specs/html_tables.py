"""Tables of a web page: rows of data with their headers, merged cells repeated; tables for layout are told apart."""

from collections.abc import Iterator, Sequence

from selectolax.lexbor import LexborNode

from rulegen_dagster.specs.assembly import Assembly
from rulegen_dagster.specs.page_parts import is_shown, text_of
from rulegen_dagster.specs.table_grid import Cell, Grid, joined_header

_MAX_SPAN = 1_000
_GROUPS = ("thead", "tbody", "tfoot")


def is_data_table(table: LexborNode) -> bool:
    """Tell whether a table holds data: it has two columns somewhere, no table inside and no heading."""
    attributes = table.attributes
    if (attributes.get("role") or "") in ("presentation", "none"):
        return False
    if table.css_first("table table, table h1, table h2, table h3, table h4") is not None:
        return False
    return any(len(_cells(row)) > 1 for row, _ in _rows(table))


def read_table(table: LexborNode, path: str, assembly: Assembly) -> None:
    """Give each row of data to the assembly with the names of its columns."""
    grid = Grid()
    header_rows: list[Sequence[str]] = []
    header: tuple[str, ...] = ()
    in_head = True
    for number, (row, in_thead) in enumerate(_rows(table), 1):
        cells = _cells(row)
        values = grid.add([Cell(text_of(cell), *_spans(cell)) for cell in cells])
        in_head = in_head and bool(cells) and (in_thead or all(cell.tag == "th" for cell in cells))
        if in_head:
            header_rows.append(values)
            header = joined_header(header_rows)
        else:
            assembly.row(values, f"{path}/tr[{number}]", header=header)
    assembly.break_list()


def _rows(table: LexborNode) -> Iterator[tuple[LexborNode, bool]]:
    for part in _children(table):
        if part.tag == "tr":
            yield part, False
        elif part.tag in _GROUPS:
            yield from ((row, part.tag == "thead") for row in _children(part) if row.tag == "tr")


def _cells(row: LexborNode) -> list[LexborNode]:
    return [cell for cell in _children(row) if cell.tag in ("td", "th")]


def _children(node: LexborNode) -> Iterator[LexborNode]:
    child = node.first_child
    while child is not None:
        if child.is_element_node and is_shown(child):
            yield child
        child = child.next


def _spans(cell: LexborNode) -> tuple[int, int]:
    attributes = cell.attributes
    return _span(attributes.get("colspan")), _span(attributes.get("rowspan"))


def _span(value: str | None) -> int:
    return (
        min(int(value), _MAX_SPAN)
        if value and value.isascii() and value.isdigit() and len(value) < 6 and int(value)
        else 1
    )
