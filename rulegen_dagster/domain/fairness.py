"""Fairness: how free slots are shared between tenants by weight, and within a tenant between its jobs."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Party:
    """One that shares in slots: it has `in_flight` already, and can take at most `room` more."""

    in_flight: int
    room: int
    weight: int = 1


@dataclass(frozen=True, kw_only=True)
class JobLoad:
    """A job with claimable items: how many it has in flight, and how many more can be claimed of it at most."""

    job_id: int
    in_flight: int
    claimable: int


@dataclass(frozen=True, kw_only=True)
class TenantLoad:
    """A tenant with its claimable jobs; `limit` bounds what it has in flight over all its jobs, None is no limit."""

    tenant: str
    weight: int
    limit: int | None
    in_flight: int
    jobs: tuple[JobLoad, ...]

    @property
    def room(self) -> int:
        """How many more slots the tenant can use."""
        claimable = sum(job.claimable for job in self.jobs)
        return claimable if self.limit is None else max(0, min(claimable, self.limit - self.in_flight))


def shares(free: int, parties: Sequence[Party]) -> tuple[int, ...]:
    """Share free slots out: each goes to the party with the fewest in flight per weight that has room.

    The first of the sequence wins a tie. No slot stays free while a party has room, and whoever got a slot had, before
    it, no more in flight per weight than any party that still has room has in the end.
    """
    given = [0] * len(parties)
    # Two different ratios of such small numbers differ by far more than a float's precision, and equal ones are equal.
    heap = [(party.in_flight / party.weight, place) for place, party in enumerate(parties) if party.room > 0]
    heapq.heapify(heap)
    while free > 0 and heap:
        _, place = heapq.heappop(heap)
        party = parties[place]
        given[place] += 1
        free -= 1
        if given[place] < party.room:
            heapq.heappush(heap, ((party.in_flight + given[place]) / party.weight, place))
    return tuple(given)


def share_out(free: int, tenants: Sequence[TenantLoad]) -> dict[int, int]:
    """Return how many items to claim of each job, by its number; a job that gets none is absent.

    Tenants share by weight, each within its limit; a tenant's jobs share alike. On a tie the oldest job goes first,
    and the tenant that it belongs to.
    """
    oldest_first = sorted(tenants, key=lambda tenant: min((job.job_id for job in tenant.jobs), default=0))
    of_tenants = shares(
        free, [Party(in_flight=one.in_flight, room=one.room, weight=one.weight) for one in oldest_first]
    )
    given: dict[int, int] = {}
    for tenant, share in zip(oldest_first, of_tenants, strict=True):
        jobs = sorted(tenant.jobs, key=lambda job: job.job_id)
        of_jobs = shares(share, [Party(in_flight=job.in_flight, room=job.claimable) for job in jobs])
        given |= {job.job_id: count for job, count in zip(jobs, of_jobs, strict=True) if count}
    return given
