"""What the database holds, row by row: read, compared with the model, and judged by the invariants alone."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise
from typing import Any

import sqlalchemy as sa

from rulegen_dagster.domain.behaviour import Choice
from rulegen_dagster.domain.canonical import sha256_hex
from rulegen_dagster.domain.states import TERMINAL_JOB_STATES, ActionState, AttemptOutcome, JobState, Stage, WorkState
from rulegen_dagster.domain.work import DOCUMENT_ITEM, STAGE_VERSION, WorkKey
from rulegen_dagster.ledger.behaviour_schema import job_behaviour, needed_decision
from rulegen_dagster.ledger.database import Database
from rulegen_dagster.ledger.quota_schema import call_estimate, quota, quota_reservation
from rulegen_dagster.ledger.schema import (
    action,
    attempt,
    confirmation,
    job,
    outbox,
    transition,
    work_item,
)
from tests.ledger import ledger_quota_model as quotas
from tests.ledger.ledger_model import NEXT_STAGE, Model, Move

Row = Mapping[str, Any]
Rows = dict[str, list[Row]]
ItemName = tuple[int, str, str, int]

_OF_JOBS = (job, work_item, attempt, action, confirmation, outbox, transition, needed_decision, job_behaviour)
_QUERIES = {
    table.name: sa.select(table).where(table.c.job_id > sa.bindparam("behind")).order_by(*table.primary_key.columns)
    for table in (*_OF_JOBS, call_estimate)
} | {
    # A provider and a tenant of an example end with its number.
    "quota": sa.select(quota).where(
        sa.or_(quota.c.job_id > sa.bindparam("behind"), quota.c.scope.like(sa.bindparam("of_example")))
    ),
    "quota_reservation": sa.select(quota_reservation)
    .join(attempt, attempt.c.token == quota_reservation.c.token)
    .where(attempt.c.job_id > sa.bindparam("behind")),
}
_STAGE_NEEDS = {
    Stage.RETRIEVE: Stage.PARSE,
    Stage.GENERATE_RULES: Stage.PARSE,
    Stage.GENERATE_TESTS: Stage.GENERATE_RULES,
    Stage.VALIDATE: Stage.GENERATE_TESTS,
}
_NEEDS = JobState.NEEDS_DECISION.value
_AGAIN = (WorkState.SUCCEEDED.value, WorkState.PENDING.value)
_TERMINAL = frozenset(state.value for state in TERMINAL_JOB_STATES)
_ACCEPTED = ("state", "output", "output_digest", "attempts", "attempt_limit", "updated_at")


def end_every_job(database: Database) -> int:
    """End the jobs of earlier examples, as a hand in the database would; return the highest number of a job."""
    with database.write() as connection:
        connection.execute(sa.update(job).where(job.c.state.not_in(_TERMINAL)).values(state=JobState.FAILED))
        return int(connection.execute(sa.select(sa.func.coalesce(sa.func.max(job.c.job_id), 0))).scalar_one())


def read(database: Database, behind: int, example: int, tables: Collection[str] = _QUERIES.keys()) -> Rows:
    """Return every row of the jobs behind a number, which are those of an example, in the order of their keys."""
    parameters = {"behind": behind, "of_example": f"%-{example}"}
    with database.read() as connection:
        return {
            name: [dict(row) for row in connection.execute(_QUERIES[name], parameters).mappings()] for name in tables
        }


def given_up(database: Database, behind: int, after: int) -> tuple[set[WorkKey], int]:
    """Return the items that were found to have no attempt left, behind a number of the log, and the last such number.

    The items are those of jobs behind a number.
    """
    query = (
        sa.select(transition.c.transition_id, transition.c.job_id, transition.c.stage, transition.c.subject_key)
        .where(transition.c.job_id > behind, transition.c.transition_id > after)
        .where(transition.c.cause == "attempts_exhausted")
        .order_by(transition.c.transition_id)
    )
    with database.read() as connection:
        found = connection.execute(query).all()
    keys = {WorkKey(job_id=row.job_id, stage=Stage(row.stage), item_key=row.subject_key) for row in found}
    return keys, found[-1].transition_id if found else after


def new_moves(rows: Rows, after: int) -> tuple[list[Move], int]:
    """Return the transitions behind a number, as the model writes them, and the last number."""
    names = ("job_id", "subject", "stage", "subject_key", "from_state", "to_state", "cause", "actor", "at")
    new = [row for row in rows["transition"] if row["transition_id"] > after]
    return [tuple(row[name] for name in names) for row in new], new[-1]["transition_id"] if new else after


def differences(rows: Rows, model: Model, now: int) -> Iterator[str]:
    """Say where the database is not as the model says."""
    held: dict[str, dict[Any, Any]] = {
        "job": {
            row["job_id"]: (
                row["tenant"],
                row["submission_key"],
                row["state"],
                row["validation_passed"],
                row["action_set_digest"],
                row["end_reason"],
                row["deadline_at"],
                row["predecessor_job_id"],
                row["behaviour_digest"],
                row["canonical_digest"],
            )
            for row in rows["job"]
        },
        "item": {
            _name(row): (
                row["state"],
                row["attempts"],
                row["attempt_limit"],
                row["token"],
                row["worker"],
                row["lease_until"],
                row["next_attempt_at"],
                row["output"],
                row["error_code"],
            )
            for row in rows["work_item"]
        },
        "attempt": {
            (*_name(row), row["attempt"]): (
                row["token"],
                row["worker"],
                row["started_at"],
                row["outcome"],
                row["ended_at"],
                row["output_digest"],
                row["error_code"],
            )
            for row in rows["attempt"]
        },
        "action": {
            row["action_key"]: (row["state"], row["token"], row["worker"], row["lease_until"], row["receipt"])
            for row in rows["action"]
        },
        "decision": {row["job_id"]: (row["action_set_digest"], row["decision"]) for row in rows["confirmation"]},
        "needed decision": {
            (row["job_id"], row["number"]): (
                row["part"],
                row["was"],
                row["now"],
                row["from_state"],
                row["asked_by"],
                row["decision"],
                row["decided_by"],
                row["settled_at"] is not None,
            )
            for row in rows["needed_decision"]
        },
        "behaviour": {
            (row["job_id"], row["number"]): (row["from_digest"], row["to_digest"]) for row in rows["job_behaviour"]
        },
        "estimate": {
            (row["job_id"], row["stage"]): (row["tokens"], row["cost_micros"]) for row in rows["call_estimate"]
        },
        "quota": quotas.quotas_held(rows["quota"], now),
        "reservation": quotas.reservations_held(rows["quota_reservation"]),
    }
    for kind, expected in _expected(model, now).items():
        for key in sorted(expected.keys() | held[kind].keys(), key=str):
            if expected.get(key) != held[kind].get(key):
                yield f"{kind} {key}: the model says {expected.get(key)}, the database {held[kind].get(key)}"


def _expected(model: Model, now: int) -> dict[str, dict[Any, Any]]:
    return {
        "job": {
            it.job_id: (
                it.tenant,
                it.key,
                it.state,
                it.passed,
                it.digest,
                it.end_reason,
                it.deadline_at,
                it.predecessor,
                it.behaviour.digest,
                it.parsed,
            )
            for it in model.jobs.values()
        },
        "item": {
            (it.key.job_id, it.key.stage, it.key.item_key, it.key.stage_version): (
                it.state,
                len(it.tries),
                it.limit,
                it.token,
                it.worker,
                it.lease_until,
                it.due,
                it.output,
                it.error_code,
            )
            for it in model.items()
        },
        "attempt": {
            (it.key.job_id, it.key.stage, it.key.item_key, it.key.stage_version, number): (
                one.token,
                one.worker,
                one.started_at,
                one.outcome,
                one.ended_at,
                one.output_digest,
                one.error_code,
            )
            for it in model.items()
            for number, one in enumerate(it.tries, start=1)
        },
        "action": {
            it.key: (it.state, it.token, it.worker, it.lease_until, it.receipt)
            for of_job in model.jobs.values()
            for it in of_job.actions.values()
        },
        "decision": {it.job_id: (it.digest, it.decision) for it in model.jobs.values() if it.decision is not None},
        "needed decision": {
            (of_job.job_id, number): (
                it.reason.part,
                it.reason.was,
                it.reason.now,
                it.from_state,
                it.asked_by,
                it.choice,
                it.by,
                it.settled,
            )
            for of_job in model.jobs.values()
            for number, it in enumerate(of_job.needed, start=1)
        },
        "behaviour": {
            (of_job.job_id, number): change
            for of_job in model.jobs.values()
            for number, change in enumerate(of_job.behaviours, start=1)
        },
        "estimate": {key: (need.tokens, need.cost_micros) for key, need in model.quotas.estimates.items()},
        "quota": quotas.quotas_expected(model.quotas, now),
        "reservation": quotas.reservations_expected(model.quotas),
    }


def broken(rows: Rows) -> Iterator[str]:
    """Say which invariants the rows break by themselves, whatever was asked of the ledger."""
    items = {_name(row): row for row in rows["work_item"]}
    tries: dict[ItemName, list[Row]] = defaultdict(list)
    for row in rows["attempt"]:
        tries[_name(row)].append(row)
    for name, row in items.items():
        yield from (f"{name} {found}" for found in _broken_item(row, tries[name]))
    tokens = Counter(row["token"] for row in rows["work_item"] if row["token"])
    yield from (f"{times} items hold one lease" for times in tokens.values() if times > 1)
    held_back = _held_back(rows)
    for row in rows["job"]:
        if row["job_id"] not in held_back:
            yield from (f"job {row['job_id']} {found}" for found in _broken_stages(row, items))
    yield from _broken_log(rows)
    yield from _broken_decisions(rows)
    yield from quotas.broken_reservations(rows["quota_reservation"], rows["attempt"])
    told = Counter(_name(row) for row in rows["outbox"])
    accepted = Counter(name for name, row in items.items() if row["state"] == WorkState.SUCCEEDED)
    published = Counter(
        (row["job_id"], "publish", DOCUMENT_ITEM, STAGE_VERSION)
        for row in rows["action"]
        if row["kind"] == "publish" and row["state"] == ActionState.DONE
    )
    if told != accepted + published:
        yield f"the outbox lacks {accepted + published - told}, and has {told - accepted - published} too many"


def _broken_item(row: Row, tries: list[Row]) -> Iterator[str]:
    accepted = [one for one in tries if one["outcome"] == AttemptOutcome.ACCEPTED]
    if len(accepted) != int(row["state"] == WorkState.SUCCEEDED):
        yield f"is {row['state']} with {len(accepted)} accepted attempts"
    elif accepted and not (sha256_hex(row["output"]) == row["output_digest"] == accepted[0]["output_digest"]):
        yield "holds another output than its accepted attempt"
    if accepted and accepted[0]["attempt"] != row["attempts"]:
        yield "was attempted again after its acceptance"
    if [one["attempt"] for one in tries] != list(range(1, row["attempts"] + 1)):
        yield f"counts {row['attempts']} attempts, there are {len(tries)}"
    if row["attempts"] > row["attempt_limit"]:
        yield f"has had {row['attempts']} of {row['attempt_limit']} attempts"
    if (row["state"] == WorkState.RUNNING) != (row["token"] is not None and row["lease_until"] is not None):
        yield f"is {row['state']}, and its lease says otherwise"
    in_flight = [one["token"] for one in tries if one["outcome"] is None]
    if row["state"] == WorkState.RUNNING and tries[-1]["token"] != row["token"]:
        yield "is held by another attempt than its last"
    if in_flight not in ([], [row["token"]]):
        yield f"has {len(in_flight)} attempts in flight"


def _broken_stages(row: Row, items: Mapping[ItemName, Row]) -> Iterator[str]:
    """The items of a stage are there if and only if every item of the one before has succeeded."""
    own: dict[Stage, list[Row]] = defaultdict(list)
    for name, item in items.items():
        if name[0] == row["job_id"]:
            own[Stage(item["stage"])].append(item)
    done = {stage: all(it["state"] == WorkState.SUCCEEDED for it in own[stage]) for stage in Stage}
    keys = {stage: sorted(it["item_key"] for it in own[stage]) for stage in Stage}
    for stage, before in _STAGE_NEEDS.items():
        if keys[stage] and not done[before]:
            yield f"has items of {stage} before {before} was complete"
    if len(keys[Stage.PARSE]) != 1 or len(keys[Stage.RETRIEVE]) != int(done[Stage.PARSE]):
        yield "has not one item to parse, and one to retrieve behind it"
    rules_passed = done[Stage.PARSE] and done[Stage.RETRIEVE] and done[Stage.GENERATE_RULES]
    if keys[Stage.GENERATE_TESTS] != (keys[Stage.GENERATE_RULES] if rules_passed else []):
        yield f"has the test items {keys[Stage.GENERATE_TESTS]}"
    if bool(keys[Stage.VALIDATE]) != (rules_passed and done[Stage.GENERATE_TESTS]):
        yield f"has {len(keys[Stage.VALIDATE])} items to validate"
    unfinished = [it for it in own[Stage.VALIDATE] if it["state"] != WorkState.SUCCEEDED]
    if unfinished and unfinished != [max(own[Stage.VALIDATE], key=lambda it: it["stage_version"])]:
        yield f"has {len(unfinished)} unfinished versions of its validation"
    for state, (stage, _) in NEXT_STAGE.items():
        if row["state"] == state and done[stage]:
            yield f"stays in {state} although {stage} is complete"


def _broken_log(rows: Rows) -> Iterator[str]:
    chains: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows["transition"]:
        chains[row["job_id"], row["subject"], row["stage"], row["subject_key"]].append(row)
    for subject, log in chains.items():
        for one, other in pairwise(log):
            # The next version of the validation begins anew.
            again = subject[2] == Stage.VALIDATE and (one["to_state"], other["from_state"]) == _AGAIN
            if other["from_state"] != one["to_state"] and not again:
                yield f"{subject} went to {one['to_state']} and then left {other['from_state']}"
            if other["at"] < one["at"]:
                yield f"{subject} went back in time"
    stands = {
        **{(row["job_id"], "job", None, None): row["state"] for row in rows["job"]},
        **{
            (row["job_id"], "work_item", row["stage"], row["item_key"]): row["state"]
            # The newest version comes last.
            for row in rows["work_item"]
        },
        **{(row["job_id"], "action", row["kind"], row["action_key"]): row["state"] for row in rows["action"]},
    }
    for subject, state in stands.items():
        log = chains.get(subject, [])
        # An item and an action are made without a word; their first transition is the first change.
        last = log[-1]["to_state"] if log else {"work_item": "pending", "action": "proposed"}.get(subject[1])
        is_next_version = subject[2] == Stage.VALIDATE and (last, state) == _AGAIN
        if state != last and not is_next_version:
            yield f"{subject} is {state} and its log ends with {last}"


def _held_back(rows: Rows) -> frozenset[int]:
    """The jobs that need a decision, or ended while they did: what was accepted meanwhile has opened nothing."""
    moves = [row for row in rows["transition"] if row["subject"] == "job"]
    ended = {row["job_id"] for row in moves if row["from_state"] == _NEEDS and row["to_state"] in _TERMINAL}
    return frozenset(ended | {row["job_id"] for row in rows["job"] if row["state"] == _NEEDS})


def _broken_decisions(rows: Rows) -> Iterator[str]:
    """A job that needs a decision hands nothing out, and goes back to where it stood."""
    needed: dict[int, list[Row]] = defaultdict(list)
    for row in rows["needed_decision"]:
        needed[row["job_id"]].append(row)
    for row in rows["job"]:
        unsettled = [one["number"] for one in needed[row["job_id"]] if one["settled_at"] is None]
        if row["state"] == _NEEDS and unsettled != [len(needed[row["job_id"]])]:
            yield f"job {row['job_id']} needs a decision, and has {unsettled} unsettled"
        if row["state"] not in (_NEEDS, *_TERMINAL) and unsettled:
            yield f"job {row['job_id']} is {row['state']}, and a decision about it is unsettled"
        changes = [one for one in rows["job_behaviour"] if one["job_id"] == row["job_id"]]
        if changes and changes[-1]["to_digest"] != row["behaviour_digest"]:
            yield f"job {row['job_id']} has another behaviour than its last change says"
        migrations = [one for one in needed[row["job_id"]] if one["decision"] == Choice.MIGRATE]
        if len(migrations) != len(changes):
            yield f"job {row['job_id']} was migrated {len(migrations)} times, and has {len(changes)} changes on record"
    held: dict[int, int] = {}
    asked: Counter[int] = Counter()
    for row in rows["transition"]:
        job_id = row["job_id"]
        if row["subject"] != "job":
            if job_id in held and row["to_state"] in (WorkState.RUNNING, ActionState.EXECUTING):
                yield f"{row['subject']} {row['subject_key']} of job {job_id} was handed out, which needs a decision"
        elif row["to_state"] == _NEEDS and row["from_state"] != _NEEDS:
            asked[job_id] += 1
            held[job_id] = asked[job_id]
        elif row["from_state"] == _NEEDS and row["to_state"] != _NEEDS:
            one = needed[job_id][held.pop(job_id) - 1]
            again = one["decision"] == Choice.MIGRATE and one["from_state"] == JobState.AWAITING_CONFIRMATION
            stood = JobState.VALIDATING if again else one["from_state"]
            if row["to_state"] not in (stood, *_TERMINAL):
                yield f"job {job_id} stood in {stood}, and went back to {row['to_state']}"


def changed(before: Rows, after: Rows) -> Iterator[str]:
    """Say what has changed that is final: accepted outputs, jobs that ended, attempts that ended, the log."""
    now = {_name(row): row for row in after["work_item"]}
    for row in before["work_item"]:
        same = now.get(_name(row))
        if row["state"] == WorkState.SUCCEEDED and (same is None or any(same[it] != row[it] for it in _ACCEPTED)):
            yield f"{_name(row)} was accepted and has changed"
    jobs = {row["job_id"]: row for row in after["job"]}
    for row in before["job"]:
        if row["state"] in _TERMINAL and jobs.get(row["job_id"]) != row:
            yield f"job {row['job_id']} had ended and has changed"
    tries = {(*_name(row), row["attempt"]): row for row in after["attempt"]}
    for row in before["attempt"]:
        replaceable = row["outcome"] in (None, AttemptOutcome.CRASHED, AttemptOutcome.CANCELLED)
        if not replaceable and tries.get((*_name(row), row["attempt"])) != row:
            yield f"attempt {row['attempt']} of {_name(row)} had ended and has changed"
    if after["transition"][: len(before["transition"])] != before["transition"]:
        yield "the log was rewritten"
    yield from quotas.changed_quotas(before, after)
    decided = {(row["job_id"], row["number"]): row for row in after["needed_decision"]}
    for row in before["needed_decision"]:
        if row["settled_at"] is not None and decided.get((row["job_id"], row["number"])) != row:
            yield f"decision {row['number']} of job {row['job_id']} was carried out and has changed"


def _name(row: Row) -> ItemName:
    return row["job_id"], row["stage"], row["item_key"], row["stage_version"]
