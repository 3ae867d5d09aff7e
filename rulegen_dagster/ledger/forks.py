"""Forks: a successor of a job that ended without a result, which keeps everything that was accepted.

The successor has the same upload, the same frozen behaviour and the same limits, a new key and a new deadline. What the
predecessor got accepted is accepted here from the start, under an attempt that names where it comes from, called nobody
and cost nothing. What is unfinished of a waived clause ends as the waiver would have ended it. All of it is one
transaction of a fixed number of statements, however many items there are, beside those of what was waived.
"""

from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rulegen_dagster.domain.errors import StateError, SubmissionConflictError
from rulegen_dagster.domain.failpoints import FORK
from rulegen_dagster.domain.identity import JobName, job_partition_key
from rulegen_dagster.domain.quota import NO_QUOTA, QuotaLimits, full_bucket
from rulegen_dagster.domain.quota_scope import QuotaScope, ScopeKind
from rulegen_dagster.domain.retention import ContentKind
from rulegen_dagster.domain.states import AttemptOutcome, JobState, Stage, WorkState
from rulegen_dagster.ledger.behaviour_schema import job_behaviour
from rulegen_dagster.ledger.database import Database, again_after_conflicts
from rulegen_dagster.ledger.outbox import add_missing
from rulegen_dagster.ledger.quota_rows import limits_of
from rulegen_dagster.ledger.quota_schema import quota
from rulegen_dagster.ledger.reservations import add_scope
from rulegen_dagster.ledger.schema import (
    attempt,
    clause,
    job,
    removed_content,
    submission,
    transition,
    waiver,
    work_item,
)
from rulegen_dagster.ledger.stages import Stages, log_job
from rulegen_dagster.ledger.submissions import Accepted, create_job, place_in_trace, store_submission
from rulegen_dagster.ledger.waivers import Waivers

FORKED_STATES: Final = frozenset({JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED})
"""The states of jobs that may have a successor of this kind: ended, without a result."""

_INHERITED, _FORKED = "inherited", "forked"
_ITEM = ("stage", "item_key", "stage_version")


class Forks:
    """Opens successors of jobs."""

    def __init__(self, database: Database, stages: Stages, *, attempt_limit: int) -> None:
        """Create the items that are still to be done with `attempt_limit` attempts each."""
        self._database = database
        self._stages = stages
        self._attempt_limit = attempt_limit
        self._waivers = Waivers(database, stages)

    @again_after_conflicts
    def fork(
        self,
        job_id: int,
        submission_key: str,
        *,
        deadline_ms: int,
        actor: str,
        reason: str | None = None,
        traceparent: str | None = None,
    ) -> Accepted:
        """Open the successor of a job under another key of its tenant, or return the one that this key made before.

        The validation is made again, for its report and the action set name the job; it calls nobody. Raises
        `StateError` for a job that is still going on or was published, and `SubmissionConflictError` where the key
        belongs to anything else.
        """
        now = self._database.now
        with self._database.write([FORK]) as connection:
            # An ended job never changes again; its content may be removed, and not while it is taken over.
            old = connection.execute(sa.select(job).where(job.c.job_id == job_id).with_for_update(read=True)).one()
            if JobState(old.state) not in FORKED_STATES:
                raise StateError(
                    f"the job is {old.state}; only a job that ended as failed, cancelled or expired has a successor"
                )
            name = JobName(tenant=old.tenant, submission_key=submission_key)
            handed_in = connection.execute(
                sa.select(submission.c.input_digest, submission.c.file_name, submission.c.size_bytes).where(
                    submission.c.tenant == old.tenant, submission.c.submission_key == old.submission_key
                )
            ).one()
            if not store_submission(connection, now, name, **handed_in._mapping):
                return _existing(connection, old, name)
            if _is_content_removed(connection, job_id):
                raise StateError(
                    "the job's content was removed by 'rulegen gc --content-older-than'; submit the specification again"
                    " under a new key",
                    code="content_removed",
                )
            new_id = create_job(
                connection,
                now,
                name,
                ruleset=old.ruleset,
                behaviour_digest=old.behaviour_digest,
                spec_digest=old.spec_digest,
                predecessor_job_id=job_id,
                deadline_ms=deadline_ms,
                cause=(f"{_FORKED}: {reason}" if reason else _FORKED)[:200],
                actor=actor,
            )
            place_in_trace(connection, now, new_id, traceparent)
            _pass_changes_on(connection, job_id, new_id)
            _pass_quota_on(connection, now, job_id, new_id, name)
            self._stages.open_parse(connection, new_id)
            if self._inherit(connection, old, new_id, (Stage.PARSE,), actor):
                self._take_over_clauses(connection, old, new_id, name, actor)
                self._inherit(connection, old, new_id, (Stage.RETRIEVE, Stage.GENERATE_RULES), actor)
                self._waivers.end_pending(connection, name, new_id)
                # Opens the tests where every rule is there, and the validation where every test is.
                self._stages.advance(connection, new_id, actor)
                self._inherit(connection, old, new_id, (Stage.GENERATE_TESTS,), actor)
                self._waivers.end_pending(connection, name, new_id)
                self._stages.advance(connection, new_id, actor)
                add_missing(connection, now, new_id)
            return Accepted(job_id=new_id, existing=False)

    def _take_over_clauses(
        self, connection: Connection, old: sa.Row[tuple[object, ...]], new_id: int, name: JobName, actor: str
    ) -> None:
        """Copy clauses, waivers and the items that parsing created, and pass the parse stage."""
        now = self._database.now
        copied = [column.name for column in clause.c if column.name != "job_id"]
        connection.execute(
            sa.insert(clause).from_select(
                ["job_id", *copied],
                sa.select(sa.literal(new_id), *(clause.c[column] for column in copied)).where(
                    clause.c.job_id == old.job_id
                ),
            )
        )
        # What a person said of a clause holds for the same clause.
        said = [column.name for column in waiver.c if column.name != "job_id"]
        connection.execute(
            sa.insert(waiver).from_select(
                ["job_id", *said],
                sa.select(sa.literal(new_id), *(waiver.c[name] for name in said)).where(waiver.c.job_id == old.job_id),
            )
        )
        columns = [*_ITEM, "ordinal", "clause_ordinal"]
        # A rule's partition key is the job's with the item's; the document's item has none.
        partition_key = sa.case(
            (work_item.c.partition_key.is_(None), sa.null()),
            else_=sa.literal(f"{job_partition_key(name)}-").concat(work_item.c.item_key),
        )
        connection.execute(
            sa.insert(work_item).from_select(
                ["job_id", *columns, "partition_key", "state", "attempt_limit", "created_at", "updated_at"],
                sa.select(
                    sa.literal(new_id),
                    *(work_item.c[column] for column in columns),
                    partition_key,
                    sa.literal(WorkState.PENDING.value),
                    sa.literal(self._attempt_limit),
                    now,
                    now,
                ).where(
                    work_item.c.job_id == old.job_id,
                    work_item.c.stage.in_([Stage.RETRIEVE.value, Stage.GENERATE_RULES.value]),
                ),
            )
        )
        connection.execute(
            sa.update(job)
            .where(job.c.job_id == new_id)
            .values(state=JobState.RETRIEVING, canonical_digest=old.canonical_digest, spec_format=old.spec_format)
        )
        log_job(connection, now, new_id, JobState.EXTRACTING, JobState.RETRIEVING, cause=_INHERITED, actor=actor)

    def _inherit(
        self,
        connection: Connection,
        old: sa.Row[tuple[object, ...]],
        new_id: int,
        stages: tuple[Stage, ...],
        actor: str,
    ) -> int:
        """Accept, for the pending items of these stages, what the predecessor got accepted; return how many there are.

        Each item goes the way of any other, pending to running to succeeded, because the database knows no other way.
        """
        now = self._database.now
        source = work_item.alias("source")
        of_stages = work_item.c.stage.in_([stage.value for stage in stages])
        same = sa.and_(
            source.c.job_id == old.job_id,
            source.c.state == WorkState.SUCCEEDED.value,
            *(source.c[column] == work_item.c[column] for column in _ITEM),
        )
        # Unique by itself: the item's whole identity.
        token = sa.literal(f"{_INHERITED}:{new_id}:").concat(
            work_item.c.stage.concat(":")
            .concat(work_item.c.item_key)
            .concat(":")
            .concat(sa.cast(work_item.c.stage_version, sa.Text))
        )
        taken = connection.execute(
            sa.update(work_item)
            .where(work_item.c.job_id == new_id, of_stages, sa.exists().where(same))
            .values(state=WorkState.RUNNING, token=token, worker=actor, lease_until=now, attempts=1, updated_at=now)
        ).rowcount
        if not taken:
            return 0
        running = sa.and_(work_item.c.job_id == new_id, of_stages, work_item.c.state == WorkState.RUNNING.value)
        self._log(connection, running, WorkState.PENDING, WorkState.RUNNING, actor)
        self._add_attempts(connection, old.job_id, running, actor)
        self._log(connection, running, WorkState.RUNNING, WorkState.SUCCEEDED, actor)
        outputs = {
            column: sa.select(source.c[column]).where(same).scalar_subquery() for column in ("output", "output_digest")
        }
        connection.execute(
            sa.update(work_item)
            .where(running)
            .values(state=WorkState.SUCCEEDED, **outputs, token=None, worker=None, lease_until=None, updated_at=now)
        )
        return taken

    def _add_attempts(self, connection: Connection, old_id: int, running: sa.ColumnElement[bool], actor: str) -> None:
        """Add the accepted attempt of each running item, beside what the predecessor's own attempt tells of it."""
        now = self._database.now
        made = attempt.alias("made")
        same = sa.and_(
            made.c.job_id == old_id,
            made.c.outcome == AttemptOutcome.ACCEPTED.value,
            *(made.c[column] == work_item.c[column] for column in _ITEM),
        )
        told = ("operation_key", "provider", "model_id", "provider_request_id", "output_digest")
        connection.execute(
            sa.insert(attempt).from_select(
                [
                    "job_id",
                    *_ITEM,
                    "attempt",
                    "token",
                    "worker",
                    *told,
                    "started_at",
                    "ended_at",
                    "outcome",
                    "provider_called",
                    "cost_micros",
                    "inherited_from",
                ],
                sa.select(
                    work_item.c.job_id,
                    *(work_item.c[column] for column in _ITEM),
                    sa.literal(1),
                    work_item.c.token,
                    sa.literal(actor),
                    *(made.c[column] for column in told),
                    now,
                    now,
                    sa.literal(AttemptOutcome.ACCEPTED.value),
                    sa.false(),
                    sa.literal(0),
                    sa.literal(old_id),
                )
                .select_from(work_item.join(made, same))
                .where(running),
            )
        )

    def _log(
        self, connection: Connection, items: sa.ColumnElement[bool], before: WorkState, after: WorkState, actor: str
    ) -> None:
        connection.execute(
            sa.insert(transition).from_select(
                ["job_id", "subject", "stage", "subject_key", "from_state", "to_state", "cause", "actor", "at"],
                sa.select(
                    work_item.c.job_id,
                    sa.literal("work_item"),
                    work_item.c.stage,
                    work_item.c.item_key,
                    sa.literal(before.value),
                    sa.literal(after.value),
                    sa.literal(_INHERITED),
                    sa.literal(actor),
                    self._database.now,
                )
                .where(items)
                .order_by(work_item.c.stage, work_item.c.ordinal),
            )
        )


def _is_content_removed(connection: Connection, job_id: int) -> bool:
    # A successor can do without a prompt: whoever goes on with it decides then.
    gone = sa.select(removed_content.c.kind).where(
        removed_content.c.job_id == job_id, removed_content.c.kind != ContentKind.PROMPTS.value
    )
    return connection.execute(gone.limit(1)).first() is not None


def _pass_changes_on(connection: Connection, old_id: int, new_id: int) -> None:
    """Let the successor say how its behaviour came about: it takes over outputs that were made before the changes."""
    kept = [column.name for column in job_behaviour.c if column.name != "job_id"]
    connection.execute(
        sa.insert(job_behaviour).from_select(
            ["job_id", *kept],
            sa.select(sa.literal(new_id), *(job_behaviour.c[column] for column in kept)).where(
                job_behaviour.c.job_id == old_id
            ),
        )
    )


def _pass_quota_on(connection: Connection, now: sa.ColumnElement[int], old_id: int, new_id: int, name: JobName) -> None:
    """Give the successor the limits of its predecessor, if any, with nothing of them used yet."""
    columns = [quota.c[limit] for limit in limits_of(NO_QUOTA)]
    found = connection.execute(sa.select(*columns).where(quota.c.job_id == old_id)).first()
    if found is None:
        return
    limits = QuotaLimits(**found._mapping)
    scope, full = str(QuotaScope.of_job(name)), full_bucket(limits, 0)
    add_scope(connection, now, scope, kind=ScopeKind.JOB, job_id=new_id)
    levels = {"request_level": full.request_level, "token_level": full.token_level}
    connection.execute(sa.update(quota).where(quota.c.scope == scope).values(**limits_of(limits), **levels))


def _existing(connection: Connection, old: sa.Row[tuple[object, ...]], name: JobName) -> Accepted:
    found = connection.execute(
        sa.select(job.c.job_id, job.c.predecessor_job_id, transition.c.cause)
        .join(transition, transition.c.job_id == job.c.job_id)
        .where(
            job.c.tenant == name.tenant,
            job.c.submission_key == name.submission_key,
            transition.c.subject == "job",
            transition.c.from_state.is_(None),
        )
    ).one()
    # A file of the same name makes a job that names this one as its predecessor too, and takes nothing over.
    if found.predecessor_job_id != old.job_id or not found.cause.startswith(_FORKED):
        raise SubmissionConflictError(
            f"the submission key '{name.submission_key}' of tenant '{name.tenant}' belongs to another job; open the"
            " successor under a new key"
        )
    return Accepted(job_id=found.job_id, existing=True)
