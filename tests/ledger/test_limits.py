"""Limits: how many items may be in flight at once, over all processes."""

import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from rulegen_dagster.domain.errors import TenantNotFoundError
from rulegen_dagster.domain.limits import Group, Limits
from rulegen_dagster.domain.states import Stage
from rulegen_dagster.domain.work import Claim, Offer
from rulegen_dagster.ledger.claims import Claimant, Scope
from rulegen_dagster.ledger.database import ManualClock
from rulegen_dagster.ledger.limits import ClaimLimits
from rulegen_dagster.ledger.store import Ledger, open_ledger
from tests.conftest import POLICY
from tests.ledger.conftest import ALICE, BOB, MakeJob, claim, complete, parsed_spec, stage_scope, submission, tokens

RULES = Scope(stages=(Stage.GENERATE_RULES,))


@pytest.fixture
def limited(ledger_url: str, clock: ManualClock) -> Iterator[Ledger]:
    """A second process's ledger: at most three items of generation, and one of extraction, at once."""
    opened = open_ledger(ledger_url, POLICY, clock, limits=Limits(generation=3, extraction=1))
    yield opened
    opened.close()


def _of_job(job_id: int) -> Scope:
    return stage_scope(Stage.GENERATE_RULES, job_id)


def _jobs(claims: tuple[Claim, ...]) -> list[int]:
    return [one.key.job_id for one in claims]


def test_no_more_items_than_the_limit_are_in_flight_whoever_claims_them(limited: Ledger, make_job: MakeJob) -> None:
    first, second = make_job(5, key="a"), make_job(5, key="b")

    taken = claim(limited, _of_job(first), 2)
    taken += claim(limited, _of_job(second), 5, BOB)

    assert _jobs(taken) == [first, first, second]
    assert claim(limited, _of_job(first), 5) == claim(limited, RULES, 5) == ()


def test_one_that_ends_makes_room_for_one(limited: Ledger, make_job: MakeJob) -> None:
    make_job(5, key="a")
    make_job(5, key="b")
    taken = claim(limited, RULES, 9)

    complete(limited, Offer(claim=taken[0], output="{}"))

    assert (len(taken), len(claim(limited, RULES, 9))) == (3, 1)


def test_a_lease_that_has_passed_does_not_count(limited: Ledger, make_job: MakeJob, clock: ManualClock) -> None:
    job = make_job(9)
    claim(limited, RULES, 3)
    clock.now_ms += ALICE.lease_ms

    taken = claim(limited, _of_job(job), 9, BOB)

    assert [one.attempt for one in taken] == [2, 2, 2]
    assert claim(limited, RULES, 9) == ()


def test_rules_and_tests_share_the_limit_of_generation(limited: Ledger, make_job: MakeJob) -> None:
    ahead, behind = make_job(2, key="a"), make_job(5, key="b")
    complete(limited, *(Offer(claim=one, output="{}") for one in claim(limited, _of_job(ahead), 2)))

    taken = claim(limited, Scope(stages=(Stage.GENERATE_TESTS, Stage.GENERATE_RULES)), 9)

    assert sorted(_jobs(taken)) == [ahead, ahead, behind]


def test_extraction_has_a_limit_of_its_own(limited: Ledger, make_job: MakeJob) -> None:
    make_job(5)
    claim(limited, RULES, 9)
    for key in ("a", "b"):
        limited.submissions.submit(submission(key), actor="test")

    (parse,) = claim(limited, Scope(stages=(Stage.PARSE,)), 9)

    assert claim(limited, Scope(stages=(Stage.PARSE,)), 9) == ()
    complete(limited, Offer(claim=parse, output="{}", parsed=parsed_spec(1)))
    assert len(claim(limited, Scope(stages=(Stage.PARSE, Stage.RETRIEVE)), 9)) == 1


def test_a_limit_of_nought_lets_nothing_begin(ledger_url: str, clock: ManualClock, make_job: MakeJob) -> None:
    job = make_job(2)
    with closing(open_ledger(ledger_url, POLICY, clock, limits=Limits(generation=0))) as stopped:
        assert claim(stopped, RULES, 9) == claim(stopped, _of_job(job), 9) == ()


@pytest.mark.parametrize("one_job", [True, False])
def test_a_tenants_limit_holds_over_all_of_its_jobs_and_for_no_other_tenant(
    ledger: Ledger, make_job: MakeJob, *, one_job: bool
) -> None:
    ledger.submissions.add_tenant("acme")
    first, second = make_job(5, key="a", tenant="acme"), make_job(5, key="b", tenant="acme")
    others = make_job(5, key="c")
    ledger.tenants.set("acme", limit=4)

    if one_job:
        taken = claim(ledger, _of_job(first), 3) + claim(ledger, _of_job(second), 9)
        assert _jobs(taken) == [first, first, first, second]
        assert len(claim(ledger, _of_job(others), 9)) == 5
    else:
        taken = claim(ledger, RULES, 20)
        assert sorted(_jobs(taken)) == [first, first, second, second, *[others] * 5]
    assert claim(ledger, RULES, 9) == ()


def test_a_tenant_at_its_limit_leaves_the_slots_to_tenants_that_come_after_it(
    ledger: Ledger, make_job: MakeJob
) -> None:
    ledger.submissions.add_tenant("acme")
    make_job(5, key="a", tenant="acme")
    other = make_job(5, key="b")
    ledger.tenants.set("acme", limit=1)

    assert _jobs(claim(ledger, RULES, 4)).count(other) == 3
    assert _jobs(claim(ledger, RULES, 2)) == [other, other]


def test_a_tenants_limit_does_not_count_its_documents(ledger: Ledger, make_job: MakeJob) -> None:
    ledger.submissions.add_tenant("acme")
    ledger.tenants.set("acme", limit=0)

    assert claim(ledger, RULES, 1) == ()
    assert make_job(1, tenant="acme")


def test_a_limit_is_set_kept_and_taken_away(ledger: Ledger) -> None:
    ledger.submissions.add_tenant("acme")

    ledger.tenants.set("acme", weight=3, limit=20)
    ledger.tenants.set("acme", weight=4)
    assert [(one.tenant, one.weight, one.limit) for one in ledger.tenants.shares()] == [
        ("acme", 4, 20),
        ("default", 1, None),
    ]
    ledger.tenants.set("acme", no_limit=True)
    assert ledger.tenants.shares()[0].limit is None
    with pytest.raises(TenantNotFoundError):
        ledger.tenants.set("nobody", weight=2)


@pytest.mark.parametrize("of_tenant", [True, False])
def test_claims_of_many_processes_at_once_never_pass_a_limit_together(
    ledger_url: str, ledger: Ledger, make_job: MakeJob, clock: ManualClock, *, of_tenant: bool
) -> None:
    jobs = [make_job(30, key=f"job-{number}") for number in range(3)]
    limits = Limits() if of_tenant else Limits(generation=10)
    ledger.tenants.set("default", limit=10 if of_tenant else None, no_limit=not of_tenant)
    scopes = [RULES, *(_of_job(job_id) for job_id in jobs)]
    begin = threading.Barrier(len(scopes))
    taken: list[Claim] = []
    errors: list[Exception] = []

    def work(number: int, scope: Scope) -> None:
        claimant = Claimant(worker=f"worker-{number}", lease_ms=1_000)
        with closing(open_ledger(ledger_url, POLICY, clock, limits=limits)) as own:
            try:
                for turn in range(6):
                    begin.wait()
                    with own.turn(claimant) as opened:
                        mine = opened.claim(scope, [f"t-{number}-{turn}-{place}" for place in range(4)])
                    taken.extend(mine)
                    begin.wait()
                    most.append(len(taken) - len(ended))
                    begin.wait()
                    # Half of them end, so that the next turn races for the room again.
                    with own.turn(claimant) as opened:
                        for one in mine[:2]:
                            opened.offer(Offer(claim=one, output="{}"))
                        opened.settle()
                    ended.extend(mine[:2])
                    begin.wait()
            except Exception as error:
                errors.append(error)
                begin.abort()

    most: list[int] = []
    ended: list[Claim] = []
    threads = [threading.Thread(target=work, args=one) for one in enumerate(scopes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    assert max(most) == 10


@pytest.mark.parametrize("wanted", [1, 5])
def test_a_lost_item_whose_worker_reports_at_this_moment_is_not_waited_for(
    ledger: Ledger, make_job: MakeJob, clock: ManualClock, ledger_url: str, wanted: int
) -> None:
    if ledger_url.startswith("sqlite"):
        pytest.skip("SQLite has one writer at a time and locks no rows")
    first, second = make_job(1, key="a"), make_job(1, key="b")
    lost = claim(ledger, _of_job(first), 1)
    clock.now_ms += ALICE.lease_ms
    other = Ledger(ledger.database, ledger.policy, limits=Limits(generation=5))

    with ledger.turn(ALICE) as turn:
        turn.offer(Offer(claim=lost[0], output="{}"))
        turn.settle()
        taken = claim(other, RULES, wanted, BOB)

    assert _jobs(taken) == [second]
    assert [one.attempt for one in claim(other, RULES, 5, BOB)] == [2]


def test_a_limit_that_stands_in_the_way_is_named_with_who_uses_it_up(
    limited: Ledger, make_job: MakeJob, clock: ManualClock
) -> None:
    limited.submissions.add_tenant("acme")
    mine, ours, theirs = make_job(5, key="a"), make_job(5, key="b"), make_job(5, key="c", tenant="acme")
    claim(limited, _of_job(ours), 1)
    claim(limited, _of_job(theirs), 2)

    reached = limited.limits.reached(mine, Stage.GENERATE_RULES)

    assert reached is not None
    assert (reached.name, reached.value, reached.in_flight) == (Group.GENERATION, 3, 3)
    assert (reached.of_job, reached.of_tenant, reached.of_others) == (0, 1, 2)
    assert reached.next_at == clock.now_ms + ALICE.lease_ms
    assert limited.limits.reached(mine, Stage.VALIDATE) is None


def test_no_lock_and_no_count_is_asked_for_where_nothing_is_limited(
    ledger: Ledger, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(3)

    def refused(*_: object) -> None:
        raise AssertionError("a limit was looked at")

    monkeypatch.setattr(ClaimLimits, "hold", refused)
    monkeypatch.setattr(ClaimLimits, "in_flight", refused)
    with ledger.turn(replace(ALICE, worker="carol")) as turn:
        assert len(turn.claim(_of_job(job), tokens(2))) == 2
