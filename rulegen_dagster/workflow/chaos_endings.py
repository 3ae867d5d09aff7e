"""The other jobs of a run of chaos, which end without a bundle, and what must hold of them.

One needs a decision, is retained, goes on and is cancelled with work in flight. One expires half-way; its successor
keeps what was accepted, is given more time, does the rest but for a clause that fails and is waived, is validated as
too little and, after another waiver, once more, and is rejected.
Every step may be repeated by whoever goes on after a crash.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from rulegen_dagster.domain.behaviour import Choice, Incompatibility, Part
from rulegen_dagster.domain.errors import StateError
from rulegen_dagster.domain.states import (
    TERMINAL_JOB_STATES,
    ActionState,
    AttemptOutcome,
    JobState,
    Stage,
    WorkState,
)
from rulegen_dagster.domain.work import STAGE_VERSION, Landing, Offer
from rulegen_dagster.ledger.audit import Rows
from rulegen_dagster.ledger.claims import Scope
from rulegen_dagster.ledger.needed_decisions import decisions_of_job
from rulegen_dagster.ledger.reads import JobRecord
from rulegen_dagster.workflow.behaviours import ask, check
from rulegen_dagster.workflow.chaos_invariants import Evidence, Violation
from rulegen_dagster.workflow.chaos_job import (
    CANCELLED,
    EXPIRED,
    OTHER_JOBS,
    SUCCESSOR,
    TENANT,
    Scene,
    Snapshot,
    complete,
    go_on,
)
from rulegen_dagster.workflow.documents import NotReady, Reused, accept, prepare
from rulegen_dagster.workflow.drive import drive, generate
from rulegen_dagster.workflow.intake import submit_upload
from rulegen_dagster.workflow.runtime import Runtime

FILE_NAME = "chaos-other-policy.md"
POLICY = b"""# Expenses

- Lodging always requires an itemized receipt.
- First-class flights are not reimbursable.
- Client meals may not exceed $120 per person.
"""
OTHER_SCHEMA = Incompatibility(part=Part.OUTPUT_SCHEMA, was="this one", now="another one")
_DAY_MS = 24 * 3_600_000
_TOO_LONG_MS = 30 * _DAY_MS
_ENDED = frozenset(state.value for state in TERMINAL_JOB_STATES)
_OPEN = frozenset({WorkState.PENDING, WorkState.RUNNING, WorkState.WAITING})
_ENDS_AS = {CANCELLED: JobState.CANCELLED, EXPIRED: JobState.EXPIRED, SUCCESSOR: JobState.CANCELLED}
_FINAL_TABLES = ("job", "work_item", "action", "confirmation", "transition")
_INHERITABLE = (Stage.PARSE, Stage.RETRIEVE, Stage.GENERATE_RULES, Stage.GENERATE_TESTS)


def play(scene: Scene, runtime: Runtime) -> JobRecord:
    """Take every job of the run to its end; return the run's own."""
    if scene.endings:
        _cancel(scene, runtime)
        _reject(scene, runtime, _succeed(scene, runtime, _expire(scene, runtime)))
    return complete(scene, runtime)


def _submit(scene: Scene, runtime: Runtime, kind: str) -> JobRecord:
    """Submit another job and open its rules."""
    key = scene.others[kind].submission_key
    job = submit_upload(runtime, POLICY, FILE_NAME, tenant=TENANT, key=key, actor="chaos").job
    for stage in (Stage.PARSE, Stage.RETRIEVE):
        prepared = prepare(runtime, job.job_id, stage)
        if not isinstance(prepared, (NotReady, Reused)):
            accept(runtime, prepared)
    return runtime.ledger.reads.job_by_id(job.job_id)


def _cancel(scene: Scene, runtime: Runtime) -> None:
    """Cancel a job with its items in flight. Raises `StateError` where one of them is accepted after that."""
    job = _submit(scene, runtime, CANCELLED)
    _retain(runtime, job)
    rules = Scope(stages=(Stage.GENERATE_RULES,), job_ids=(job.job_id,))
    with runtime.ledger.turn(runtime.claimant) as turn:
        claims = turn.claim(rules, [runtime.tokens()])
    with contextlib.suppress(StateError):
        runtime.ledger.cancellations.cancel(job.job_id, actor="chaos", reason="not needed")
    with runtime.ledger.turn(runtime.claimant) as turn:
        for claim in claims:
            turn.offer(Offer(claim=claim, output="{}"))
        landings = turn.settle()
    if Landing.ACCEPTED in landings.values():
        raise StateError("an output was accepted after its job was cancelled", code="accepted_late")


def _retain(runtime: Runtime, job: JobRecord) -> None:
    """Have a decision asked about a job once, and go on with it when it is taken: as if another release had looked."""
    if not decisions_of_job(runtime.ledger.database, job.job_id):
        ask(runtime, job.job_id, OTHER_SCHEMA, whoever_works=True)
    with contextlib.suppress(StateError):
        runtime.ledger.decisions.retain(job.job_id, actor="chaos", reason="it is finished here", resume=False)
    check(runtime, job.job_id)


def _expire(scene: Scene, runtime: Runtime) -> JobRecord:
    """Let a job expire of whose rules some are accepted."""
    job = _submit(scene, runtime, EXPIRED)
    generate(runtime, Scope(stages=(Stage.GENERATE_RULES,), job_ids=(job.job_id,)), observe=lambda _: None)
    runtime.ledger.deadlines.expire(job.job_id, actor="chaos", wait_ms=_TOO_LONG_MS)
    return job


def _succeed(scene: Scene, runtime: Runtime, expired: JobRecord) -> JobRecord:
    """Open the successor of an expired job, and give it more time."""
    key = scene.others[SUCCESSOR].submission_key
    opened = runtime.ledger.forks.fork(expired.job_id, key, deadline_ms=_DAY_MS, actor="chaos")
    with contextlib.suppress(StateError):
        runtime.ledger.deadlines.extend(opened.job_id, by_ms=_DAY_MS, actor="chaos", reason="it is late")
    return runtime.ledger.reads.job_by_id(opened.job_id)


def _reject(scene: Scene, runtime: Runtime, job: JobRecord) -> None:
    """Do what is left of a job, waive the clause whose tests fail for good, then the next one, and reject the job.

    `REJECTED_ONCE` lets the tests of the first clause fail.
    """
    drive(runtime, job, observe=lambda _: None, on_wait=lambda _: None, sleep=scene.clock.sleep)
    failing, other, _ = (
        item.clause_ordinal or 0 for item in runtime.ledger.reads.items(job.job_id, Stage.GENERATE_RULES)
    )
    _waive(runtime, job, failing)
    _find_too_little(runtime, job)
    _waive(runtime, job, other)
    job = go_on(scene, runtime, job)
    with contextlib.suppress(StateError):
        runtime.ledger.actions.reject(job.job_id, actor="chaos", reason="not what was meant")


def _waive(runtime: Runtime, job: JobRecord, clause: int) -> None:
    with contextlib.suppress(StateError):
        runtime.ledger.waivers.waive(job.job_id, clause, actor="chaos", reason="not a rule")


def _find_too_little(runtime: Runtime, job: JobRecord) -> None:
    """Accept a first report that says that the job is below its policy, so that the next waiver asks for a second one.

    Whoever comes here after a crash may find the job validated already, and passed: then there is no second one.
    """
    prepared = prepare(runtime, job.job_id, Stage.VALIDATE)
    if isinstance(prepared, Offer):
        is_first = prepared.claim.key.stage_version == STAGE_VERSION
        accept(runtime, replace(prepared, passed=False, action_set=None) if is_first else prepared)


def check_others(evidence: Evidence) -> list[Violation]:
    """Return every invariant that one of the other jobs broke; none where the run has no other jobs."""
    others = evidence.after.others
    if not others:
        return []
    found = [(4, f"there is no job that is {kind}") for kind in OTHER_JOBS if kind not in others]
    for kind, rows in others.items():
        found += ((number, f"the {kind} job: {text}") for number, text in _broken(kind, rows, evidence))
    if {EXPIRED, SUCCESSOR} <= others.keys():
        found += _broken_inheritance(others[EXPIRED], others[SUCCESSOR], evidence)
    return [Violation(invariant=number, found=text) for number, text in found]


def _broken(kind: str, rows: Rows, evidence: Evidence) -> Iterator[tuple[int, str]]:
    (job,) = rows["job"]
    moves = [row for row in rows["transition"] if row["subject"] == "job" and row["from_state"] != row["to_state"]]
    ended = [row["to_state"] for row in moves if row["to_state"] in _ENDED]
    if ended != [_ENDS_AS[kind]] or job["state"] != _ENDS_AS[kind] or moves[-1]["to_state"] != job["state"]:
        yield 4, f"it is {job['state']}, and has ended as {', '.join(ended) or 'nothing'}"
    accepted = Counter(_item(row) for row in rows["attempt"] if row["outcome"] == AttemptOutcome.ACCEPTED)
    for item in rows["work_item"]:
        if item["state"] in _OPEN:
            yield 4, f"{item['stage']}/{item['item_key']} is {item['state']}"
        if accepted[_item(item)] != int(item["state"] == WorkState.SUCCEEDED):
            yield 1, f"{item['stage']}/{item['item_key']} has {accepted[_item(item)]} accepted attempts"
    counted = Counter(_item(row) for row in rows["attempt"])
    if any(counted[_item(item)] != item["attempts"] for item in rows["work_item"]):
        yield 6, "an item counts other attempts than there are"
    if any(row["outcome"] is None for row in rows["attempt"]):
        yield 6, "an attempt has no outcome"
    decisions = [row["decision"] for row in rows["confirmation"]]
    if decisions != (["rejected"] if kind == SUCCESSOR else []):
        yield 10, f"its decisions are {', '.join(decisions) or 'none'}"
    if any(row["state"] != ActionState.FAILED for row in rows["action"]):
        yield 10, "an action was begun or is still to be done"
    yield from _undecided(kind, rows)
    yield from _changed(kind, rows, evidence)


def _undecided(kind: str, rows: Rows) -> Iterator[tuple[int, str]]:
    """Say where the job that needed a decision did not get exactly one, or changed its behaviour for it."""
    found = [(row["decision"], row["settled_at"] is not None) for row in rows["needed_decision"]]
    if found != ([(Choice.RETAIN.value, True)] if kind == CANCELLED else []):
        yield 8, f"the decisions that it needed are {found}"
    if rows["job_behaviour"]:
        yield 8, "its behaviour was changed, and nobody asked for that"


def _changed(kind: str, rows: Rows, evidence: Evidence) -> Iterator[tuple[int, str]]:
    (job,) = rows["job"]
    name = f"{job['tenant']}/{job['submission_key']}"
    for call, times in Counter(call for call in evidence.calls if call.job == name).items():
        if times > 1:
            yield 2, f"attempt {call.attempt} at {call.stage}/{call.item} made {times} calls"
    now = {_item(row): row for row in rows["work_item"]}
    for earlier in (*evidence.before, *evidence.frozen):
        then = earlier.others.get(kind)
        if then is None:
            continue
        for row in then["work_item"]:
            if row["state"] == WorkState.SUCCEEDED and now[_item(row)] != row:
                yield 1, f"{row['stage']}/{row['item_key']} was accepted and has changed since"
        if then["job"][0]["state"] in _ENDED and any(then[table] != rows[table] for table in _FINAL_TABLES):
            yield 4, "it had ended and has changed since"
        if then["job"][0]["state"] in _ENDED and not evidence.frozen and _calls_since(earlier, name, evidence):
            yield 2, "it had ended and was called for again"


def _calls_since(earlier: Snapshot, name: str, evidence: Evidence) -> int:
    return sum(call.job == name for call in evidence.calls[earlier.calls :])


def _broken_inheritance(old: Rows, new: Rows, evidence: Evidence) -> Iterator[tuple[int, str]]:
    (before,), (after,) = old["job"], new["job"]
    if after["behaviour_digest"] != before["behaviour_digest"]:
        yield 8, "the successor has another behaviour"
    given = {_item(row) for row in new["attempt"] if row["inherited_from"] == before["job_id"]}
    outputs = {_item(row): row["output_digest"] for row in new["work_item"]}
    for row in old["work_item"]:
        if row["state"] != WorkState.SUCCEEDED or row["stage"] not in _INHERITABLE:
            continue
        if _item(row) not in given or outputs[_item(row)] != row["output_digest"]:
            yield 2, f"the successor lacks the accepted output of {row['stage']}/{row['item_key']}"
    name = f"{after['tenant']}/{after['submission_key']}"
    called = {(call.stage, call.item) for call in evidence.calls if call.job == name}
    again = called & {(stage, item) for stage, item, _ in given}
    if again:
        yield 2, f"{len(again)} outputs that the successor was given were called for again"


def _item(row: dict[str, Any]) -> tuple[str, str, int]:
    return row["stage"], row["item_key"], row["stage_version"]
