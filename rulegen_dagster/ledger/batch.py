"""Batches: many rows as one JSON parameter, so that a statement's text and cost of compiling do not grow with them."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql.selectable import FromClause
from sqlalchemy.types import TypeEngine


def batch(dialect: str, parameter: str, **columns: type[TypeEngine[Any]]) -> FromClause:
    """Return a table of the named columns that reads its rows from the bind parameter `parameter`.

    Fill it with `rows_of`. SQLite and PostgreSQL unpack JSON by different functions; both give the same table.
    """
    return batch_query(dialect, parameter, **columns).subquery(f"{parameter}_rows")


def batch_query(dialect: str, parameter: str, **columns: type[TypeEngine[Any]]) -> sa.Select[Any]:
    """Return the query behind `batch`."""
    if dialect == "sqlite":
        each = sa.func.json_each(sa.bindparam(parameter, type_=sa.Text)).table_valued("value", name=f"{parameter}_each")
        unpacked = [
            sa.type_coerce(sa.func.json_extract(each.c.value, f"$.{name}"), type_).label(name)
            for name, type_ in columns.items()
        ]
        return sa.select(*unpacked).select_from(each)
    document = sa.cast(sa.bindparam(parameter, type_=sa.Text), sa.JSON)
    each = (
        sa.func.json_to_recordset(document)
        .table_valued(*(sa.column(name, type_) for name, type_ in columns.items()), name=f"{parameter}_each")
        .render_derived(with_types=True)
    )
    # Takes nothing away, but the planner now expects a few rows and not a hundred, and looks items up by their index
    # where it would read a whole table.
    return sa.select(*each.c).limit(sa.func.json_array_length(document))


def rows_of(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the value of a batch parameter."""
    return json.dumps(list(rows), ensure_ascii=False, separators=(",", ":"))
