"""Guarded writes: one conditional update for each of many rows, and what is written for a row by its verdict.

The hot path of the ledger. The statements are compiled once; what a turn costs is then the database's work alone.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from types import UnionType
from typing import Any, get_args

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.types import TypeEngine

from rulegen_dagster.ledger.batch import batch_query, rows_of
from rulegen_dagster.ledger.compiled import Compiled, driver_errors, sent, with_literals
from rulegen_dagster.ledger.database import Database

Columns = Mapping[str, sa.ColumnElement[Any]]
"""The values of one row, by name, as a statement refers to them."""

Guard = Callable[[Columns], sa.Update]
Change = Callable[[Columns, sa.ColumnElement[bool]], sa.Update]
"""Makes an update from a row and from whether the guarded update landed on it."""


@dataclass(frozen=True, kw_only=True)
class Addition:
    """One more row of a table, for each row on which the guarded update landed."""

    table: sa.Table
    values: Callable[[Columns], Columns]


Verdicts = Callable[[], list[bool]]
"""Waits for the database's answer, and returns for each row whether the guarded update landed."""

_TYPES: dict[type, type[TypeEngine[Any]]] = {int: sa.BigInteger, str: sa.Text, bool: sa.Boolean}


class GuardedWrites:
    """A guarded update and the writes that follow it, for any number of rows; each row is decided by itself.

    SQLite, which answers in place, runs each statement row by row. To PostgreSQL every statement is a wait for its
    answer, so it gets the rows as one document and all writes as one statement; they do not see each other's changes
    there.
    """

    def __init__(
        self, database: Database, row: type[tuple[Any, ...]], guard: Guard, *writes: Change | Addition
    ) -> None:
        """Prepare for rows of the named tuple `row`, whose fields are numbers, texts and flags.

        Other bind parameters of the statements have one value for all rows. Compiled when they are first run.
        """
        self._dialect = database.engine.dialect
        self._columns = {name: _column_type(annotation) for name, annotation in row.__annotations__.items()}
        self._guard = guard
        self._writes = writes

    def run(self, connection: Connection, rows: Sequence[tuple[Any, ...]], **shared: Any) -> list[bool]:
        """Return for each row whether the guarded update landed. `shared` holds the parameters that are not a row's."""
        return self.send(connection, rows, **shared)()

    def send(self, connection: Connection, rows: Sequence[tuple[Any, ...]], **shared: Any) -> Verdicts:
        """Do the same, and return how to get the verdicts (see `compiled.sent_together`)."""
        if self._dialect.name == "sqlite":
            landed = self._run_in_place(connection, rows, shared)
            return lambda: landed
        names = ("number", *self._columns)
        document = rows_of(dict(zip(names, (number, *row), strict=True)) for number, row in enumerate(rows))
        compiled = self._in_one
        answer = sent(connection, compiled.text, compiled.values({**shared, "rows": document}))

        def verdicts() -> list[bool]:
            numbers = {number for (number,) in answer()}
            return [number in numbers for number in range(len(rows))]

        return verdicts

    def _run_in_place(
        self, connection: Connection, rows: Sequence[tuple[Any, ...]], shared: Mapping[str, Any]
    ) -> list[bool]:
        guard, *statements = self._row_by_row
        rows = self._stored(rows)
        with driver_errors(connection), closing(connection.connection.cursor()) as cursor:
            # An update of many rows would tell how many have changed, and not which.
            landed = [cursor.execute(guard.text, values).rowcount == 1 for values in guard.filled(rows, shared)]
            decided = [(*row, int(has_landed)) for row, has_landed in zip(rows, landed, strict=True)]
            on_landed = list(compress(decided, landed))
            for write, statement in zip(self._writes, statements, strict=True):
                wanted = on_landed if isinstance(write, Addition) else decided
                cursor.executemany(statement.text, statement.filled(wanted, shared))
        return landed

    def _stored(self, rows: Sequence[tuple[Any, ...]]) -> Sequence[tuple[Any, ...]]:
        # The driver looks, at length, for an adapter of each value that is not exactly of a type that it stores.
        for place, type_ in enumerate(self._columns.values()):
            if type_ is sa.Boolean:
                rows = [(*row[:place], int(row[place]), *row[place + 1 :]) for row in rows]
        return rows

    @cached_property
    def _row_by_row(self) -> list["_RowByRow"]:
        row = {name: sa.bindparam(f"row_{name}", type_=type_) for name, type_ in self._columns.items()}
        landed = sa.bindparam("row_landed", type_=sa.Boolean)
        statements = [self._guard(row), *(_on_row(write, row, landed) for write in self._writes)]
        names = [*(f"row_{name}" for name in row), "row_landed"]
        guard, *writes = (Compiled(with_literals(statement), self._dialect) for statement in statements)
        return [_RowByRow(guard, names[:-1]), *(_RowByRow(write, names) for write in writes)]

    @cached_property
    def _in_one(self) -> Compiled:
        given = batch_query("postgresql", "rows", number=sa.Integer, **self._columns).cte("given")
        landed = with_literals(self._guard(dict(given.c)), given).returning(given.c.number).cte("landed")
        decided = (
            sa.select(*given.c, landed.c.number.is_not(None).label("landed"))
            .select_from(given.outerjoin(landed, given.c.number == landed.c.number))
            .cte("decided")
        )
        row = dict(decided.c)
        written = [
            with_literals(_on_rows(write, row, decided.c.landed), decided).cte(f"written_{place}")
            for place, write in enumerate(self._writes)
        ]
        return Compiled(sa.select(landed.c.number).add_cte(*written), self._dialect)


class _RowByRow:
    """A statement that is run once for each row, with its parameters by their places."""

    def __init__(self, compiled: Compiled, names: Sequence[str]) -> None:
        self.text = compiled.text
        self._compiled = compiled
        # A row's parameters are its own values, and those that all rows share.
        self._others = tuple(dict.fromkeys(name for name in compiled.places if name not in names))
        place_of = {name: place for place, name in enumerate((*names, *self._others))}
        self._in_order = operator.itemgetter(*(place_of[name] for name in compiled.places))

    def filled(self, rows: Sequence[tuple[Any, ...]], shared: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Return each row's parameters."""
        in_order, values = self._in_order, self._compiled.values(shared)
        others = tuple(int(value) if isinstance(value, bool) else value for value in map(values.get, self._others))
        return [in_order(row + others) for row in rows]


def _on_row(write: Change | Addition, row: Columns, landed: sa.ColumnElement[bool]) -> sa.Insert | sa.Update:
    """Return the statement for one row; one that adds is run for landed rows alone."""
    if not isinstance(write, Addition):
        return write(row, landed)
    return sa.insert(write.table).values(write.values(row)).inline()


def _on_rows(write: Change | Addition, row: Columns, landed: sa.ColumnElement[bool]) -> sa.Insert | sa.Update:
    """Return the statement for many rows."""
    if not isinstance(write, Addition):
        return write(row, landed)
    values = write.values(row)
    return sa.insert(write.table).from_select([*values], sa.select(*values.values()).where(landed))


def _column_type(annotation: Any) -> type[TypeEngine[Any]]:
    named = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    (type_,) = (_TYPES[one] for one in named if one in _TYPES)
    return type_
