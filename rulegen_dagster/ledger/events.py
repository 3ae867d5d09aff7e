"""Events: the append-only log of transitions, read in order and without a gap.

A row's number is given out when it is written, but the row becomes visible when its transaction commits. SQLite has one
writer at a time, so there numbers appear in order. On PostgreSQL a row can appear below one that was read already, and
a cursor that had passed it would lose it. `EventReader` therefore holds rows back until none can appear below them: it
notes the highest visible number and who is writing to the log at that moment (PostgreSQL lists them as holders of the
table's write lock, which a transaction takes before it gets a number and keeps until its rows are visible). Rows up to
that number are handed out once none of those writers is left; under load that is one look later, else at once.
"""

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rulegen_dagster.domain.states import Stage
from rulegen_dagster.domain.work import WorkKey, item_name
from rulegen_dagster.ledger.database import Database
from rulegen_dagster.ledger.schema import transition

_WRITERS = sa.text(
    "SELECT virtualtransaction FROM pg_locks WHERE locktype = 'relation' AND mode = 'RowExclusiveLock' AND granted"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    " AND relation = 'transition'::regclass"
)


@dataclass(frozen=True, kw_only=True)
class Event:
    """One transition: what went from which state to which, when (ms on the ledger's clock), why and by whom.

    `item` is set for work items (`generate_rules/rule-03`, `parse`) and actions (`publish`).
    """

    event_id: int
    at: int
    subject: str
    item: str | None
    from_state: str | None
    to_state: str
    cause: str
    actor: str


@dataclass(frozen=True, kw_only=True)
class EventBatch:
    """Events in order; `is_complete` tells that everything was told that began to be written before the last look."""

    events: tuple[Event, ...]
    is_complete: bool


class EventReader:
    """Reads one job's events from a cursor on; the cursor is the number of the last event that it handed out.

    Another reader that begins at this cursor goes on exactly there.
    """

    def __init__(self, database: Database, job_id: int, *, after: int = 0, limit: int = 1_000) -> None:
        """Begin behind event `after`; hand out at most `limit` events at once."""
        self._database = database
        self._job_id = job_id
        self._limit = limit
        self._noted: tuple[int, frozenset[str]] | None = None
        self.cursor = after

    def read(self) -> EventBatch:
        """Return the next events whose order is settled."""
        with self._database.read() as connection:
            highest = self._highest(connection)
            settled, is_quiet = self._settled(connection, highest)
            rows = connection.execute(
                sa.select(transition)
                .where(
                    transition.c.job_id == self._job_id,
                    transition.c.transition_id > self.cursor,
                    transition.c.transition_id <= settled,
                )
                .order_by(transition.c.transition_id)
                .limit(self._limit)
            ).all()
        if rows:
            self.cursor = rows[-1].transition_id
        is_complete = is_quiet and settled >= highest and len(rows) < self._limit
        return EventBatch(events=tuple(map(_event, rows)), is_complete=is_complete)

    def _highest(self, connection: Connection) -> int:
        query = sa.select(sa.func.max(transition.c.transition_id)).where(transition.c.job_id == self._job_id)
        return connection.execute(query).scalar_one() or 0

    def _settled(self, connection: Connection, highest: int) -> tuple[int, bool]:
        """Return up to which number the order is settled, and whether the writers of the last look are gone."""
        if self._database.dialect == "sqlite":
            return highest, True
        # Asked after the highest number: whoever could still write below it is among them.
        writers = frozenset(connection.execute(_WRITERS).scalars())
        noted = self._noted
        if not writers:
            self._noted = None
            return highest, True
        if noted is None or not noted[1] & writers:
            self._noted = (highest, writers)
        if noted is None or noted[1] & writers:
            return self.cursor, False
        return noted[0], True


def latest_job_event(database: Database, job_id: int) -> Event | None:
    """Return how the job came into its state; an extension of its deadline leaves it where it is."""
    return _latest(
        database,
        transition.c.job_id == job_id,
        transition.c.subject == "job",
        transition.c.from_state.is_distinct_from(transition.c.to_state),
    )


def latest_item_event(database: Database, key: WorkKey) -> Event | None:
    """Return an item's last transition, or None where nothing has happened to it since its stage opened."""
    return _latest(
        database,
        transition.c.job_id == key.job_id,
        transition.c.subject == "work_item",
        transition.c.stage == key.stage.value,
        transition.c.subject_key == key.item_key,
    )


def _latest(database: Database, *conditions: sa.ColumnElement[bool]) -> Event | None:
    newest = sa.select(transition).where(*conditions).order_by(transition.c.transition_id.desc()).limit(1)
    with database.read() as connection:
        row = connection.execute(newest).first()
    return _event(row) if row else None


def _event(row: sa.Row[Any]) -> Event:
    item = row.stage
    if row.stage is not None and row.subject != "action":
        item = item_name(Stage(row.stage), row.subject_key)
    return Event(
        event_id=row.transition_id,
        at=row.at,
        subject=row.subject,
        item=item,
        from_state=row.from_state,
        to_state=row.to_state,
        cause=row.cause,
        actor=row.actor,
    )
