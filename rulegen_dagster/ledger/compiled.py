"""Compiled statements: the hot path's way to the driver, with nothing to build or to look up again in a turn.

For statements inside an open transaction alone: whatever begins one goes through SQLAlchemy.
"""

import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Generic, TypeVar, cast

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql import visitors
from sqlalchemy.sql.compiler import SQLCompiler

from rulegen_dagster.ledger.database import Database

Answer = Callable[[], list[tuple[Any, ...]]]
"""Waits for a statement's answer and returns its rows; inside `sent_together` it may be asked after the block alone."""


Statement = TypeVar("Statement", bound=sa.ClauseElement)
Row = TypeVar("Row")


class Compiled:
    """A statement's text, and the values of its parameters that are fixed or come from a clock."""

    def __init__(self, statement: sa.ClauseElement, dialect: sa.Dialect) -> None:
        """Compile for the dialect."""
        compiled = cast(SQLCompiler, statement.compile(dialect=dialect))
        self.text = compiled.string
        self.places = tuple(compiled.positiontup or ())
        """The parameters in the order of their places, for a driver that takes them so."""
        binds = {name: bind for bind, name in compiled.bind_names.items()}
        self._fixed = {name: bind.value for name, bind in binds.items() if not bind.required and not bind.callable}
        self._read = {name: bind for name, bind in binds.items() if bind.callable}
        self._shared = {name for name, bind in binds.items() if bind.required}

    def values(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return every parameter's value by name; what is given and not asked for is left out."""
        return {
            **self._fixed,
            **{name: bind.effective_value for name, bind in self._read.items()},
            **{name: value for name, value in given.items() if name in self._shared},
        }


def with_literals(statement: Statement, *untouched: sa.ClauseElement) -> Statement:
    """Write what never changes into the text: a parameter is bound again for each row, and hidden from a planner.

    `untouched` are the parts of a greater statement that this one refers to, which have to stay the same objects.
    """

    def literal(element: Any, **_options: Any) -> sa.ColumnElement[Any] | None:
        if not isinstance(element, sa.BindParameter) or element.required or element.callable is not None:
            return None
        match element.value:
            case bool():
                return None
            case int() as number:
                return sa.literal_column(str(int(number)), element.type)
            case str() as text:
                quoted = str(text).replace("'", "''")
                return sa.literal_column(f"'{quoted}'", element.type)
            case _:
                return None

    return cast(Statement, visitors.replacement_traverse(statement, {"stop_on": list(untouched)}, literal))


class Query(Generic[Row]):
    """A query of the hot path, built and compiled when it is first asked; `make` makes the driver's tuples to rows."""

    def __init__(
        self, database: Database, build: Callable[[], sa.ClauseElement], make: Callable[[tuple[Any, ...]], Row]
    ) -> None:
        """Take what builds the statement for the database's dialect."""
        self._dialect = database.engine.dialect
        self._build = build
        self._make = make

    @cached_property
    def _compiled(self) -> Compiled:
        return Compiled(with_literals(self._build()), self._dialect)

    @cached_property
    def _in_order(self) -> Callable[[Mapping[str, Any]], tuple[Any, ...]] | None:
        places = self._compiled.places
        if not places:
            return None
        return operator.itemgetter(*places) if len(places) > 1 else lambda values: (values[places[0]],)

    def rows(self, connection: Connection, **parameters: Any) -> list[Row]:
        """Return all rows."""
        return self.send(connection, **parameters)()

    def send(self, connection: Connection, **parameters: Any) -> Callable[[], list[Row]]:
        """Send the statement and return how to get its rows."""
        values: Any = self._compiled.values(parameters)
        if self._in_order is not None:
            values = self._in_order(values)
        answer = sent(connection, self._compiled.text, values)
        return lambda: list(map(self._make, answer()))


def sent(connection: Connection, text: str, values: Any) -> Answer:
    """Send one statement of the driver's own; raises SQLAlchemy's errors, now or when the answer is asked for."""
    with driver_errors(connection):
        cursor = connection.connection.cursor()
        cursor.execute(text, values)

    def answer() -> list[tuple[Any, ...]]:
        with driver_errors(connection):
            rows = cast(list[tuple[Any, ...]], cursor.fetchall())
            cursor.close()
            return rows

    return answer


@contextmanager
def sent_together(connection: Connection) -> Iterator[None]:
    """Send the statements of the block without waiting for each one's answer.

    Only statements of this module and of `guarded` may stand in the block. They run in their order, each as if the one
    before it had been answered. To SQLite, which answers in place, it makes no difference.
    """
    driver: Any = connection.dialect.loaded_dbapi
    if connection.dialect.name != "postgresql" or not driver.Pipeline.is_supported():
        yield
        return
    opened: Any = connection.connection.driver_connection
    with driver_errors(connection), opened.pipeline():
        yield


@contextmanager
def driver_errors(connection: Connection) -> Iterator[None]:
    """Raise what the driver reports as SQLAlchemy's error, and give up a connection that is broken."""
    driver: Any = connection.dialect.loaded_dbapi
    try:
        yield
    except driver.Error as error:
        broken = not connection.invalidated and connection.dialect.is_disconnect(error, connection.connection, None)
        if broken:
            connection.invalidate(error)
        raise DBAPIError.instance(None, None, error, driver.Error, connection_invalidated=broken) from error
