"""The plan of chaos: which runs there are for the points that the job reaches, and how often it reaches them."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from rulegen_dagster.domain.failpoints import Failpoint
from rulegen_dagster.workflow.chaos_job import LEASE_MS


class Kind(StrEnum):
    """What a run does to its processes."""

    #: Nothing: it counts how often each point is reached.
    UNDISTURBED = "undisturbed"
    #: They die at the points, one after the other.
    KILL = "kill"
    #: One stands still at the point while another finishes the job, and goes on then.
    STOP = "stop"
    #: One stands still with a claim, another with the claim that it took over; the first goes on, then the second.
    DUEL = "duel"
    #: They are killed from outside after some calls.
    RANDOM = "random"


Arming = tuple[Failpoint, int]

# A call that takes longer than a third of the lease, so that the lease is renewed meanwhile, or it can be given back.
SLOW_CALL_MS = LEASE_MS // 3 + 80
SLOW_POINTS = frozenset(
    {
        Failpoint.RENEWAL_BEFORE_COMMIT,
        Failpoint.RENEWAL_AFTER_COMMIT,
        Failpoint.GIVE_BACK_BEFORE_COMMIT,
        Failpoint.GIVE_BACK_AFTER_COMMIT,
    }
)
# What ends a job in another way than by its publication, or goes before that: it takes other jobs beside the run's own.
ENDING_POINTS = frozenset(
    {
        Failpoint.CANCELLATION_BEFORE_COMMIT,
        Failpoint.CANCELLATION_AFTER_COMMIT,
        Failpoint.REJECTION_BEFORE_COMMIT,
        Failpoint.REJECTION_AFTER_COMMIT,
        Failpoint.REDRIVE_BEFORE_COMMIT,
        Failpoint.REDRIVE_AFTER_COMMIT,
        Failpoint.ACTION_RELEASE_BEFORE_COMMIT,
        Failpoint.ACTION_RELEASE_AFTER_COMMIT,
        Failpoint.EXTENSION_BEFORE_COMMIT,
        Failpoint.EXTENSION_AFTER_COMMIT,
        Failpoint.EXPIRY_BEFORE_COMMIT,
        Failpoint.EXPIRY_AFTER_COMMIT,
        Failpoint.FORK_BEFORE_COMMIT,
        Failpoint.FORK_AFTER_COMMIT,
        Failpoint.WAIVER_BEFORE_COMMIT,
        Failpoint.WAIVER_AFTER_COMMIT,
        Failpoint.DECISION_NEEDED_BEFORE_COMMIT,
        Failpoint.DECISION_NEEDED_AFTER_COMMIT,
        Failpoint.DECISION_BEFORE_COMMIT,
        Failpoint.DECISION_AFTER_COMMIT,
        Failpoint.RESUMPTION_BEFORE_COMMIT,
        Failpoint.RESUMPTION_AFTER_COMMIT,
    }
)
# Nothing of a SQLite ledger moves while a process stands still inside its write transaction: those points only kill.
_STOPPABLE = tuple(point for point in Failpoint if not point.endswith("before_commit") and point not in SLOW_POINTS)
_HOLDING_A_CLAIM = (
    Failpoint.DOCUMENT_MADE,
    Failpoint.CLAIM_AFTER_COMMIT,
    Failpoint.PROVIDER_BEFORE_CALL,
    Failpoint.PROVIDER_AFTER_ANSWER,
)
RANDOM_RUNS = 10


class Course(StrEnum):
    """How the job of a run goes; each point is reached, and counted, in one of them."""

    PLAIN = "plain"
    #: With calls so slow that their leases are renewed.
    SLOW = "slow"
    #: With other jobs beside it, which end in other ways.
    ENDINGS = "endings"


PARTS_OF_COURSE: Mapping[Course, dict[str, Any]] = MappingProxyType(
    {Course.PLAIN: {}, Course.SLOW: {"delay_ms": SLOW_CALL_MS}, Course.ENDINGS: {"endings": True}}
)
"""What makes a scene go each course."""


def course_of(point: Failpoint) -> Course:
    """Return the course in which a point is reached."""
    if point in SLOW_POINTS:
        return Course.SLOW
    return Course.ENDINGS if point in ENDING_POINTS else Course.PLAIN


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run: what its processes are armed with, in the order in which they start; a last one finishes the job.

    `journal_lines` are the random kills: how many further calls each process may make before it is killed.
    """

    kind: Kind
    armed: tuple[Arming, ...] = ()
    journal_lines: tuple[int, ...] = ()

    @property
    def label(self) -> str:
        """The point that the run is about."""
        return self.armed[0][0].value if self.armed else self.kind

    def __str__(self) -> str:
        """Return the run in a form that a person can repeat it from."""
        points = " then ".join(f"{point}:{nth}" for point, nth in self.armed) or ", ".join(map(str, self.journal_lines))
        return f"{self.kind} {points}".strip()


def plan(wanted: Sequence[Failpoint], counts: Mapping[Failpoint, int], seed: int | None) -> Iterator[Run]:
    """Return every run for these points, each of which the job reaches as often as `counts` says.

    A seed adds runs with random kills, the same ones for the same seed.
    """
    for point in wanted:
        occurrences = range(1, counts[point] + 1) if point not in SLOW_POINTS else range(1, 2)
        yield from (Run(kind=Kind.KILL, armed=((point, nth),)) for nth in occurrences)
    for point in (point for point in _HOLDING_A_CLAIM if point in wanted):
        for second in (Failpoint.RECLAIM_BEFORE_COMMIT, Failpoint.RECLAIM_AFTER_COMMIT):
            yield Run(kind=Kind.KILL, armed=((point, 1), (second, 1)))
    yield from (Run(kind=Kind.STOP, armed=((point, 1),)) for point in _STOPPABLE if point in wanted)
    for point in (point for point in _HOLDING_A_CLAIM if point in wanted):
        yield Run(kind=Kind.DUEL, armed=((point, 1), (Failpoint.RECLAIM_AFTER_COMMIT, 1)))
    if seed is not None:
        # The runs are the same for the same seed; nothing secret depends on it.
        chance = random.Random(seed)  # noqa: S311
        for _ in range(RANDOM_RUNS):
            lines = tuple(chance.randint(1, 6) for _ in range(chance.randint(1, 3)))
            yield Run(kind=Kind.RANDOM, journal_lines=lines)
