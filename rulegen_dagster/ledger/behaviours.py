"""Behaviours: what jobs froze, with the texts that it names by digest, and how a job's behaviour was changed.

The texts are stored in the transaction that names them, so that no deployment can lose what a job needs.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rulegen_dagster.domain.behaviour import FrozenBehaviour
from rulegen_dagster.domain.canonical import sha256_hex
from rulegen_dagster.domain.prompt import Prompt
from rulegen_dagster.domain.states import TERMINAL_JOB_STATES, JobState
from rulegen_dagster.ledger.behaviour_schema import behaviour_prompt, job_behaviour, pack, prompt
from rulegen_dagster.ledger.database import Database, again_after_conflicts
from rulegen_dagster.ledger.schema import behaviour, job


@dataclass(frozen=True, kw_only=True)
class KnownBehaviour:
    """One behaviour that some job froze or took on; `jobs` counts those that have it now, by their state."""

    behaviour_digest: str
    behaviour: Mapping[str, Any]
    created_at: int
    jobs: Mapping[JobState, int]


@dataclass(frozen=True, kw_only=True)
class BehaviourChange:
    """One change of a job's behaviour: from and to which digest, when (ms), by whom and why."""

    from_digest: str
    to_digest: str
    at: int
    actor: str
    reason: str | None


class Behaviours:
    """Reads behaviours and their texts; `keep` writes them for whoever creates or migrates a job."""

    def __init__(self, database: Database) -> None:
        """Work on the given database."""
        self._database = database

    def packs(self, digests: Collection[str]) -> dict[str, str]:
        """Return the stored packs by digest; one that an older release froze without its text is absent."""
        query = sa.select(pack.c.digest, pack.c.content).where(pack.c.digest.in_(sorted(digests)))
        with self._database.read() as connection:
            rows = connection.execute(query).all()
        return {row.digest: row.content for row in rows if sha256_hex(row.content) == row.digest}

    def prompts(self, behaviour_digest: str) -> dict[str, Prompt]:
        """Return a behaviour's prompts by task; one whose text was removed is absent."""
        query = (
            sa.select(behaviour_prompt.c.task, behaviour_prompt.c.version, prompt.c.digest, prompt.c.content)
            .join(prompt, prompt.c.digest == behaviour_prompt.c.prompt_digest)
            .where(behaviour_prompt.c.behaviour_digest == behaviour_digest, prompt.c.content.is_not(None))
        )
        with self._database.read() as connection:
            rows = connection.execute(query).all()
        found = {row.task: Prompt(task=row.task, version=row.version, text=row.content) for row in rows}
        named = {row.task: row.digest for row in rows}
        return {task: one for task, one in found.items() if one.digest == named[task]}

    def all(self) -> list[KnownBehaviour]:
        """Return every behaviour, oldest first."""
        of_jobs = sa.select(job.c.behaviour_digest, job.c.state, sa.func.count()).group_by(
            job.c.behaviour_digest, job.c.state
        )
        stored = sa.select(behaviour).order_by(behaviour.c.created_at, behaviour.c.digest)
        counts: dict[str, dict[JobState, int]] = {}
        with self._database.read() as connection:
            for digest, state, count in connection.execute(of_jobs):
                counts.setdefault(digest, {})[JobState(state)] = count
            rows = connection.execute(stored).all()
        return [
            KnownBehaviour(
                behaviour_digest=row.digest,
                behaviour=json.loads(row.content),
                created_at=row.created_at,
                jobs=counts.get(row.digest, {}),
            )
            for row in rows
        ]

    def changes(self, job_id: int) -> tuple[BehaviourChange, ...]:
        """Return every change of a job's behaviour, in order."""
        query = sa.select(job_behaviour).where(job_behaviour.c.job_id == job_id).order_by(job_behaviour.c.number)
        with self._database.read() as connection:
            return tuple(
                BehaviourChange(
                    from_digest=row.from_digest, to_digest=row.to_digest, at=row.at, actor=row.actor, reason=row.reason
                )
                for row in connection.execute(query)
            )

    @again_after_conflicts
    def forget_prompts(self, *, ended_before: int, dry_run: bool = False) -> tuple[str, ...]:
        """Remove the texts of prompts all of whose jobs ended before a time (ms); return their digests, which stay.

        A successor of such a job then needs a decision, unless a new submission has brought the same text again.
        """
        ended = sa.and_(
            job.c.state.in_(sorted(state.value for state in TERMINAL_JOB_STATES)), job.c.updated_at < ended_before
        )
        needed = sa.exists().where(
            behaviour_prompt.c.prompt_digest == prompt.c.digest,
            job.c.behaviour_digest == behaviour_prompt.c.behaviour_digest,
            ~ended,
        )
        forgettable = sa.and_(prompt.c.content.is_not(None), prompt.c.created_at < ended_before, ~needed)
        with self._database.write() as connection:
            found = connection.execute(sa.select(prompt.c.digest).where(forgettable).order_by(prompt.c.digest))
            digests = tuple(found.scalars())
            if digests and not dry_run:
                connection.execute(sa.update(prompt).where(prompt.c.digest.in_(digests), ~needed).values(content=None))
        return digests


def keep(connection: Connection, now: sa.ColumnElement[int], frozen: FrozenBehaviour) -> None:
    """Store a behaviour and the texts that it names, each unless it is there."""
    named = frozen.behaviour
    _add(connection, behaviour, digest=named.digest, content=named.content, created_at=now)
    for one in frozen.packs:
        _add(connection, pack, digest=one.digest, kind=one.kind.value, content=one.content, created_at=now)
    for text in frozen.prompts:
        _add(connection, prompt, digest=text.digest, content=text.text, created_at=now)
        # A text that was removed comes back with whoever brings it again. (In one statement with the insertion, each
        # submission would lock the row for all others.)
        removed = sa.and_(prompt.c.digest == text.digest, prompt.c.content.is_(None))
        connection.execute(sa.update(prompt).where(removed).values(content=text.text))
        _add(
            connection,
            behaviour_prompt,
            behaviour_digest=named.digest,
            task=text.task,
            version=text.version,
            prompt_digest=text.digest,
        )


def _add(connection: Connection, table: sa.Table, **values: Any) -> None:
    connection.execute(_insert(connection, table).values(**values).on_conflict_do_nothing())


def _insert(connection: Connection, table: sa.Table) -> Any:
    # ON CONFLICT is spelled alike in both dialects but lives in two modules of SQLAlchemy, each slow to import.
    return import_module(f"sqlalchemy.dialects.{connection.dialect.name}").insert(table)
