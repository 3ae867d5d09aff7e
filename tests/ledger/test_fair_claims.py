"""Fair claims: what tenants and jobs with work get of the slots, beside others with very much of it."""

from collections.abc import Sequence

import pytest
import sqlalchemy as sa

from rulegen_dagster.domain.states import Stage
from rulegen_dagster.domain.work import Claim, Offer, WorkKey
from rulegen_dagster.ledger import shares
from rulegen_dagster.ledger.claims import Scope
from rulegen_dagster.ledger.store import Ledger
from tests.ledger.conftest import ALICE, MakeJob, claim, complete, tokens

RULES = Scope(stages=(Stage.GENERATE_RULES,))
MANY = 50_000
ONE_PERCENT = MANY // 100
SLOTS = 32


def _grow(ledger: Ledger, job_id: int, items: int) -> None:
    """Give a job many more open rule items, in one statement."""
    with ledger.database.write() as connection:
        connection.execute(
            sa.text(
                "INSERT INTO work_item (job_id, stage, item_key, stage_version, ordinal, state, attempts,"
                " attempt_limit, created_at, updated_at)"
                " WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < :items)"
                " SELECT :job_id, 'generate_rules', 'more-' || n, 1, 1000 + n, 'pending', 0, 3, 0, 0 FROM number"
            ),
            {"job_id": job_id, "items": items},
        )


def _claimed_in_order(ledger: Ledger, upto: int) -> list[Claim]:
    """Claim and complete turn by turn, as an engine with `SLOTS` slots does; half of the slots come free each turn."""
    claimed: list[Claim] = []
    in_flight: list[Claim] = []
    while len(claimed) < upto:
        taken = claim(ledger, RULES, SLOTS - len(in_flight))
        claimed += taken
        in_flight += taken
        done, in_flight = in_flight[: SLOTS // 2], in_flight[SLOTS // 2 :]
        complete(ledger, *(Offer(claim=one, output="{}") for one in done))
    return claimed


def _positions(claimed: Sequence[Claim], job_id: int) -> list[int]:
    return [place for place, one in enumerate(claimed, start=1) if one.key.job_id == job_id]


def _by_job(claimed: Sequence[Claim]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for one in claimed:
        counts[one.key.job_id] = counts.get(one.key.job_id, 0) + 1
    return counts


def test_five_items_of_a_small_tenant_are_claimed_within_the_first_percent_beside_fifty_thousand_of_another(
    ledger: Ledger, make_job: MakeJob
) -> None:
    ledger.submissions.add_tenant("small")
    big = make_job(1, key="big")
    _grow(ledger, big, MANY - 1)
    first = claim(ledger, RULES, SLOTS)
    small = make_job(5, key="small", tenant="small")

    claimed = [*first, *_claimed_in_order(ledger, ONE_PERCENT - SLOTS)]

    positions = _positions(claimed, small)
    print(f"claimed at {positions}")
    assert len(positions) == 5
    assert max(positions) <= ONE_PERCENT


def test_five_items_of_a_small_job_are_claimed_within_the_first_percent_beside_a_big_one_of_the_same_tenant(
    ledger: Ledger, make_job: MakeJob
) -> None:
    big = make_job(1, key="big")
    _grow(ledger, big, MANY - 1)
    first = claim(ledger, RULES, SLOTS)
    small = make_job(5, key="small")

    claimed = [*first, *_claimed_in_order(ledger, ONE_PERCENT - SLOTS)]

    positions = _positions(claimed, small)
    print(f"claimed at {positions}")
    assert len(positions) == 5
    assert max(positions) <= ONE_PERCENT


def test_tenants_share_by_weight(ledger: Ledger, make_job: MakeJob) -> None:
    ledger.submissions.add_tenant("heavy")
    light, heavy = make_job(40, key="a"), make_job(40, key="b", tenant="heavy")
    ledger.tenants.set("heavy", weight=3)

    assert _by_job(claim(ledger, RULES, 16)) == {light: 4, heavy: 12}
    assert _by_job(claim(ledger, RULES, 16)) == {light: 4, heavy: 12}


def test_slots_that_a_tenant_cannot_use_go_to_the_others_in_the_same_turn(ledger: Ledger, make_job: MakeJob) -> None:
    ledger.submissions.add_tenant("small")
    big, small = make_job(40, key="a"), make_job(2, key="b", tenant="small")

    assert _by_job(claim(ledger, RULES, 20)) == {big: 18, small: 2}


def test_jobs_of_one_tenant_share_alike_and_the_oldest_goes_first(ledger: Ledger, make_job: MakeJob) -> None:
    oldest, *others = [make_job(9, key=f"job-{number}") for number in range(4)]

    assert _by_job(claim(ledger, RULES, 1)) == {oldest: 1}
    assert _by_job(claim(ledger, RULES, 3)) == dict.fromkeys(others, 1)
    assert _by_job(claim(ledger, RULES, 8)) == dict.fromkeys((oldest, *others), 2)


def test_within_a_job_items_are_claimed_in_document_order(ledger: Ledger, make_job: MakeJob) -> None:
    jobs = [make_job(4, key=f"job-{number}") for number in range(3)]

    taken = claim(ledger, RULES, 9)

    for job_id in jobs:
        keys = [one.key.item_key for one in taken if one.key.job_id == job_id]
        assert keys == ["rule-01", "rule-02", "rule-03"]


def test_a_scope_of_some_jobs_is_shared_between_them_alone(ledger: Ledger, make_job: MakeJob) -> None:
    first, second, _ = (make_job(5, key=f"job-{number}") for number in range(3))

    taken = claim(ledger, Scope(stages=(Stage.GENERATE_RULES,), job_ids=(first, second)), 20)

    assert _by_job(taken) == {first: 5, second: 5}


def test_a_scope_of_items_of_several_jobs_takes_each_of_them_and_no_other(ledger: Ledger, make_job: MakeJob) -> None:
    jobs = [make_job(5, key=f"job-{number}") for number in range(3)]
    keys = [one.key.item_key for one in claim(ledger, Scope(stages=(Stage.GENERATE_RULES,), job_ids=(jobs[0],)), 5)]
    wanted = tuple(
        WorkKey(job_id=job_id, stage=Stage.GENERATE_RULES, item_key=key) for job_id in jobs for key in keys[1:3]
    )

    taken = claim(ledger, Scope(stages=(Stage.GENERATE_RULES,), items=wanted), 20)

    assert {one.key for one in taken} == {key for key in wanted if key.job_id != jobs[0]}


def test_every_item_is_claimed_once_where_many_jobs_of_many_tenants_have_work(
    ledger: Ledger, make_job: MakeJob
) -> None:
    names = [f"tenant-{number}" for number in range(6)]
    for name in names:
        ledger.submissions.add_tenant(name)
    jobs = [make_job(1 + number % 4, key=f"job-{number}", tenant=names[number % 6]) for number in range(24)]

    taken = [one for _ in range(20) for one in claim(ledger, RULES, 7)]

    assert len(taken) == len({one.key for one in taken}) == sum(1 + number % 4 for number in range(24))
    assert {one.key.job_id for one in taken} == set(jobs)


def test_more_tenants_than_one_look_takes_in_get_their_turns_one_after_the_other(
    ledger: Ledger, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shares.TENANTS_LOOKED_AT >= 2
    names = [f"tenant-{number}" for number in range(7)]
    for name in names:
        ledger.submissions.add_tenant(name)
    jobs = [make_job(3, key="job", tenant=name) for name in names]
    monkeypatch.setattr(shares, "TENANTS_LOOKED_AT", 2)
    narrow = Ledger(ledger.database, ledger.policy)

    first_of_each = [one.key.job_id for _ in range(4) for one in claim(narrow, RULES, 2)]

    assert set(first_of_each) == set(jobs)
    assert _by_job([one for _ in range(10) for one in claim(narrow, RULES, 2)]).keys() == set(jobs)


def test_a_job_whose_items_are_locked_by_another_claim_is_passed_over(
    ledger: Ledger, make_job: MakeJob, ledger_url: str
) -> None:
    if ledger_url.startswith("sqlite"):
        pytest.skip("SQLite has one writer at a time and locks no rows")
    locked, free = make_job(2, key="a"), make_job(2, key="b")
    other = Ledger(ledger.database, ledger.policy)

    with ledger.turn(ALICE) as turn:
        turn.claim(Scope(stages=(Stage.GENERATE_RULES,), job_ids=(locked,)), tokens(2))
        taken = claim(other, RULES, 1)

    assert _by_job(taken) == {free: 1}
