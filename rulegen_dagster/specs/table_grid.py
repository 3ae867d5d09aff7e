"""The grid of a table with merged cells: what a reader sees in each row and column."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

MAX_COLUMNS = 64
"""Most columns that are read of one table."""


class Cell(NamedTuple):
    """One cell as the format has it: its text, and over how many columns and rows it goes."""

    text: str
    columns: int = 1
    rows: int = 1


@dataclass
class Grid:
    """Places cells row by row; a cell that goes over several rows is read again in each: the row depends on it."""

    _held: dict[int, tuple[str, int]] = field(default_factory=dict)

    def add(self, cells: Sequence[Cell]) -> list[str]:
        """Return the texts of the next row, column by column; the further columns of a wide cell are empty."""
        values: dict[int, str] = {}
        held: dict[int, tuple[str, int]] = {}
        for column, (text, rows) in self._held.items():
            values[column] = text
            if rows > 1:
                held[column] = (text, rows - 1)
        column = 0
        for cell in cells:
            while column in values:
                column += 1
            for index in range(column, min(column + cell.columns, MAX_COLUMNS)):
                values[index] = cell.text if index == column else ""
                if cell.rows > 1:
                    held[index] = (values[index], cell.rows - 1)
            column += cell.columns
            if column >= MAX_COLUMNS:
                break
        self._held = held
        return [values.get(index, "") for index in range(max(values, default=-1) + 1)]


def joined_header(rows: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Return one name for each column out of one or more header rows."""
    width = max((len(row) for row in rows), default=0)
    columns = ([row[index] for row in rows if index < len(row) and row[index]] for index in range(width))
    return tuple(" / ".join(dict.fromkeys(names)) for names in columns)
