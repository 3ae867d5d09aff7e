"""Stages: what a completed item opens. The barrier is checked, and the next stage created, in the same transaction."""

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rulegen_dagster.domain.canonical import sha256_hex
from rulegen_dagster.domain.identity import item_key, rule_partition_key
from rulegen_dagster.domain.states import ActionState, JobState, Stage, WorkState
from rulegen_dagster.domain.work import DOCUMENT_ITEM, STAGE_VERSION, Offer
from rulegen_dagster.ledger.batch import batch, rows_of
from rulegen_dagster.ledger.claims import is_open
from rulegen_dagster.ledger.compiled import Query
from rulegen_dagster.ledger.database import Database
from rulegen_dagster.ledger.schema import action, action_set, clause, job, transition, work_item

LOGGED = ("job_id", "subject", "stage", "subject_key", "from_state", "to_state", "cause", "actor", "at")
"""The columns of a transition, for inserts from a query."""

_BARRIERS = {
    JobState.RETRIEVING: (Stage.RETRIEVE, JobState.GENERATING_RULES),
    JobState.GENERATING_RULES: (Stage.GENERATE_RULES, JobState.GENERATING_TESTS),
    JobState.GENERATING_TESTS: (Stage.GENERATE_TESTS, JobState.VALIDATING),
}


JobStage = tuple[int, str]
"""A job and one of its stages."""


class Stages:
    """Creates the items of each stage, once, and moves jobs past their barriers."""

    def __init__(self, database: Database, *, attempt_limit: int) -> None:
        """Items are created with `attempt_limit` attempts."""
        self._now = database.now
        self._attempt_limit = attempt_limit
        self._job_state = sa.select(job.c.state).where(job.c.job_id == sa.bindparam("job_id", type_=sa.BigInteger))
        of_stage = (
            sa.select(work_item.c.item_key)
            .where(
                work_item.c.job_id == sa.bindparam("job_id", type_=sa.BigInteger),
                work_item.c.stage == sa.bindparam("stage", type_=sa.Text),
            )
            .limit(1)
        )
        self._an_open_item = of_stage.where(is_open())
        self._lock = Query(database, _lock, tuple)
        self._still_open = Query(database, lambda: _still_open(database.dialect), tuple)
        self._an_unfinished_item = of_stage.where(work_item.c.state != WorkState.SUCCEEDED.value)

    def lock(self, connection: Connection, job_ids: Iterable[int]) -> None:
        """Lock the jobs' rows, in order, for the rest of the transaction.

        Two transactions that complete a stage's last two items would otherwise each see the other's item unfinished,
        and neither would open the next stage. SQLite has one writer at a time and needs no lock.
        """
        if connection.dialect.name == "postgresql":
            self._lock.send(connection, job_ids=sorted(set(job_ids)))

    def still_open(self, connection: Connection, stages: Collection[JobStage]) -> Callable[[], frozenset[JobStage]]:
        """Ask which of the stages have an unfinished item, and return how to get them: those open nothing yet."""
        if not stages:
            return frozenset
        asked = rows_of({"job_id": job_id, "stage": stage} for job_id, stage in sorted(stages))
        answer = self._still_open.send(connection, asked=asked)
        return lambda: frozenset((job_id, stage) for job_id, stage in answer())

    def open_parse(self, connection: Connection, job_id: int) -> None:
        """Create the parse item of a new job."""
        self._insert_items(connection, job_id, Stage.PARSE, [_document_item()])

    def open_validation_again(self, connection: Connection, job_id: int, stage_version: int) -> None:
        """Create the next version of the validate item; the accepted report of the version before stays."""
        self._insert_items(connection, job_id, Stage.VALIDATE, [_document_item()], stage_version)
        connection.execute(
            sa.update(job).where(job.c.job_id == job_id).values(validation_passed=None, updated_at=self._now)
        )

    def landed(
        self, connection: Connection, offers: Sequence[Offer], *, still_open: frozenset[JobStage], worker: str
    ) -> bool:
        """Do what the accepted offers open: clauses and rule items, the next stage, or the action set.

        A stage that is `still_open` is no barrier to pass. Return whether one was passed.
        """
        touched = {(offer.claim.key.job_id, offer.claim.key.stage.value) for offer in offers}
        for offer in offers:
            match offer.claim.key.stage:
                case Stage.PARSE:
                    self._parsed(connection, offer, worker)
                case Stage.VALIDATE:
                    self._validated(connection, offer, worker)
                case _:
                    pass
        reached = sorted({job_id for job_id, _ in touched - still_open})
        passed = [self._advance(connection, job_id, worker) for job_id in reached]
        return any(passed)

    def advance(self, connection: Connection, job_id: int, worker: str) -> None:
        """Move a job past every barrier whose stage is complete, and create the items of the stages behind."""
        self._advance(connection, job_id, worker)

    def _parsed(self, connection: Connection, offer: Offer, worker: str) -> None:
        parsed, job_id = offer.parsed, offer.claim.key.job_id
        if parsed is None:
            raise ValueError("an offer of the parse stage carries the parsed specification")
        rows = [
            {
                "job_id": job_id,
                "ordinal": found.ordinal,
                "start": found.start,
                "end": found.end,
                "text": found.text,
                "kind": found.kind,
                "heading_path": json.dumps(found.heading_path, ensure_ascii=False),
                "label": found.label,
                "lead": found.lead,
                "table_header": json.dumps(found.table_header, ensure_ascii=False),
                "content_hash": found.content_hash,
                "context_hash": found.context_hash,
                "role": found.role,
                "role_reason": found.role_reason,
            }
            for found in parsed.clauses
        ]
        if rows:
            connection.execute(sa.insert(clause), rows)
        job_key = connection.execute(sa.select(job.c.partition_key).where(job.c.job_id == job_id)).scalar_one()
        normative = parsed.normative
        items = []
        for number, found in enumerate(normative, start=1):
            key = item_key(number, len(normative))
            items.append(
                {
                    "item_key": key,
                    "ordinal": number,
                    "clause_ordinal": found.ordinal,
                    "partition_key": rule_partition_key(job_key, key),
                }
            )
        self._insert_items(connection, job_id, Stage.RETRIEVE, [_document_item()])
        self._insert_items(connection, job_id, Stage.GENERATE_RULES, items)
        # Whatever the job's state: one that needs a decision may end, and have a successor that reads the text.
        connection.execute(
            sa.update(job)
            .where(job.c.job_id == job_id)
            .values(canonical_digest=sha256_hex(parsed.canonical_text), spec_format=parsed.format)
        )
        self._move_job(connection, job_id, JobState.EXTRACTING, JobState.RETRIEVING, cause="parsed", actor=worker)

    def _validated(self, connection: Connection, offer: Offer, worker: str) -> None:
        job_id = offer.claim.key.job_id
        if not offer.passed or offer.action_set is None:
            connection.execute(
                sa.update(job).where(job.c.job_id == job_id).values(validation_passed=False, updated_at=self._now)
            )
            return
        digest = sha256_hex(offer.action_set)
        connection.execute(
            sa.insert(action_set).values(job_id=job_id, digest=digest, content=offer.action_set, created_at=self._now)
        )
        for proposed in json.loads(offer.action_set)["actions"]:
            connection.execute(
                sa.insert(action).values(
                    action_key=f"{proposed['kind']}:{job_id}:{digest}",
                    job_id=job_id,
                    action_set_digest=digest,
                    kind=proposed["kind"],
                    state=ActionState.PROPOSED,
                    created_at=self._now,
                    updated_at=self._now,
                )
            )
        self._move_job(
            connection,
            job_id,
            JobState.VALIDATING,
            JobState.AWAITING_CONFIRMATION,
            cause="validated",
            actor=worker,
            validation_passed=True,
            action_set_digest=digest,
        )

    def _advance(self, connection: Connection, job_id: int, worker: str) -> bool:
        # A stage without items is passed at once, so one completion may open more than one barrier.
        passed = False
        while True:
            state = self._state(connection, job_id)
            if state not in _BARRIERS:
                return passed
            stage, next_state = _BARRIERS[state]
            if not self._is_complete(connection, job_id, stage):
                return passed
            if not self._move_job(connection, job_id, state, next_state, cause=f"{stage}_complete", actor=worker):
                return passed
            passed = True
            if next_state is JobState.GENERATING_TESTS:
                self._open_tests(connection, job_id)
            elif next_state is JobState.VALIDATING:
                self._insert_items(connection, job_id, Stage.VALIDATE, [_document_item()])

    def _state(self, connection: Connection, job_id: int) -> JobState:
        return JobState(connection.execute(self._job_state, {"job_id": job_id}).scalar_one())

    def _is_complete(self, connection: Connection, job_id: int, stage: Stage) -> bool:
        key = {"job_id": job_id, "stage": stage.value}
        if connection.execute(self._an_open_item, key).first():
            return False
        return connection.execute(self._an_unfinished_item, key).first() is None

    def _open_tests(self, connection: Connection, job_id: int) -> None:
        copied = ("job_id", "item_key", "stage_version", "ordinal", "clause_ordinal", "partition_key")
        connection.execute(
            sa.insert(work_item).from_select(
                [*copied, "stage", "state", "attempt_limit", "created_at", "updated_at"],
                sa.select(
                    *(work_item.c[name] for name in copied),
                    sa.literal(Stage.GENERATE_TESTS.value),
                    sa.literal(WorkState.PENDING.value),
                    sa.literal(self._attempt_limit),
                    self._now,
                    self._now,
                ).where(work_item.c.job_id == job_id, work_item.c.stage == Stage.GENERATE_RULES.value),
            )
        )

    def _insert_items(
        self,
        connection: Connection,
        job_id: int,
        stage: Stage,
        items: list[dict[str, Any]],
        stage_version: int = STAGE_VERSION,
    ) -> None:
        if items:
            connection.execute(
                sa.insert(work_item).values(
                    job_id=job_id,
                    stage=stage,
                    stage_version=stage_version,
                    state=WorkState.PENDING,
                    attempt_limit=self._attempt_limit,
                    created_at=self._now,
                    updated_at=self._now,
                    item_key=sa.bindparam("item_key"),
                    ordinal=sa.bindparam("ordinal"),
                    clause_ordinal=sa.bindparam("clause_ordinal"),
                    partition_key=sa.bindparam("partition_key"),
                ),
                items,
            )

    def _move_job(
        self,
        connection: Connection,
        job_id: int,
        before: JobState,
        after: JobState,
        *,
        cause: str,
        actor: str,
        **values: Any,
    ) -> bool:
        moved = connection.execute(
            sa.update(job)
            .where(job.c.job_id == job_id, job.c.state == before.value)
            .values(state=after, updated_at=self._now, **values)
        )
        if moved.rowcount != 1:
            return False
        log_job(connection, self._now, job_id, before, after, cause=cause, actor=actor)
        return True


def _lock() -> sa.Select[Any]:
    return (
        sa.select(job.c.job_id)
        .where(job.c.job_id == sa.any_(sa.bindparam("job_ids", type_=sa.ARRAY(sa.BigInteger))))
        .order_by(job.c.job_id)
        .with_for_update(key_share=True)
    )


def _still_open(dialect: str) -> sa.Select[Any]:
    """Return the query for those of the asked stages that have an unfinished item."""
    asked = batch(dialect, "asked", job_id=sa.BigInteger, stage=sa.Text).alias("asked_stages")
    an_item: sa.Select[Any] = sa.select(sa.literal_column("1")).where(
        work_item.c.job_id == asked.c.job_id, work_item.c.stage == asked.c.stage, is_open()
    )
    return sa.select(asked.c.job_id, asked.c.stage).where(
        an_item.limit(1).correlate(asked).scalar_subquery().is_not(None)
    )


def log_job(
    connection: Connection,
    now: sa.ColumnElement[int],
    job_id: int,
    before: JobState | None,
    after: JobState,
    *,
    cause: str,
    actor: str,
) -> None:
    """Append one transition of a job to the log."""
    connection.execute(
        sa.insert(transition).values(
            job_id=job_id, subject="job", from_state=before, to_state=after, cause=cause, actor=actor, at=now
        )
    )


def log_actions(
    connection: Connection,
    now: sa.ColumnElement[int],
    moved: sa.ColumnElement[bool],
    after: ActionState,
    *,
    cause: str,
    actor: str,
) -> None:
    """Append the transition that every action for which `moved` holds is about to make."""
    told = [sa.literal(text) for text in (after.value, cause, actor)]
    rows = sa.select(
        action.c.job_id, sa.literal("action"), action.c.kind, action.c.action_key, action.c.state, *told, now
    ).where(moved)
    connection.execute(sa.insert(transition).from_select(LOGGED, rows))


def _document_item() -> dict[str, Any]:
    return {"item_key": DOCUMENT_ITEM, "ordinal": 0, "clause_ordinal": None, "partition_key": None}
