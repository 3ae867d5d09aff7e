"""Waivers: a named person's word that a clause needs no rule, and what it sets going.

What is unfinished of the clause, and in nobody's hands, ends at once with the output "no rule: waived", under an
attempt of its own that called nobody. What a worker holds is left to it; whoever claims it after that worker is told
(see `Claim.waived`), and offers the same output. A job that stands below its policy is validated again, as the next
version of its validate item. All of it is one transaction, so that a job never has the one without the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rulegen_dagster.domain.canonical import sha256_hex
from rulegen_dagster.domain.errors import InputError, StateError
from rulegen_dagster.domain.failpoints import WAIVER
from rulegen_dagster.domain.identity import JobName
from rulegen_dagster.domain.states import AttemptOutcome, JobState, Stage, WorkState
from rulegen_dagster.domain.waiver import WAIVED, waived_output
from rulegen_dagster.domain.work import DOCUMENT_ITEM
from rulegen_dagster.ledger.database import Database, again_after_conflicts
from rulegen_dagster.ledger.outbox import add_missing
from rulegen_dagster.ledger.schema import attempt, job, transition, waiver, work_item
from rulegen_dagster.ledger.stages import Stages

WAIVABLE_STATES: Final = (JobState.GENERATING_RULES, JobState.GENERATING_TESTS, JobState.VALIDATING)
"""The states of a job whose clauses can be waived: they are known, and nobody was asked to confirm without them yet."""

_FREE = (WorkState.FAILED, WorkState.PENDING, WorkState.WAITING)
_KEY = ("stage", "item_key", "stage_version")


@dataclass(frozen=True, kw_only=True)
class GivenWaiver:
    """One waiver as the ledger holds it; `created_at` in ms."""

    clause_ordinal: int
    actor: str
    reason: str
    created_at: int


@dataclass(frozen=True, kw_only=True)
class Waived:
    """What a waiver set going: whether it is new, which stages' items it ended, and whether validation runs again."""

    is_new: bool
    ended: tuple[Stage, ...]
    validates_again: bool


class Waivers:
    """Gives waivers, and reads those that were given."""

    def __init__(self, database: Database, stages: Stages) -> None:
        """Open through `stages` what a waiver lets go on."""
        self._database = database
        self._stages = stages

    def of(self, job_id: int) -> tuple[GivenWaiver, ...]:
        """Return a job's waivers in document order."""
        query = sa.select(waiver).where(waiver.c.job_id == job_id).order_by(waiver.c.clause_ordinal)
        with self._database.read() as connection:
            return tuple(
                GivenWaiver(
                    clause_ordinal=row.clause_ordinal, actor=row.actor, reason=row.reason, created_at=row.created_at
                )
                for row in connection.execute(query)
            )

    @again_after_conflicts
    def waive(self, job_id: int, clause_ordinal: int, *, actor: str, reason: str) -> Waived:
        """Waive a normative clause; a second waiver of it changes nothing of the first, and ends what failed since.

        Raises `InputError` for a clause that has no rule item, and `StateError` where the job is in none of the
        `WAIVABLE_STATES` or is being validated at this moment: the report would not know of the waiver.
        """
        with self._database.write([WAIVER]) as connection:
            # First the job, then its items, like every completion. Whoever ends the job meanwhile waits, or was first.
            row = connection.execute(
                sa.select(job.c.state, job.c.tenant, job.c.submission_key, job.c.validation_passed)
                .where(job.c.job_id == job_id)
                .with_for_update(key_share=True)
            ).one()
            if row.state not in WAIVABLE_STATES:
                raise StateError(
                    f"the job is {row.state}; a clause can be waived while its rules and tests are made, and while"
                    " validation says that something is missing"
                )
            items = self._locked_items(connection, job_id, clause_ordinal)
            report = self._locked_validation(connection, job_id)
            if report is not None and report.state == WorkState.RUNNING:
                raise StateError("the job is being validated; waive the clause when its report is there")
            is_new = self._keep(connection, job_id, clause_ordinal, actor, reason)
            said = connection.execute(
                sa.select(waiver.c.actor, waiver.c.reason).where(
                    waiver.c.job_id == job_id, waiver.c.clause_ordinal == clause_ordinal
                )
            ).one()
            name = JobName(tenant=row.tenant, submission_key=row.submission_key)
            free = [item for item in items if item.state in _FREE]
            for item in free:
                self._end(connection, name, item, said.actor, said.reason)
            if free:
                add_missing(connection, self._database.now, job_id)
                self._stages.advance(connection, job_id, actor)
            again = is_new and report is not None and row.validation_passed is False
            if again and report is not None:
                self._stages.open_validation_again(connection, job_id, report.stage_version + 1)
                key = (Stage.VALIDATE.value, DOCUMENT_ITEM)
                why = f"{WAIVED}: {said.reason}"
                self._log(connection, job_id, key, None, WorkState.PENDING, cause=why, actor=said.actor)
            return Waived(is_new=is_new, ended=tuple(Stage(item.stage) for item in free), validates_again=again)

    def end_pending(self, connection: Connection, name: JobName, job_id: int) -> None:
        """End what is pending of a job's waived clauses, in a transaction that nobody else knows the job in."""
        pending = (
            sa.select(work_item, waiver.c.actor, waiver.c.reason)
            .join(
                waiver,
                sa.and_(waiver.c.job_id == work_item.c.job_id, waiver.c.clause_ordinal == work_item.c.clause_ordinal),
            )
            .where(work_item.c.job_id == job_id, work_item.c.state == WorkState.PENDING.value)
            .order_by(work_item.c.stage, work_item.c.ordinal)
        )
        for item in connection.execute(pending).all():
            self._end(connection, name, item, item.actor, item.reason)

    def _locked_items(
        self, connection: Connection, job_id: int, clause_ordinal: int
    ) -> Sequence[sa.Row[tuple[object, ...]]]:
        """Lock the clause's items in the order of their keys, like a cancellation; a claim passes locked ones over."""
        key = (work_item.c.stage, work_item.c.item_key, work_item.c.stage_version)
        found = connection.execute(
            sa.select(work_item)
            .where(work_item.c.job_id == job_id, work_item.c.clause_ordinal == clause_ordinal)
            .order_by(*key)
            .with_for_update()
        ).all()
        if not found:
            raise InputError(
                f"the job has no normative clause {clause_ordinal}; 'rulegen review' lists them",
                code="clause_not_found",
            )
        return found

    def _locked_validation(self, connection: Connection, job_id: int) -> sa.Row[tuple[object, ...]] | None:
        """Lock and return the newest validate item; None before there is one."""
        return connection.execute(
            sa.select(work_item)
            .where(work_item.c.job_id == job_id, work_item.c.stage == Stage.VALIDATE.value)
            .order_by(work_item.c.stage_version.desc())
            .limit(1)
            .with_for_update()
        ).first()

    def _keep(self, connection: Connection, job_id: int, clause_ordinal: int, actor: str, reason: str) -> bool:
        kept = connection.execute(
            # ON CONFLICT is spelled alike in both dialects but lives in two modules of SQLAlchemy, each slow to import.
            import_module(f"sqlalchemy.dialects.{connection.dialect.name}")
            .insert(waiver)
            .values(
                job_id=job_id,
                clause_ordinal=clause_ordinal,
                actor=actor,
                reason=reason,
                created_at=self._database.now,
            )
            .on_conflict_do_nothing()
            .returning(waiver.c.job_id)
        )
        return kept.first() is not None

    def _end(
        self, connection: Connection, name: JobName, item: sa.Row[tuple[object, ...]], actor: str, reason: str
    ) -> None:
        """Take one item to `succeeded`, step by step, because the database knows no other way."""
        now = self._database.now
        key = (item.stage, item.item_key, item.stage_version)
        output = waived_output(Stage(item.stage), reason)
        # Unique by itself: the item's whole identity, and an item is accepted once.
        token = f"{WAIVED}:{item.job_id}:{':'.join(map(str, key))}"
        steps = [
            {
                "state": WorkState.RUNNING,
                "token": token,
                "worker": actor,
                "lease_until": now,
                "attempts": item.attempts + 1,
                "next_attempt_at": None,
                "error_code": None,
                "error_message": None,
            },
            {
                "state": WorkState.SUCCEEDED,
                "token": None,
                "worker": None,
                "lease_until": None,
                "output": output,
                "output_digest": sha256_hex(output),
            },
        ]
        if item.state == WorkState.FAILED:
            steps.insert(0, {"state": WorkState.PENDING, "error_code": None, "error_message": None})
        of_item = sa.and_(
            work_item.c.job_id == item.job_id,
            *(work_item.c[column] == value for column, value in zip(_KEY, key, strict=True)),
        )
        before = WorkState(item.state)
        for step in steps:
            connection.execute(sa.update(work_item).where(of_item).values(**step, updated_at=now))
            after = WorkState(step["state"])
            self._log(connection, item.job_id, key[:2], before, after, cause=f"{WAIVED}: {reason}", actor=actor)
            before = after
            if after is WorkState.RUNNING:
                self._add_attempt(connection, name, item, worker=actor, token=token, output_digest=sha256_hex(output))

    def _add_attempt(
        self,
        connection: Connection,
        name: JobName,
        item: sa.Row[tuple[object, ...]],
        *,
        worker: str,
        token: str,
        output_digest: str,
    ) -> None:
        connection.execute(
            sa.insert(attempt).values(
                job_id=item.job_id,
                stage=item.stage,
                item_key=item.item_key,
                stage_version=item.stage_version,
                attempt=item.attempts + 1,
                token=token,
                worker=worker,
                operation_key=f"{name}/{item.stage}/{item.item_key}/v{item.stage_version}",
                started_at=self._database.now,
                ended_at=self._database.now,
                outcome=AttemptOutcome.ACCEPTED,
                provider_called=False,
                cost_micros=0,
                output_digest=output_digest,
            )
        )

    def _log(
        self,
        connection: Connection,
        job_id: int,
        item: tuple[str, str],
        before: WorkState | None,
        after: WorkState,
        *,
        cause: str,
        actor: str,
    ) -> None:
        stage, item_key = item
        connection.execute(
            sa.insert(transition).values(
                job_id=job_id,
                subject="work_item",
                stage=stage,
                subject_key=item_key,
                from_state=before,
                to_state=after,
                cause=cause[:200],
                actor=actor,
                at=self._database.now,
            )
        )
