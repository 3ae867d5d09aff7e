"""The hot path's own way to the driver says the same as SQLAlchemy's, and fails under the same names."""

from typing import NamedTuple

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from rulegen_dagster.domain.errors import LedgerError, LedgerFault
from rulegen_dagster.ledger.compiled import Query, sent_together, with_literals
from rulegen_dagster.ledger.guarded import Addition, Columns, GuardedWrites
from rulegen_dagster.ledger.schema import tenant
from rulegen_dagster.ledger.store import Ledger


class Renamed(NamedTuple):
    """A row of the guarded writes below: a tenant's new weight, where it has the old one, and then a copy of it."""

    name: str
    before: int
    weight: int
    limit: int | None
    is_early: bool


def renaming(ledger: Ledger) -> GuardedWrites:
    def change(row: Columns) -> sa.Update:
        return (
            sa.update(tenant)
            .where(tenant.c.tenant == row["name"], tenant.c.weight == row["before"])
            .values(weight=row["weight"], claim_limit=row["limit"])
        )

    def note(row: Columns, landed: sa.ColumnElement[bool]) -> sa.Update:
        noted = sa.update(tenant).where(tenant.c.tenant == row["name"] + "-note")
        return noted.values(created_at=sa.case((landed, 3), else_=4))

    def copy(row: Columns) -> Columns:
        return {
            "tenant": row["name"] + sa.bindparam("suffix", type_=sa.Text),
            "weight": row["weight"],
            "created_at": sa.case((row["is_early"], 7), else_=8),
        }

    return GuardedWrites(ledger.database, Renamed, change, note, Addition(table=tenant, values=copy))


def weights(ledger: Ledger) -> dict[str, tuple[int, int | None]]:
    with ledger.database.read() as connection:
        rows = connection.execute(sa.select(tenant.c.tenant, tenant.c.weight, tenant.c.claim_limit)).all()
    return {name: (weight, limit) for name, weight, limit in rows if name != "default"}


def creations(ledger: Ledger) -> dict[str, int]:
    with ledger.database.read() as connection:
        rows = connection.execute(sa.select(tenant.c.tenant, tenant.c.created_at)).all()
    return {name: at for name, at in rows if name.endswith(("copy", "note"))}


def test_each_row_is_decided_by_itself_and_what_follows_hears_of_it(ledger: Ledger) -> None:
    for name in ("a", "b", "c"):
        ledger.submissions.add_tenant(name)
        ledger.submissions.add_tenant(f"{name}-note")
    writes = renaming(ledger)

    with ledger.database.write() as connection:
        landed = writes.run(
            connection,
            [Renamed("a", 1, 5, 9, True), Renamed("b", 2, 6, None, True), Renamed("c", 1, 7, None, False)],
            suffix="-copy",
        )

    assert landed == [True, False, True]
    changed = {name: weight for name, weight in weights(ledger).items() if not name.endswith("-note")}
    assert changed == {"a": (5, 9), "a-copy": (5, None), "b": (1, None), "c": (7, None), "c-copy": (7, None)}
    assert creations(ledger) == {"a-note": 3, "b-note": 4, "c-note": 3, "a-copy": 7, "c-copy": 8}


def test_a_query_gives_its_rows_as_they_were_asked_for(ledger: Ledger) -> None:
    name = sa.bindparam("name", type_=sa.Text)
    columns = (tenant.c.tenant, ledger.database.now, sa.literal("it's 5 % ?"))
    query = Query(
        ledger.database,
        lambda: sa.select(*columns).where(tenant.c.tenant == name),
        lambda row: (str(row[0]), int(row[1]), str(row[2])),
    )

    with ledger.database.write() as connection:
        found = query.rows(connection, name="default", whatever="else")
        nothing = query.rows(connection, name="nobody")

    with ledger.database.read() as connection:
        now = connection.execute(sa.select(ledger.database.now)).scalar_one()
    assert found == [("default", now, "it's 5 % ?")]
    assert nothing == []


def test_what_never_changes_is_written_into_the_text(ledger: Ledger) -> None:
    given = sa.bindparam("given", type_=sa.Text)
    statement = sa.select(tenant.c.tenant).where(
        tenant.c.tenant != given, tenant.c.weight == 3, tenant.c.tenant > "it's"
    )

    text = str(with_literals(statement).compile(dialect=ledger.database.engine.dialect))

    assert "weight = 3" in text
    assert "tenant > 'it''s'" in text
    assert "'given'" not in text


def test_statements_that_are_sent_together_run_in_their_order(ledger: Ledger) -> None:
    for name in ("a", "b"):
        ledger.submissions.add_tenant(name)
    writes = renaming(ledger)
    counted = Query(ledger.database, lambda: sa.select(sa.func.count()).where(tenant.c.weight == 4), tuple)

    with ledger.database.write() as connection:
        with sent_together(connection):
            first = writes.send(connection, [Renamed("a", 1, 4, None, False)], suffix="-copy")
            between = counted.send(connection)
            second = writes.send(connection, [Renamed("b", 1, 4, None, False)], suffix="-copy")
            after = counted.send(connection)
        answers = (first(), between(), second(), after())

    assert answers == ([True], [(2,)], [True], [(4,)])


def test_a_refusal_among_them_is_the_ledgers_and_nothing_of_them_stays(ledger: Ledger) -> None:
    for name in ("a", "b"):
        ledger.submissions.add_tenant(name)
    writes = renaming(ledger)

    def weigh_below_nothing() -> None:
        with ledger.database.write() as connection, sent_together(connection):
            writes.send(connection, [Renamed("a", 1, 4, None, False)], suffix="-copy")
            writes.send(connection, [Renamed("b", 1, -1, None, False)], suffix="-copy")

    with pytest.raises(LedgerError) as caught:
        weigh_below_nothing()

    assert caught.value.fault is LedgerFault.REFUSED
    assert isinstance(caught.value.__cause__, DBAPIError)
    assert weights(ledger) == {"a": (1, None), "b": (1, None)}
