"""Redrives: failed items get new attempts, because a person said so and why."""

from collections.abc import Sequence

import sqlalchemy as sa

from rulegen_dagster.domain.failpoints import REDRIVE, Commit
from rulegen_dagster.domain.states import Stage, WorkState
from rulegen_dagster.ledger.claims import not_terminal
from rulegen_dagster.ledger.database import Database, again_after_conflicts
from rulegen_dagster.ledger.schema import job, transition, work_item


class Redrives:
    """Sends failed items back to pending."""

    def __init__(self, database: Database, *, attempt_limit: int) -> None:
        """Give `attempt_limit` further attempts to each item."""
        self._database = database
        self._attempt_limit = attempt_limit

    @again_after_conflicts
    def redrive(
        self, job_id: int, stage: Stage, item_keys: Sequence[str] | None, *, actor: str, reason: str
    ) -> tuple[str, ...]:
        """Give new attempts to the failed items among `item_keys` (None: all of the stage); return their keys.

        Items in any other state are left as they are, and so is a job that has ended.
        """
        conditions = [
            work_item.c.job_id == job_id,
            work_item.c.stage == stage.value,
            work_item.c.state == WorkState.FAILED.value,
            not_terminal(work_item.c.job_id),
        ]
        if item_keys is not None:
            conditions.append(work_item.c.item_key.in_(list(item_keys)))
        now = self._database.now
        commits: set[Commit] = set()
        with self._database.write(commits) as connection:
            # Whoever ends the job meanwhile would not see an item that is only now sent back to pending.
            connection.execute(
                sa.select(job.c.job_id).where(job.c.job_id == job_id).with_for_update(key_share=True)
            ).all()
            redriven = sorted(
                connection.execute(
                    sa.update(work_item)
                    .where(*conditions)
                    .values(
                        state=WorkState.PENDING,
                        attempt_limit=work_item.c.attempts + self._attempt_limit,
                        error_code=None,
                        error_message=None,
                        repair=None,
                        updated_at=now,
                    )
                    .returning(work_item.c.item_key)
                ).scalars()
            )
            if redriven:
                commits.add(REDRIVE)
            for key in redriven:
                connection.execute(
                    sa.insert(transition).values(
                        job_id=job_id,
                        subject="work_item",
                        stage=stage.value,
                        subject_key=key,
                        from_state=WorkState.FAILED.value,
                        to_state=WorkState.PENDING.value,
                        cause=f"redriven: {reason}"[:200],
                        actor=actor,
                        at=now,
                    )
                )
        return tuple(redriven)
