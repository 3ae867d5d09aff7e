"""Content of jobs that ended long ago: what goes, what stays, and what is said of it, on both databases."""

import os
from collections.abc import Callable
from dataclasses import replace

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from rulegen_dagster.domain.errors import LedgerError, StateError
from rulegen_dagster.domain.prompt import Prompt
from rulegen_dagster.domain.retention import ContentKind
from rulegen_dagster.domain.states import Stage
from rulegen_dagster.ledger.behaviour_schema import prompt as prompt_table
from rulegen_dagster.ledger.database import ManualClock
from rulegen_dagster.ledger.reads import JobRecord
from rulegen_dagster.ledger.retention import Retention
from rulegen_dagster.ledger.schema import removed_content as removed_table
from rulegen_dagster.providers.pattern import PatternProvider
from rulegen_dagster.providers.port import ProviderIdentity, ProviderReply, ProviderRequest
from rulegen_dagster.workflow.collect import Removed, collect
from rulegen_dagster.workflow.content import upload_of
from rulegen_dagster.workflow.explain import status_report
from rulegen_dagster.workflow.export import export_markdown
from rulegen_dagster.workflow.forks import fork_job
from rulegen_dagster.workflow.publish import Published, publish
from rulegen_dagster.workflow.review import review_report
from rulegen_dagster.workflow.runtime import Runtime
from tests.workflow.conftest import finish, playing, policy, run_stage, stored_blobs, submit

DAY_MS = 24 * 3_600_000
LONG_AGO_S = 1_000
NOW_MS = 100_000_000
PROMPT = Prompt(task="rules", version="1", text="Turn the clause into rules.")


def gc(runtime: Runtime, *, older_than_ms: int | None = DAY_MS, dry_run: bool = False) -> list[Removed]:
    """Collect with a grace period that every file has passed."""
    for path in stored_blobs(runtime):
        os.utime(path, (LONG_AGO_S, LONG_AGO_S))
    return list(
        collect(runtime, grace_ms=0, now_ms=NOW_MS, dry_run=dry_run, content_older_than_ms=older_than_ms, actor="test")
    )


def told(removed: list[Removed]) -> list[tuple[str, str]]:
    return [(one.kind.value, one.name) for one in removed if one.kind.value != "blob"]


def blobs(removed: list[Removed]) -> int:
    return sum(one.kind.value == "blob" for one in removed)


def published(runtime: Runtime, data: bytes, *, key: str) -> JobRecord:
    job = finish(runtime, submit(runtime, data, key=key))
    runtime.ledger.actions.confirm(job.job_id, str(job.action_set_digest), actor="test")
    assert isinstance(publish(runtime, job), Published)
    return runtime.ledger.reads.job_by_id(job.job_id)


def cancelled(runtime: Runtime, data: bytes, *, key: str) -> JobRecord:
    job = submit(runtime, data, key=key)
    run_stage(runtime, job, Stage.PARSE)
    runtime.ledger.cancellations.cancel(job.job_id, actor="test", reason="not wanted")
    return runtime.ledger.reads.job_by_id(job.job_id)


def test_the_content_of_a_job_that_ended_long_ago_goes_and_its_results_stay(
    local_runtime: Runtime, clock: ManualClock
) -> None:
    job = published(local_runtime, policy(2), key="old")
    before = status_report(local_runtime, job)
    review = review_report(local_runtime, job)
    clock.now_ms += DAY_MS + 1

    removed = gc(local_runtime)

    assert told(removed) == [("upload", "default/old"), ("canonical_text", "default/old")]
    # The policy has one line for each clause: upload and text are the same bytes.
    assert blobs(removed) == len({job.spec_digest, job.canonical_digest})
    assert stored_blobs(local_runtime) == []
    after, shown = status_report(local_runtime, job), review_report(local_runtime, job)
    assert after.pop("removed_content") == {"canonical_text": clock.now_ms, "upload": clock.now_ms}
    assert before.pop("removed_content") == {}
    assert after == before
    assert [clause.pop("location") for clause in shown["clauses"]] == ["its text was removed"] * 2
    assert [clause.pop("location") for clause in review["clauses"]] == ["line 1", "line 2"]
    assert shown == review
    assert "Meals are limited to" in export_markdown(local_runtime, job)


def test_a_job_at_work_and_one_that_ended_lately_keep_everything(local_runtime: Runtime, clock: ManualClock) -> None:
    at_work = submit(local_runtime, policy(1), key="at-work")
    clock.now_ms += DAY_MS
    lately = cancelled(local_runtime, policy(2), key="lately")
    clock.now_ms += DAY_MS - 1

    assert gc(local_runtime) == []
    assert upload_of(local_runtime, at_work) == policy(1)
    assert upload_of(local_runtime, lately) == policy(2)


def test_what_another_job_still_needs_stays_until_that_has_ended_too(runtime: Runtime, clock: ManualClock) -> None:
    old = cancelled(runtime, policy(1), key="old")
    clock.now_ms += DAY_MS + 1
    young = submit(runtime, policy(1), key="young")

    first = gc(runtime)
    kept = upload_of(runtime, young)
    runtime.ledger.cancellations.cancel(young.job_id, actor="test", reason="not wanted")
    clock.now_ms += DAY_MS + 1
    second = gc(runtime)

    assert (told(first), blobs(first)) == ([("upload", "default/old"), ("canonical_text", "default/old")], 0)
    assert kept == policy(1)
    assert (told(second), blobs(second)) == ([("upload", "default/young")], 1)
    assert stored_blobs(runtime) == []
    assert set(Retention(runtime.ledger.database).removed(old.job_id)) == {
        ContentKind.UPLOAD,
        ContentKind.CANONICAL_TEXT,
    }


def test_a_dry_run_tells_the_same_and_removes_nothing(local_runtime: Runtime, clock: ManualClock) -> None:
    cancelled(local_runtime, policy(1), key="old")
    clock.now_ms += DAY_MS + 1
    stored = stored_blobs(local_runtime)

    dry = gc(local_runtime, dry_run=True)
    left = stored_blobs(local_runtime)
    real = gc(local_runtime)

    assert dry == real
    assert left == stored
    assert stored_blobs(local_runtime) == []


def test_a_second_collection_finds_nothing_and_changes_no_time(local_runtime: Runtime, clock: ManualClock) -> None:
    job = cancelled(local_runtime, policy(1), key="old")
    clock.now_ms += DAY_MS + 1
    gc(local_runtime)
    removed = Retention(local_runtime.ledger.database).removed(job.job_id)
    clock.now_ms += DAY_MS

    assert gc(local_runtime) == []
    assert Retention(local_runtime.ledger.database).removed(job.job_id) == removed


def test_a_collection_that_was_lost_on_the_way_is_finished_by_any_other(
    local_runtime: Runtime, clock: ManualClock
) -> None:
    cancelled(local_runtime, policy(1), key="old")
    clock.now_ms += DAY_MS + 1
    # It is gone right after the rows that say so.
    Retention(local_runtime.ledger.database).mark(ended_before=clock.now_ms - DAY_MS, actor="test")

    removed = gc(local_runtime, older_than_ms=None)

    assert blobs(removed) == len(removed) > 0
    assert stored_blobs(local_runtime) == []


def test_without_the_option_no_content_goes(local_runtime: Runtime, clock: ManualClock) -> None:
    cancelled(local_runtime, policy(1), key="old")
    clock.now_ms += 1_000 * DAY_MS

    assert gc(local_runtime, older_than_ms=None) == []


def test_a_job_whose_content_was_removed_has_no_successor(runtime: Runtime, clock: ManualClock) -> None:
    job = cancelled(runtime, policy(1), key="old")
    forked = fork_job(runtime, job, "before", deadline_ms=None, actor="test")
    clock.now_ms += DAY_MS + 1
    gc(runtime)

    with pytest.raises(StateError, match="under a new key") as refusal:
        fork_job(runtime, job, "after", deadline_ms=None, actor="test")
    again = fork_job(runtime, job, "before", deadline_ms=None, actor="test")

    assert refusal.value.code == "content_removed"
    assert (again.existing, again.job.job_id) == (True, forked.job.job_id)
    # The successor that was opened in time has all that it needs.
    assert upload_of(runtime, forked.job) == policy(1)


def test_a_removed_upload_is_told_with_its_time_and_a_lost_one_as_lost(
    local_runtime: Runtime, clock: ManualClock
) -> None:
    removed, lost = (cancelled(local_runtime, policy(n), key=f"k{n}") for n in (1, 2))
    clock.now_ms += DAY_MS + 1
    Retention(local_runtime.ledger.database).mark(ended_before=clock.now_ms - DAY_MS, actor="test")
    untouched = submit(local_runtime, policy(3), key="k3")
    for path in stored_blobs(local_runtime):
        path.unlink()

    with pytest.raises(StateError, match=r"was removed on 1970-01-02 00:00:10") as told_of:
        upload_of(local_runtime, removed)
    with pytest.raises(LedgerError, match="missing"):
        upload_of(local_runtime, untouched)

    assert told_of.value.code == "content_removed"
    assert lost.state == "cancelled"


class Asking:
    """The pattern extractor, asked in words."""

    identity = ProviderIdentity(
        name="openai-compatible", model_id="small", is_language_model=True, prompts={PROMPT.task: PROMPT}
    )

    async def call(self, request: ProviderRequest) -> ProviderReply:
        return replace(await PatternProvider().call(request), model_id="small")


def test_the_text_of_a_prompt_goes_once_no_job_needs_it_and_its_digest_stays(
    runtime: Runtime, clock: ManualClock
) -> None:
    asking = playing(runtime, Asking())
    old = cancelled(asking, policy(1), key="old")
    clock.now_ms += DAY_MS + 1
    young = submit(asking, policy(2), key="young")

    first = gc(asking)
    runtime.ledger.cancellations.cancel(young.job_id, actor="test", reason="not wanted")
    clock.now_ms += DAY_MS + 1
    second = gc(asking)

    assert ("prompts", PROMPT.digest) not in told(first)
    assert told(second) == [
        ("upload", "default/young"),
        ("prompts", PROMPT.digest),
        ("prompts", "default/old"),
        ("prompts", "default/young"),
    ]
    with runtime.ledger.database.read() as connection:
        rows = connection.execute(sa.select(prompt_table.c.digest, prompt_table.c.content)).all()
    assert [tuple(row) for row in rows] == [(PROMPT.digest, None)]
    assert Retention(runtime.ledger.database).removed(old.job_id)[ContentKind.PROMPTS] == clock.now_ms


@pytest.mark.parametrize(
    "write",
    [
        lambda _job_id: sa.update(removed_table).values(removed_at=0),
        lambda _job_id: sa.delete(removed_table),
    ],
)
def test_what_says_that_content_was_removed_is_never_changed(
    runtime: Runtime, clock: ManualClock, write: Callable[[int], sa.UpdateBase]
) -> None:
    job = cancelled(runtime, policy(1), key="old")
    clock.now_ms += DAY_MS + 1
    gc(runtime)

    with pytest.raises(IntegrityError), runtime.ledger.database.engine.begin() as connection:
        connection.execute(write(job.job_id))


def test_the_database_refuses_to_call_the_content_of_a_job_at_work_removed(runtime: Runtime) -> None:
    job = submit(runtime, policy(1))
    values = {"job_id": job.job_id, "kind": "upload", "removed_at": 1, "actor": "test"}

    with pytest.raises(IntegrityError, match="ended"), runtime.ledger.database.engine.begin() as connection:
        connection.execute(sa.insert(removed_table).values(**values))
