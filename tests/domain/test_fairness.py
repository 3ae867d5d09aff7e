"""Sharing slots out: nobody beyond a limit, no slot idle, and no further from the weights than one slot."""

from hypothesis import given
from hypothesis import strategies as st

from rulegen_dagster.domain.fairness import JobLoad, Party, TenantLoad, share_out, shares

parties = st.builds(Party, in_flight=st.integers(0, 40), room=st.integers(-3, 40), weight=st.integers(1, 1_000))


@st.composite
def tenant_loads(draw: st.DrawFn) -> list[TenantLoad]:
    numbers = iter(range(1, 1_000))
    return [
        TenantLoad(
            tenant=f"tenant-{place}",
            weight=draw(st.integers(1, 20)),
            limit=draw(st.none() | st.integers(0, 30)),
            in_flight=draw(st.integers(0, 30)),
            jobs=tuple(
                JobLoad(job_id=next(numbers), in_flight=draw(st.integers(0, 10)), claimable=draw(st.integers(0, 12)))
                for _ in range(draw(st.integers(0, 5)))
            ),
        )
        for place in range(draw(st.integers(0, 6)))
    ]


def _of(tenant: TenantLoad, given: dict[int, int]) -> int:
    return sum(given.get(job.job_id, 0) for job in tenant.jobs)


@given(free=st.integers(0, 80), among=st.lists(parties, max_size=8))
def test_every_slot_is_given_while_somebody_has_room_and_nobody_gets_more_than_room(
    free: int, among: list[Party]
) -> None:
    got = shares(free, among)

    assert all(0 <= share <= max(party.room, 0) for share, party in zip(got, among, strict=True))
    assert sum(got) == min(free, sum(max(party.room, 0) for party in among))


@given(free=st.integers(0, 80), among=st.lists(parties, max_size=8))
def test_nobody_with_room_is_more_than_one_slot_behind_its_weight(free: int, among: list[Party]) -> None:
    got = shares(free, among)

    hungry = [place for place, party in enumerate(among) if got[place] < party.room]
    for place, party in enumerate(among):
        if got[place]:
            before_the_last = (party.in_flight + got[place] - 1) / party.weight
            for other in hungry:
                assert before_the_last <= (among[other].in_flight + got[other]) / among[other].weight


def test_slots_follow_the_weights() -> None:
    assert shares(40, [Party(in_flight=0, room=99, weight=3), Party(in_flight=0, room=99, weight=1)]) == (30, 10)


def test_a_small_tenant_beside_a_big_one_gets_all_that_it_can_use() -> None:
    assert shares(32, [Party(in_flight=0, room=50_000), Party(in_flight=0, room=5)]) == (27, 5)


def test_what_is_in_flight_counts_and_the_first_wins_a_tie() -> None:
    assert shares(3, [Party(in_flight=4, room=9), Party(in_flight=2, room=9)]) == (1, 2)
    assert shares(1, [Party(in_flight=2, room=9), Party(in_flight=2, room=9)]) == (1, 0)


@given(free=st.integers(0, 80), tenants=tenant_loads())
def test_no_tenant_exceeds_its_limit_and_no_job_what_it_has(free: int, tenants: list[TenantLoad]) -> None:
    given_out = share_out(free, tenants)

    jobs = {job.job_id: job for tenant in tenants for job in tenant.jobs}
    assert all(0 < count <= jobs[job_id].claimable for job_id, count in given_out.items())
    for tenant in tenants:
        if tenant.limit is not None:
            assert tenant.in_flight + _of(tenant, given_out) <= max(tenant.limit, tenant.in_flight)


@given(free=st.integers(0, 80), tenants=tenant_loads())
def test_no_slot_stays_free_while_a_tenant_within_its_limit_has_a_claimable_item(
    free: int, tenants: list[TenantLoad]
) -> None:
    given_out = share_out(free, tenants)

    assert sum(given_out.values()) == min(free, sum(tenant.room for tenant in tenants))


@given(free=st.integers(0, 80), tenants=tenant_loads())
def test_a_tenants_jobs_share_alike(free: int, tenants: list[TenantLoad]) -> None:
    given_out = share_out(free, tenants)

    for tenant in tenants:
        for job in tenant.jobs:
            for other in tenant.jobs:
                if given_out.get(job.job_id, 0) and given_out.get(other.job_id, 0) < other.claimable:
                    ahead = job.in_flight + given_out[job.job_id] - 1
                    assert ahead <= other.in_flight + given_out.get(other.job_id, 0)


@given(free=st.integers(0, 80), tenants=tenant_loads())
def test_the_order_in_which_tenants_and_jobs_are_found_changes_nothing(free: int, tenants: list[TenantLoad]) -> None:
    turned = [
        TenantLoad(
            tenant=one.tenant,
            weight=one.weight,
            limit=one.limit,
            in_flight=one.in_flight,
            jobs=tuple(reversed(one.jobs)),
        )
        for one in reversed(tenants)
        if one.jobs
    ]

    assert share_out(free, turned) == share_out(free, tenants)


def test_the_oldest_job_goes_first_on_a_tie() -> None:
    jobs = tuple(JobLoad(job_id=job_id, in_flight=0, claimable=9) for job_id in (12, 7, 31))

    assert share_out(2, [TenantLoad(tenant="a", weight=1, limit=None, in_flight=0, jobs=jobs)]) == {7: 1, 12: 1}
