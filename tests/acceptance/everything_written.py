"""Everything that processes wrote, as pieces of text with the place where each stands."""

import contextlib
import sqlite3
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import sql


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One piece of text; `place` names a kind of place: a column of the ledger, a folder of the home, a stream."""

    place: str
    text: str


def of_postgres(url: str) -> Iterator[Piece]:
    """Return every value of every table."""
    with psycopg.connect(url) as connection:
        columns = connection.execute(
            "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public'"
        ).fetchall()
        for table, column in columns:
            query = sql.SQL("SELECT {}::text FROM {} WHERE {} IS NOT NULL").format(
                sql.Identifier(column), sql.Identifier(table), sql.Identifier(column)
            )
            for (text,) in connection.execute(query):
                yield Piece(place=f"ledger {table}.{column}", text=text)


def of_sqlite(path: Path, name: str) -> Iterator[Piece]:
    """Return every value of every table of a database of Dagster's, unpacked where it is compressed."""
    connection = sqlite3.connect(path)
    try:
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            rows = connection.execute(f'SELECT * FROM "{table}"')  # noqa: S608 (a name that the database gave)
            names = [described[0] for described in rows.description]
            for row in rows:
                # An event's row is judged by the type of its event.
                kind = dict(zip(names, row, strict=True)).get("dagster_event_type")
                for column, value in zip(names, row, strict=True):
                    if value is not None:
                        yield Piece(place=f"{name} {table}.{kind or column}", text=_text(value))
    finally:
        connection.close()


def of_files(root: Path) -> Iterator[Piece]:
    """Return every file below a folder, by the name of the folder in it that it lies in, and the names themselves."""
    for path in sorted(root.rglob("*")):
        inside = path.relative_to(root)
        yield Piece(place="file names", text=str(inside))
        if not path.is_file():
            continue
        if path.suffix == ".db":
            yield from of_sqlite(path, f"file {inside.parts[0]}")
        yield Piece(
            place=f"raw {inside.parts[0]}" if path.suffix.startswith(".db") else f"file {inside.parts[0]}",
            text=path.read_bytes().decode("utf-8", errors="replace"),
        )


def _text(value: object) -> str:
    if isinstance(value, bytes):
        with contextlib.suppress(zlib.error):
            value = zlib.decompress(value)
        return value.decode("utf-8", errors="replace")
    return str(value)
