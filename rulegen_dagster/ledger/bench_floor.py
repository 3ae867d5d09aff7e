"""The floor: group commit written by hand, with nothing around it, as the measure of what a database can do.

Two tables, the completion guard of the ledger (running, same token, lease not passed, job not ended), plain statements
of the drivers, and one transaction for each turn of a bare loop. It keeps no attempts, no log, no retries and no
stages; `rulegen bench` measures it beside the engine.
"""

import asyncio
import json
import secrets
import sqlite3
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import psycopg
from sqlalchemy.engine import make_url

OUTPUT = json.dumps({"rule": "x" * 1_000}, separators=(",", ":"))
"""What each call returns: about 1 KB of JSON."""

_TABLES = (
    "CREATE TABLE floor_job (job BIGINT PRIMARY KEY, state TEXT NOT NULL, touched INTEGER NOT NULL DEFAULT 0)",
    (
        "CREATE TABLE floor_item (job BIGINT NOT NULL, item TEXT NOT NULL, ordinal INTEGER NOT NULL,"
        " state TEXT NOT NULL, token TEXT, lease_until BIGINT, output TEXT, PRIMARY KEY (job, item),"
        " CHECK ((state = 'running') = (token IS NOT NULL)), CHECK ((state = 'succeeded') = (output IS NOT NULL)))"
    ),
    "CREATE INDEX floor_open ON floor_item (job, ordinal) WHERE state = 'pending'",
    "INSERT INTO floor_job (job, state) VALUES (0, 'open')",
)

Held = tuple[str, str]
"""An item and the token of its claim."""


class _Store(Protocol):
    def open_job(self, job: int, count: int) -> None: ...

    def touch(self) -> None: ...

    def turn(self, job: int, finished: Sequence[Held], wanted: int) -> tuple[int, list[Held]]: ...

    def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class FloorRun:
    """One run of the floor: how long it took until every item was durable, and how often it called."""

    makespan_s: float
    calls: int


class Floor:
    """The floor's own tables in a scratch database; each run is a job of its own in them."""

    def __init__(self, url: str) -> None:
        """Make the tables. The URL is one of `scratch_database`, whose file or database no ledger uses."""
        self._store: _Store = _open(url)
        self._jobs = 0

    def run(self, count: int, *, latency_s: float, slots: int) -> FloorRun:
        """Complete `count` new items whose calls take `latency_s`, at most `slots` at once."""
        self._jobs += 1
        self._store.open_job(self._jobs, count)
        began = time.perf_counter()
        calls = asyncio.run(self._drain(count, latency_s, slots))
        return FloorRun(makespan_s=time.perf_counter() - began, calls=calls)

    def commit(self) -> float:
        """Return the seconds that one transaction takes which changes one row."""
        began = time.perf_counter()
        self._store.touch()
        return time.perf_counter() - began

    def close(self) -> None:
        """Close the connection."""
        self._store.close()

    async def _drain(self, count: int, latency_s: float, slots: int) -> int:
        loop = asyncio.get_running_loop()
        wake = asyncio.Event()
        ready: list[Held] = []
        tasks: set[asyncio.Task[None]] = set()
        accepted = calls = in_flight = 0

        async def call(held: Held) -> None:
            if latency_s:
                await asyncio.sleep(latency_s)
            ready.append(held)
            wake.set()

        with ThreadPoolExecutor(max_workers=1) as writer:
            while accepted < count:
                finished, ready = ready, []
                in_flight -= len(finished)
                landed, claimed = await loop.run_in_executor(
                    writer, self._store.turn, self._jobs, finished, slots - in_flight
                )
                accepted += landed
                in_flight += len(claimed)
                calls += len(claimed)
                for held in claimed:
                    task = loop.create_task(call(held))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                if accepted < count and not ready:
                    wake.clear()
                    await wake.wait()
                await asyncio.sleep(0)
        return calls


class _SqliteStore:
    _COMPLETE = (
        "UPDATE floor_item SET state = 'succeeded', output = ?, token = NULL, lease_until = NULL"
        " WHERE job = ? AND item = ? AND state = 'running' AND token = ?"
        " AND lease_until > CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER)"
        " AND NOT EXISTS (SELECT 1 FROM floor_job j WHERE j.job = floor_item.job AND j.state = 'ended')"
    )
    _PICK = "SELECT item FROM floor_item WHERE job = ? AND state = 'pending' ORDER BY ordinal LIMIT ?"
    _CLAIM = (
        "UPDATE floor_item SET state = 'running', token = ?,"
        " lease_until = CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER) + 60000"
        " WHERE job = ? AND item = ? AND state = 'pending'"
    )

    def __init__(self, path: str) -> None:
        # One thread at a time uses it: the one that opens a job, then the writer.
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "busy_timeout = 10000"):
            self._connection.execute(f"PRAGMA {pragma}")
        for table in _TABLES:
            self._connection.execute(table)

    def open_job(self, job: int, count: int) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.execute("INSERT INTO floor_job (job, state) VALUES (?, 'open')", (job,))
        self._connection.executemany(
            "INSERT INTO floor_item (job, item, ordinal, state) VALUES (?, ?, ?, 'pending')",
            [(job, f"rule-{number}", number) for number in range(count)],
        )
        self._connection.execute("COMMIT")

    def touch(self) -> None:
        self._connection.execute("UPDATE floor_job SET touched = touched + 1 WHERE job = 0")

    def turn(self, job: int, finished: Sequence[Held], wanted: int) -> tuple[int, list[Held]]:
        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")
        landed = sum(execute(self._COMPLETE, (OUTPUT, job, item, token)).rowcount for item, token in finished)
        claimed = [(item, secrets.token_hex(16)) for (item,) in execute(self._PICK, (job, wanted)).fetchall()]
        self._connection.executemany(self._CLAIM, [(token, job, item) for item, token in claimed])
        execute("COMMIT")
        return landed, claimed

    def close(self) -> None:
        self._connection.close()


class _PostgresStore:
    _COMPLETE = (
        b"UPDATE floor_item w SET state = 'succeeded', output = u.output, token = NULL, lease_until = NULL"
        b" FROM unnest(%s::text[], %s::text[], %s::text[]) u (item, token, output)"
        b" WHERE w.job = %s AND w.item = u.item AND w.state = 'running' AND w.token = u.token"
        b" AND w.lease_until > CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)"
        b" AND NOT EXISTS (SELECT 1 FROM floor_job j WHERE j.job = w.job AND j.state = 'ended')"
    )
    _CLAIM = (
        b"UPDATE floor_item SET state = 'running', token = gen_random_uuid()::text,"
        b" lease_until = CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT) + 60000"
        b" WHERE (job, item) IN (SELECT job, item FROM floor_item WHERE job = %s AND state = 'pending'"
        b" ORDER BY ordinal LIMIT %s FOR UPDATE SKIP LOCKED) RETURNING item, token"
    )

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url)
        with self._connection.transaction():
            for table in _TABLES:
                self._connection.execute(table.encode())

    def open_job(self, job: int, count: int) -> None:
        with self._connection.transaction():
            self._connection.execute("INSERT INTO floor_job (job, state) VALUES (%s, 'open')", (job,))
            self._connection.execute(
                "INSERT INTO floor_item (job, item, ordinal, state)"
                " SELECT %s, 'rule-' || n, n, 'pending' FROM generate_series(1, %s) n",
                (job, count),
            )

    def touch(self) -> None:
        with self._connection.transaction():
            self._connection.execute("UPDATE floor_job SET touched = touched + 1 WHERE job = 0")

    def turn(self, job: int, finished: Sequence[Held], wanted: int) -> tuple[int, list[Held]]:
        landed, claimed = 0, []
        with self._connection.transaction():
            if finished:
                items, tokens = [item for item, _ in finished], [token for _, token in finished]
                landed = self._connection.execute(self._COMPLETE, (items, tokens, [OUTPUT] * len(items), job)).rowcount
            claimed = [(item, token) for item, token in self._connection.execute(self._CLAIM, (job, wanted))]
        return landed, claimed

    def close(self) -> None:
        self._connection.close()


def _open(url: str) -> _Store:
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        return _SqliteStore(str(parsed.database))
    return _PostgresStore(url)
