"""Guarded writes: one conditional update for each of many rows, and what is written for a row by its verdict.

The hot path of the ledger. The statements are compiled once; what a turn costs is then the database's work alone.
"""

import operator
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.types import TypeEngine

from rulegen_dagster.ledger.database import Database

Columns = Mapping[str, sa.ColumnElement[Any]]
"""The values of one row, by name, as a statement refers to them."""

Guard = Callable[[Columns], sa.Update]
Write = Callable[[Columns, sa.ColumnElement[bool]], sa.Insert | sa.Update]
"""Makes a statement from a row and from whether the guarded update landed on it."""


class GuardedWrites:
    """A guarded update and the writes that follow it, for any number of rows; each row is decided by itself.

    SQLite, which answers in place, runs each statement row by row. To PostgreSQL every statement is a wait for its
    answer, so it gets the rows as arrays and all writes as one statement; they do not see each other's changes there.
    """

    def __init__(self, database: Database, columns: Mapping[str, type[TypeEngine[Any]]], guard: Guard, *writes: Write):
        """Compile the statements for the database; other bind parameters in them have one value for all rows."""
        self._columns = tuple(columns)
        self._in_place = database.dialect == "sqlite"
        statements: list[sa.ClauseElement]
        if self._in_place:
            row = {name: sa.bindparam(f"row_{name}", type_=type_) for name, type_ in columns.items()}
            landed = sa.bindparam("row_landed", type_=sa.Boolean)
            statements = [guard(row), *(write(row, landed) for write in writes)]
        else:
            statements = [_in_one_statement(columns, guard, writes)]
        self._compiled = [_Compiled(statement, database.engine.dialect) for statement in statements]

    def run(self, connection: Connection, rows: Sequence[Mapping[str, Any]], **shared: Any) -> list[bool]:
        """Return for each row whether the guarded update landed. `shared` holds the parameters that are not a row's."""
        if self._in_place:
            return self._run_in_place(connection, rows, shared)
        (compiled,) = self._compiled
        arrays = {f"row_{name}": [row[name] for row in rows] for name in self._columns}
        landed = set(connection.exec_driver_sql(compiled.text, compiled.values(shared) | arrays).scalars())
        return [number in landed for number in range(1, len(rows) + 1)]

    def _run_in_place(
        self, connection: Connection, rows: Sequence[Mapping[str, Any]], shared: Mapping[str, Any]
    ) -> list[bool]:
        guard, *writes = self._compiled
        shared = {name: _stored(value) for name, value in shared.items()}
        named = [{f"row_{name}": _stored(row[name]) for name in self._columns} for row in rows]
        # SQLAlchemy would tell the number of all rows that an update of many has changed, and not which.
        cursor = connection.connection.cursor()
        try:
            fixed = guard.values(shared)
            landed = [cursor.execute(guard.text, guard.in_order(fixed | row)).rowcount == 1 for row in named]
            for row, has_landed in zip(named, landed, strict=True):
                row["row_landed"] = _stored(has_landed)
            for write in writes:
                fixed = write.values(shared)
                cursor.executemany(write.text, [write.in_order(fixed | row) for row in named])
        except sqlite3.Error as error:
            raise DBAPIError.instance(None, None, error, sqlite3.Error) from error
        finally:
            cursor.close()
        return landed


def _stored(value: Any) -> Any:
    # The driver looks, at length, for an adapter of each value that is not exactly of a type that it stores.
    return int(value) if value is True or value is False else value


class _Compiled:
    """A statement's text, and the values of its parameters that are fixed or come from a clock."""

    def __init__(self, statement: sa.ClauseElement, dialect: sa.Dialect) -> None:
        compiled = cast(SQLCompiler, statement.compile(dialect=dialect))
        self.text = compiled.string
        # SQLite's driver takes parameters by their places.
        self.in_order = operator.itemgetter(*(compiled.positiontup or [""]))
        binds = {name: bind for bind, name in compiled.bind_names.items()}
        self._fixed = {name: bind.value for name, bind in binds.items() if not bind.required and not bind.callable}
        self._read = {name: bind for name, bind in binds.items() if bind.callable}
        self._shared = {name for name, bind in binds.items() if bind.required}

    def values(self, shared: Mapping[str, Any]) -> dict[str, Any]:
        return {
            **self._fixed,
            **{name: bind.effective_value for name, bind in self._read.items()},
            **{name: value for name, value in shared.items() if name in self._shared},
        }


def _in_one_statement(
    columns: Mapping[str, type[TypeEngine[Any]]], guard: Guard, writes: Sequence[Write]
) -> sa.ClauseElement:
    arrays = [sa.bindparam(f"row_{name}", type_=sa.ARRAY(type_)) for name, type_ in columns.items()]
    each = (
        sa.func.unnest(*arrays)
        .table_valued(*(sa.column(name, type_) for name, type_ in columns.items()), with_ordinality="number")
        .render_derived(name="each_row")
    )
    rows = sa.select(*each.c).cte("given")
    landed = guard(dict(rows.c)).returning(rows.c.number).cte("landed")
    decided = (
        sa.select(*rows.c, landed.c.number.is_not(None).label("landed"))
        .select_from(rows.outerjoin(landed, rows.c.number == landed.c.number))
        .cte("decided")
    )
    row = dict(decided.c)
    written = [write(row, decided.c.landed).cte(f"written_{number}") for number, write in enumerate(writes)]
    return sa.select(landed.c.number).add_cte(*written)
