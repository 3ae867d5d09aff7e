"""Recoveries: what workers held that are proven dead is free again at once, without a wait for their leases.

The proof is the caller's. Here it is booked like a lease that passed: the attempt crashed, and counts. An item with
attempts left waits, due now, for whoever claims next; an action is unknown, and is reconciled before anything is done.
"""

from collections.abc import Collection
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rulegen_dagster.domain.failpoints import RECLAIM
from rulegen_dagster.domain.states import ActionState, AttemptOutcome, WorkState
from rulegen_dagster.ledger.claims import not_terminal
from rulegen_dagster.ledger.database import Database, again_after_conflicts
from rulegen_dagster.ledger.schema import action, attempt, transition, waiver, work_item
from rulegen_dagster.ledger.stages import LOGGED, log_actions

WORKER_LOST = "worker_lost"
"""The error code of an attempt, item or action whose worker was proven dead before its lease had passed."""

# In one transaction; the next look frees the rest.
_MOST = 1_000


@dataclass(frozen=True, kw_only=True)
class Freed:
    """How many items wait to be claimed again, failed because no attempt was left, and actions are to be reconciled."""

    waiting: int = 0
    failed: int = 0
    actions: int = 0


class Recoveries:
    """Frees what lost workers held."""

    def __init__(self, database: Database) -> None:
        """Work on the given database."""
        self._database = database

    def holders(self) -> frozenset[str]:
        """Return the names of the workers that hold an item or an action now. One small read."""
        # Literals, so that the partial index of running items applies, however many others there are.
        of_items = sa.select(work_item.c.worker).where(work_item.c.state == sa.literal_column("'running'"))
        of_actions = sa.select(action.c.worker).where(action.c.worker.is_not(None))
        with self._database.read() as connection:
            return frozenset(connection.execute(of_items.union(of_actions)).scalars())

    @again_after_conflicts
    def free(self, workers: Collection[str], *, actor: str) -> Freed:
        """Free every item and action that one of these workers holds, and book the lost attempts.

        The workers are dead, and names are never reused: what they hold now, nobody works on. A row that somebody else
        has locked is left to them.
        """
        if not workers:
            return Freed()
        with self._database.write([RECLAIM]) as connection:
            return Freed(
                waiting=self._free_items(connection, workers, actor, WorkState.WAITING),
                failed=self._free_items(connection, workers, actor, WorkState.FAILED),
                actions=self._free_actions(connection, workers, actor),
            )

    def _free_items(self, connection: Connection, workers: Collection[str], actor: str, after: WorkState) -> int:
        now = self._database.now
        # What is left to do for a waived clause calls nobody, and needs no attempt to be left.
        is_waived = sa.exists().where(
            waiver.c.job_id == work_item.c.job_id, waiver.c.clause_ordinal == work_item.c.clause_ordinal
        )
        is_spent = sa.and_(work_item.c.attempts >= work_item.c.attempt_limit, ~is_waived)
        goes_on = after is WorkState.WAITING
        held = (
            sa.select(work_item.c.token)
            .where(
                work_item.c.state == sa.literal_column("'running'"),
                work_item.c.worker.in_(sorted(workers)),
                # A lease that has passed is the next claim's own business.
                work_item.c.lease_until > now,
                ~is_spent if goes_on else is_spent,
                not_terminal(work_item.c.job_id),
            )
            .limit(_MOST)
            .with_for_update(skip_locked=True)
        )
        tokens = connection.execute(held).scalars().all()
        if not tokens:
            return 0
        taken = work_item.c.token.in_(tokens)
        code = WORKER_LOST if goes_on else "attempts_exhausted"
        message = "its worker was lost" if goes_on else "the last attempt's worker was lost, and no attempt is left"
        connection.execute(
            sa.insert(transition).from_select(
                LOGGED,
                sa.select(
                    work_item.c.job_id,
                    sa.literal("work_item"),
                    work_item.c.stage,
                    work_item.c.item_key,
                    work_item.c.state,
                    sa.literal(after.value),
                    sa.literal(code),
                    sa.literal(actor),
                    now,
                ).where(taken),
            )
        )
        connection.execute(
            sa.update(attempt)
            .where(attempt.c.token.in_(tokens), attempt.c.outcome.is_(None))
            .values(outcome=AttemptOutcome.CRASHED, ended_at=now, error_code=WORKER_LOST)
        )
        connection.execute(
            sa.update(work_item)
            .where(taken)
            .values(
                state=after,
                next_attempt_at=now if goes_on else None,
                token=None,
                lease_until=None,
                worker=None,
                error_code=code,
                error_message=message,
                updated_at=now,
            )
        )
        return len(tokens)

    def _free_actions(self, connection: Connection, workers: Collection[str], actor: str) -> int:
        now = self._database.now
        held = (
            sa.select(action.c.token)
            .where(action.c.state == ActionState.EXECUTING.value, action.c.worker.in_(sorted(workers)))
            .limit(_MOST)
            .with_for_update(skip_locked=True)
        )
        tokens = connection.execute(held).scalars().all()
        if not tokens:
            return 0
        taken = action.c.token.in_(tokens)
        log_actions(connection, now, taken, ActionState.UNKNOWN, cause=WORKER_LOST, actor=actor)
        connection.execute(
            sa.update(action)
            .where(taken)
            .values(
                state=ActionState.UNKNOWN,
                token=None,
                lease_until=None,
                worker=None,
                error_code=WORKER_LOST,
                updated_at=now,
            )
        )
        return len(tokens)
