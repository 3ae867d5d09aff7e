"""The invariants of the design, checked from outside: against the ledger's rows, the provider's journal, the bundle.

Each check is a pure function of the evidence of one run and names the invariant that it found broken. The third one
(short transactions, no call inside one) can't be seen from outside and is not claimed.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from rulegen_dagster.domain.canonical import sha256_hex
from rulegen_dagster.domain.states import TERMINAL_JOB_STATES, AttemptOutcome, JobState, Stage, WorkState
from rulegen_dagster.domain.work import DOCUMENT_ITEM
from rulegen_dagster.workflow.chaos_job import EXPECTED_CODES, Call, Ending, Snapshot, fingerprint

Row = dict[str, Any]
ItemName = tuple[str, str]

UNCHECKED = ("3: short transactions, with no call inside one, can't be seen from outside",)
_TERMINAL = frozenset(state.value for state in TERMINAL_JOB_STATES)
_DOCUMENT_STAGES = (Stage.PARSE, Stage.RETRIEVE, Stage.VALIDATE)


@dataclass(frozen=True, kw_only=True)
class Violation:
    """One broken invariant: its number in the design, and what was found."""

    invariant: int
    found: str


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What one run left.

    `before` has a snapshot for each restart, taken before the new process did anything; `frozen` one for each stopped
    process, taken before it went on. `bystander` is the other tenant's rows, before and after.
    """

    before: Sequence[Snapshot]
    frozen: Sequence[Snapshot]
    after: Snapshot
    calls: Sequence[Call]
    ending: Ending
    bystander: tuple[str, str]
    killed: bool


def check(evidence: Evidence) -> list[Violation]:
    """Return every invariant that the run broke."""
    return [Violation(invariant=number, found=found) for number, examine in _CHECKS for found in examine(evidence)]


def _one_accepted_output(evidence: Evidence) -> Iterator[str]:
    attempts = _attempts(evidence.after)
    for name, item in _items(evidence.after).items():
        tries = attempts.get(name, [])
        accepted = [row for row in tries if row["outcome"] == AttemptOutcome.ACCEPTED]
        if item["state"] != WorkState.SUCCEEDED:
            yield f"{_named(name)} ended as {item['state']}"
            continue
        if len(accepted) != 1:
            yield f"{_named(name)} has {len(accepted)} accepted attempts"
        elif accepted[0]["output_digest"] != item["output_digest"]:
            yield f"{_named(name)}: the accepted attempt and the item name different outputs"
        if sha256_hex(item["output"]) != item["output_digest"]:
            yield f"{_named(name)}: the output is not what its digest says"
        if [row["attempt"] for row in tries] != list(range(1, item["attempts"] + 1)):
            yield f"{_named(name)}: the item counts {item['attempts']} attempts, there are {len(tries)}"
        if any(row["outcome"] is None for row in tries):
            yield f"{_named(name)} has an attempt without an outcome"
    for earlier in (*evidence.before, *evidence.frozen):
        for name, item in _items(earlier).items():
            if item["state"] == WorkState.SUCCEEDED and _items(evidence.after).get(name) != item:
                yield f"{_named(name)} was accepted and has changed since"


def _one_event_for_each_acceptance(evidence: Evidence) -> Iterator[str]:
    job = _job(evidence.after)
    name = f"{job['tenant']}/{job['submission_key']}"
    accepted = {
        (stage, item, row["output_digest"])
        for (stage, item), row in _items(evidence.after).items()
        if row["state"] == WorkState.SUCCEEDED
    }
    for row in evidence.after.rows["action"]:
        if row["kind"] == Stage.PUBLISH and row["state"] == "done":
            accepted.add((Stage.PUBLISH.value, DOCUMENT_ITEM, json.loads(row["receipt"])["manifest_sha256"]))
    boxed = Counter((row["stage"], row["item_key"]) for row in evidence.after.rows["outbox"])
    told = Counter(tuple(line.split()[1:]) for line in evidence.ending.events if line.split()[0] == name)
    for found in accepted:
        if boxed[found[:2]] != 1:
            yield f"{_named(found[:2])} was accepted and has {boxed[found[:2]]} rows in the outbox"
        if told[found] != 1:
            yield f"{_named(found[:2])} was accepted and has {told[found]} events"
    if len(boxed) > len(accepted) or len(told) > len(accepted):
        yield f"{len(accepted)} outputs were accepted; the outbox tells of {len(boxed)}, the events of {len(told)}"
    unmirrored = sum(row["mirrored_at"] is None for row in evidence.after.rows["outbox"])
    if unmirrored:
        yield f"{unmirrored} rows of the outbox are not mirrored"


def _nothing_generated_again(evidence: Evidence) -> Iterator[str]:
    job = _job(evidence.after)
    own = [call for call in evidence.calls if call.job == f"{job['tenant']}/{job['submission_key']}"]
    for call, times in Counter(own).items():
        if times > 1:
            yield f"attempt {call.attempt} at {call.stage}/{call.item} made {times} calls"
    for name, tries in _attempts(evidence.after).items():
        accepted = min((row["attempt"] for row in tries if row["outcome"] == AttemptOutcome.ACCEPTED), default=None)
        if accepted is not None and tries[-1]["attempt"] > accepted:
            yield f"{_named(name)} was attempted again after attempt {accepted} was accepted"
    for earlier in evidence.before:
        committed = {name for name, item in _items(earlier).items() if item["state"] == WorkState.SUCCEEDED}
        # A process that was stopped just before its call makes it when it goes on: its claim is older.
        if evidence.frozen:
            continue
        for call in evidence.calls[earlier.calls :]:
            if (call.stage, call.item) in committed:
                yield f"{call.stage}/{call.item} was called again after it was committed"


def _terminal_states_once(evidence: Evidence) -> Iterator[str]:
    chains: dict[tuple[str, str | None, str | None], list[Row]] = defaultdict(list)
    for row in evidence.after.rows["transition"]:
        chains[row["subject"], row["stage"], row["subject_key"]].append(row)
    for subject, rows in chains.items():
        for one, other in pairwise(rows):
            if other["from_state"] != one["to_state"]:
                yield f"{subject} went to {one['to_state']} and then left {other['from_state']}"
    moves = [row["to_state"] for row in chains["job", None, None]]
    if [state for state in moves if state in _TERMINAL] != [JobState.COMPLETED] or moves[-1] != JobState.COMPLETED:
        yield f"the job's states were {', '.join(moves)}"
    if _job(evidence.after)["state"] != moves[-1]:
        yield f"the job is {_job(evidence.after)['state']} and its log ends with {moves[-1]}"
    for name, item in _items(evidence.after).items():
        logged = [row["to_state"] for row in chains.get(("work_item", *name), [])]
        if not logged or logged[-1] != item["state"]:
            yield f"{_named(name)} is {item['state']} and its log ends with {logged[-1:] or 'nothing'}"


def _stages_created_once(evidence: Evidence) -> Iterator[str]:
    keys: dict[str, list[str]] = defaultdict(list)
    for stage, item in _items(evidence.after):
        keys[stage].append(item)
    normative = sum(1 for row in evidence.after.rows["clause"] if row["role"] == "normative")
    if len(keys[Stage.GENERATE_RULES]) != normative:
        yield f"{normative} normative clauses gave {len(keys[Stage.GENERATE_RULES])} rule items"
    if sorted(keys[Stage.GENERATE_RULES]) != sorted(keys[Stage.GENERATE_TESTS]):
        yield "rule items and test items differ"
    for stage in _DOCUMENT_STAGES:
        if len(keys[stage]) != 1:
            yield f"{stage} has {len(keys[stage])} items"
    entered = Counter(row["to_state"] for row in evidence.after.rows["transition"] if row["subject"] == "job")
    for state, times in entered.items():
        if times > 1:
            yield f"the job entered {state} {times} times"


def _crashes_consume_attempts(evidence: Evidence) -> Iterator[str]:
    after = _attempts(evidence.after)
    # A process that only stood still comes back, and what became of its call replaces the guess that it crashed.
    booked_as = {AttemptOutcome.CRASHED} if evidence.killed else set(AttemptOutcome) - {AttemptOutcome.ACCEPTED}
    for earlier in evidence.before:
        for name, item in _items(earlier).items():
            if item["state"] != WorkState.RUNNING:
                continue
            lost = next((row for row in after.get(name, []) if row["token"] == item["token"]), None)
            if lost is None or lost["outcome"] not in booked_as:
                yield f"{_named(name)}: attempt {item['attempts']} was lost and is booked as {lost and lost['outcome']}"
            elif _items(evidence.after)[name]["attempts"] <= item["attempts"]:
                yield f"{_named(name)}: the lost attempt {item['attempts']} was not counted"


def _same_submission_same_job(evidence: Evidence) -> Iterator[str]:
    if not evidence.ending.same_job:
        yield "the same submission gave another job"
    if not evidence.ending.conflict:
        yield "another input under the same key was no conflict"
    jobs = {_job(found)["job_id"] for found in (*evidence.before, *evidence.frozen, evidence.after) if found.rows}
    if len(jobs) != 1:
        yield f"the submission had {len(jobs)} jobs over its restarts"


def _behaviour_kept(evidence: Evidence) -> Iterator[str]:
    kept = {
        (_job(found)["behaviour_digest"], fingerprint({"behaviour": found.rows["behaviour"]}))
        for found in (*evidence.before, *evidence.frozen, evidence.after)
        if found.rows
    }
    if len(kept) != 1:
        yield "the job's behaviour changed on the way"
    (row, *_) = evidence.after.rows["behaviour"]
    if sha256_hex(row["content"]) != row["digest"]:
        yield "the behaviour is not what its digest says"


def _other_tenant_untouched(evidence: Evidence) -> Iterator[str]:
    before, after = evidence.bystander
    if before != after:
        yield "the other tenant's job has changed"
    own = [_job(evidence.after), *(rows["job"][0] for rows in evidence.after.others.values())]
    strangers = {call.job for call in evidence.calls} - {f"{job['tenant']}/{job['submission_key']}" for job in own}
    if strangers:
        yield f"{len(strangers)} jobs of others were called for"


def _one_confirmed_bundle(evidence: Evidence) -> Iterator[str]:
    digest, ending = _job(evidence.after)["action_set_digest"], evidence.ending
    if ending.bundles != (digest,):
        yield f"{len(ending.bundles)} bundles were published for one action set"
    if ending.left_overs:
        yield f"{len(ending.left_overs)} unfinished bundles were left"
    if ending.bundle_error:
        yield ending.bundle_error
    decided = [(row["action_set_digest"], row["decision"]) for row in evidence.after.rows["confirmation"]]
    if decided != [(digest, "confirmed")]:
        yield f"{len(decided)} decisions were kept for one confirmation"
    actions = evidence.after.rows["action"]
    receipts = [json.loads(row["receipt"]) for row in actions if row["state"] == "done"]
    if len(actions) != 1 or [receipt["manifest_sha256"] for receipt in receipts] != [ending.manifest]:
        yield "the receipt is not that of the bundle"
    entered = [row["to_state"] for row in evidence.after.rows["transition"] if row["subject"] == "action"]
    if entered.count("done") != 1:
        yield f"the action was done {entered.count('done')} times"


def _errors_under_their_names(evidence: Evidence) -> Iterator[str]:
    for name, tries in _attempts(evidence.after).items():
        for row in tries:
            if row["error_code"] is not None and row["error_code"] not in EXPECTED_CODES:
                yield f"{_named(name)}: attempt {row['attempt']} was booked as {row['error_code']}"


def _always_a_reason(evidence: Evidence) -> Iterator[str]:
    for found in (*evidence.before, *evidence.frozen):
        if found.rows and not (found.reason and found.reason_code):
            yield f"status had no reason for a job in {found.state}"
        if found.reason_code == "published" and found.state != JobState.COMPLETED:
            yield f"a job in {found.state} was shown as published"
    if evidence.after.state != JobState.COMPLETED or evidence.after.reason_code != "published":
        yield f"the job ended in {evidence.after.state}: {evidence.after.reason}"


_CHECKS: tuple[tuple[int, Callable[[Evidence], Iterator[str]]], ...] = (
    (1, _one_accepted_output),
    (1, _one_event_for_each_acceptance),
    (2, _nothing_generated_again),
    (4, _terminal_states_once),
    (5, _stages_created_once),
    (6, _crashes_consume_attempts),
    (7, _same_submission_same_job),
    (8, _behaviour_kept),
    (9, _other_tenant_untouched),
    (10, _one_confirmed_bundle),
    (11, _errors_under_their_names),
    (12, _always_a_reason),
)


def _job(found: Snapshot) -> Row:
    (row,) = found.rows["job"]
    return row


def _items(found: Snapshot) -> dict[ItemName, Row]:
    return {(row["stage"], row["item_key"]): row for row in found.rows.get("work_item", [])}


def _attempts(found: Snapshot) -> dict[ItemName, list[Row]]:
    tries: dict[ItemName, list[Row]] = defaultdict(list)
    for row in sorted(found.rows.get("attempt", []), key=lambda row: row["attempt"]):
        tries[row["stage"], row["item_key"]].append(row)
    return tries


def _named(name: ItemName) -> str:
    return "/".join(name)
