"""Cancellation, deadline and completion at one instant of a clock that stands still: one end, on both databases."""

import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from rulegen_dagster.domain.errors import StateError
from rulegen_dagster.domain.states import TERMINAL_JOB_STATES, ActionState, JobState, Stage, WorkState
from rulegen_dagster.domain.work import Claim, Landing, Offer
from rulegen_dagster.ledger.audit import Rows, audit_job
from rulegen_dagster.ledger.claims import Scope
from rulegen_dagster.ledger.database import ManualClock
from rulegen_dagster.ledger.schema import transition
from rulegen_dagster.ledger.store import Ledger, open_ledger
from tests.conftest import POLICY, _create, _database_url, _drop
from tests.ledger.conftest import ALICE, parsed_spec, submission
from tests.ledger.test_cancellations import ACTION_SET, _race, offer
from tests.ledger.test_deadlines import DEADLINES, GIVEN_MS

ROUNDS = 25
ENDS = {"cancel": JobState.CANCELLED, "expire": JobState.EXPIRED, "publish": JobState.COMPLETED}

Side = Callable[[], Any]


@dataclass(frozen=True, kw_only=True)
class Place:
    """A ledger and its clock."""

    ledger: Ledger
    clock: ManualClock


@pytest.fixture
def place(ledger_url: str, clock: ManualClock) -> Iterator[Place]:
    with closing(open_ledger(ledger_url, POLICY, clock, DEADLINES)) as ledger:
        yield Place(ledger=ledger, clock=clock)


@pytest.fixture
def both(
    sqlite_template: Path, postgres_server: str, postgres_template: str, tmp_path: Path
) -> Iterator[tuple[Place, ...]]:
    """An empty ledger on each database, and two clocks that show the same time."""
    shutil.copyfile(sqlite_template, tmp_path / "both.sqlite3")
    name = f"rulegen_test_{uuid.uuid4().hex[:12]}"
    _create(postgres_server, name, template=postgres_template)
    urls = (f"sqlite:///{tmp_path / 'both.sqlite3'}", _database_url(postgres_server, name))
    clocks = (ManualClock(10_000), ManualClock(10_000))
    ledgers = [open_ledger(url, POLICY, clock, DEADLINES) for url, clock in zip(urls, clocks, strict=True)]
    yield tuple(Place(ledger=ledger, clock=clock) for ledger, clock in zip(ledgers, clocks, strict=True))
    for ledger in ledgers:
        ledger.close()
    _drop(postgres_server, name)


def taken(ledger: Ledger, job_id: int, stage: Stage, count: int = 1) -> tuple[Claim, ...]:
    # Tokens that are the same on both databases, so that whole rows can be compared.
    with ledger.turn(ALICE) as turn:
        tokens = [f"{job_id}-{stage}-{number}" for number in range(count)]
        return turn.claim(Scope(stages=(stage,), job_ids=(job_id,)), tokens)


def settle(ledger: Ledger, *offers: Offer) -> list[Landing]:
    with ledger.turn(ALICE) as turn:
        for one in offers:
            turn.offer(one)
        return list(turn.settle().values())


def opened(ledger: Ledger, key: str, items: int) -> int:
    request = replace(submission(key), deadline_ms=GIVEN_MS)
    job_id = ledger.submissions.submit(request, actor="test").job_id
    (parse,) = taken(ledger, job_id, Stage.PARSE)
    settle(ledger, Offer(claim=parse, output="{}", parsed=parsed_spec(items)))
    (retrieve,) = taken(ledger, job_id, Stage.RETRIEVE)
    settle(ledger, Offer(claim=retrieve, output='{"context":{}}'))
    return job_id


def ends(ledger: Ledger, job_id: int) -> dict[str, Side]:
    return {
        "cancel": partial(ledger.cancellations.cancel, job_id, actor="ann", reason="wrong edition"),
        "expire": partial(ledger.deadlines.expire, job_id, actor="deadlines"),
    }


def last_item(place: Place, key: str) -> tuple[int, dict[str, Side]]:
    """A job whose last rule item is in flight while its time runs out, and what may happen to it at that instant."""
    job_id = opened(place.ledger, key, 3)
    place.clock.now_ms += GIVEN_MS - DEADLINES.reserve_ms
    first, second, third = taken(place.ledger, job_id, Stage.GENERATE_RULES, 3)
    settle(place.ledger, offer(first), offer(second))
    place.clock.now_ms += 1
    return job_id, {"complete": partial(settle, place.ledger, offer(third)), **ends(place.ledger, job_id)}


def last_action(place: Place, key: str) -> tuple[int, dict[str, Side]]:
    """A job whose confirmation comes when its time has run out, and what may happen to it at that instant."""
    ledger = place.ledger
    job_id = opened(ledger, key, 0)
    (validate,) = taken(ledger, job_id, Stage.VALIDATE)
    settle(ledger, Offer(claim=validate, output="{}", passed=True, action_set=ACTION_SET))
    digest = str(ledger.reads.job_by_id(job_id).action_set_digest)
    place.clock.now_ms += GIVEN_MS

    def publish() -> bool:
        ledger.actions.confirm(job_id, digest, actor="ann")
        begun = ledger.actions.claim(job_id, token=f"publish-{job_id}", claimant=ALICE)
        return begun is not None and ledger.actions.finish(begun, receipt="{}", actor="alice")

    return job_id, {"publish": publish, **ends(ledger, job_id)}


SCENARIOS = {"the last item": last_item, "the publication": last_action}
ORDERS = [
    *(("the last item", order) for order in permutations(("complete", "cancel", "expire"))),
    *(("the publication", order) for order in permutations(("publish", "cancel", "expire"))),
]


def told(side: Side) -> str:
    """What a side is told, as a word: whether it was too late."""
    try:
        answer = side()
    except StateError:
        return "refused"
    return "too late" if answer in (None, False, [Landing.STALE]) else "done"


def terminal(ledger: Ledger, job_id: int) -> list[str]:
    """Every entry of the log in which the job ends."""
    with ledger.database.read() as connection:
        rows = connection.execute(
            sa.select(transition.c.to_state)
            .where(
                transition.c.job_id == job_id,
                transition.c.subject == "job",
                transition.c.to_state.in_([state.value for state in TERMINAL_JOB_STATES]),
            )
            .order_by(transition.c.transition_id)
        )
        return list(rows.scalars())


def assert_closed(ledger: Ledger, job_id: int) -> None:
    """Nothing was written behind the job's end, nothing of it is open, and nobody can change it any more."""
    rows = audit_job(ledger.database, job_id)
    (end,) = terminal(ledger, job_id)
    last = rows["transition"][-1]
    assert (last["subject"], last["to_state"]) == ("job", end)
    assert rows["job"][0]["state"] == end
    assert {row["state"] for row in rows["work_item"]} <= {WorkState.SUCCEEDED, WorkState.CANCELLED}
    assert all(row["outcome"] is not None for row in rows["attempt"])
    assert {row["state"] for row in rows["action"]} <= {ActionState.DONE, ActionState.FAILED}

    for side in ends(ledger, job_id).values():
        assert told(side) != "done"
    with pytest.raises(StateError):
        ledger.deadlines.extend(job_id, by_ms=1_000, actor="ann", reason="again")
    for stage in (Stage.GENERATE_RULES, Stage.GENERATE_TESTS, Stage.VALIDATE):
        assert taken(ledger, job_id, stage) == ()
        assert ledger.redrives.redrive(job_id, stage, None, actor="ann", reason="again") == ()
    assert ledger.actions.claim(job_id, token="late", claimant=ALICE) is None  # noqa: S106
    assert audit_job(ledger.database, job_id) == rows


@pytest.mark.parametrize(("scenario", "order"), ORDERS, ids=str)
def test_the_first_end_counts_and_both_databases_tell_the_same_story(
    both: tuple[Place, ...], scenario: str, order: tuple[str, ...]
) -> None:
    stories: list[tuple[list[str], Rows]] = []
    for place in both:
        job_id, sides = SCENARIOS[scenario](place, "race")
        answers = [told(sides[name]) for name in order]
        assert_closed(place.ledger, job_id)
        stories.append((answers, audit_job(place.ledger.database, job_id)))

    first_end = next(name for name in order if name in ENDS)
    answers, rows = stories[0]
    by_name = dict(zip(order, answers, strict=True))
    assert stories[0] == stories[1]
    assert rows["job"][0]["state"] == ENDS[first_end]
    assert [name for name in order if name in ENDS and by_name[name] == "done"] == [first_end]
    if "complete" in order:
        in_time = order.index("complete") < order.index(first_end)
        assert by_name["complete"] == ("done" if in_time else "too late")
        accepted = [row for row in rows["work_item"] if row["stage"] == "generate_rules" and row["output"]]
        assert len(accepted) == (3 if in_time else 2)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_sides_that_really_meet_leave_exactly_one_end(place: Place, scenario: str) -> None:
    seen: set[str] = set()
    for round_ in range(ROUNDS):
        job_id, sides = SCENARIOS[scenario](place, f"race-{round_}")

        answers = dict(zip(sides, _race(*sides.values()), strict=True))

        assert_closed(place.ledger, job_id)
        (end,) = terminal(place.ledger, job_id)
        seen.add(end)
        # Whoever was told that the job is theirs to end, ended it.
        assert (end == JobState.EXPIRED) == bool(answers["expire"] and not isinstance(answers["expire"], StateError))
        assert (end == JobState.CANCELLED) == (not isinstance(answers["cancel"], StateError))
        assert (end == JobState.COMPLETED) == (answers.get("publish") is True)
        if "complete" in answers:
            items = place.ledger.reads.items(job_id, Stage.GENERATE_RULES)
            accepted = sum(item.state is WorkState.SUCCEEDED for item in items)
            assert accepted == (3 if answers["complete"] == [Landing.ACCEPTED] else 2)
    assert seen <= set(ENDS.values())
