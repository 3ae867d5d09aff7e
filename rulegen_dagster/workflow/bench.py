"""The bench: how near the engine comes to the clock and to hand-written group commit, and what a crash costs it.

Everything is measured in one run on scratch databases, engine and floor in turn, so that both see the same machine and
the same disk. Ratios are what to compare; seconds are this machine's.
"""

import asyncio
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rulegen_dagster.domain.errors import StateError
from rulegen_dagster.domain.states import Stage, WorkState
from rulegen_dagster.domain.work import Claim, Offer
from rulegen_dagster.ledger.bench_floor import Floor
from rulegen_dagster.ledger.claims import Scope
from rulegen_dagster.ledger.scratch import fill, folder_near, scratch_database
from rulegen_dagster.workflow.bench_crash import KILL_AT, crash_and_resume
from rulegen_dagster.workflow.bench_job import open_bench_runtime, open_rule_stage, rule_scope, timed_calls
from rulegen_dagster.workflow.engine import Engine
from rulegen_dagster.workflow.runtime import Runtime

SMALL_LEDGER = 1_000
"""Items of the ledger that a big one's claims are compared with."""

# Makespan to ideal, by database and by whether a commit waits for a slow disk.
_RATIO_LIMITS = {
    ("sqlite", False): 1.15,
    ("sqlite", True): 1.25,
    ("postgresql", False): 1.25,
    ("postgresql", True): 1.40,
}
_OVER_FLOOR = 1.10
_FLOOR_SHARE = 0.40
_FIRST_CALL_S = 0.5
_BIG_LEDGER_RATIO = 1.5
_SLOW_COMMIT_MS = 2.0
_COMMITS = 25
_CLAIM_TURNS = 40
_CLAIMED_AT_ONCE = 8


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to measure; `database` is a URL, or None for SQLite in a temporary folder.

    `big_ledger` is the number of items for the claim line, `repeats` how often engine and floor take turns.
    """

    database: str | None = None
    count: int = 1_000
    latency_ms: float = 50
    slots: int = 32
    repeats: int = 3
    big_ledger: int = 50_000


@dataclass(frozen=True, kw_only=True)
class Result:
    """One figure; None where a field has no meaning for it.

    `ratio` is makespan to ideal, for the claim line the big ledger's claims to the small one's. `of_floor` is the
    makespan, or the throughput where calls take no time, as a multiple of the floor's in the same run. `goal` says in
    words what is to be reached, `reached` whether it was.
    """

    name: str
    n: int
    latency_ms: float | None
    slots: int | None
    database: str
    makespan_s: float | None = None
    ideal_s: float | None = None
    ratio: float | None = None
    items_per_s: float | None = None
    calls: int | None = None
    repeated_committed: int | None = None
    repeated_in_flight: int | None = None
    of_floor: float | None = None
    first_call_s: float | None = None
    claim_ms: float | None = None
    goal: str | None = None
    reached: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Report:
    """All figures of one run, and how long a transaction of one row took: the disk decides much."""

    commit_ms: float
    results: tuple[Result, ...]


def run_bench(plan: Plan, told: Callable[[str], None]) -> Report:
    """Measure every line of the plan; `told` hears what is being measured.

    Raises `LedgerError` where a scratch database cannot be made or used, `InputError` for a URL of another database.
    """
    near = folder_near(plan.database)
    with tempfile.TemporaryDirectory(prefix="rulegen-bench-", dir=near) as made:
        folder = Path(made)
        with _floor(plan, folder) as floor, _ledger(plan, folder) as runtime:
            bench = _Bench(plan, told, floor, runtime, folder)
            commit_ms = bench.commit_ms()
            results = bench.makespans(plan.latency_ms, slow_disk=commit_ms > _SLOW_COMMIT_MS)
            if plan.latency_ms:
                results += bench.makespans(0, slow_disk=False)
            results += bench.crash()
        results += _claims(plan, told, folder)
    return Report(commit_ms=round(commit_ms, 3), results=tuple(results))


class _Bench:
    def __init__(self, plan: Plan, told: Callable[[str], None], floor: Floor, runtime: Runtime, folder: Path) -> None:
        self._plan = plan
        self._told = told
        self._floor = floor
        self._runtime = runtime
        self._folder = folder
        self._dialect = runtime.ledger.database.dialect

    def commit_ms(self) -> float:
        """Return the median of a few transactions that change one row."""
        return 1000 * statistics.median(self._floor.commit() for _ in range(_COMMITS))

    def makespans(self, latency_ms: float, *, slow_disk: bool) -> list[Result]:
        """Return the engine's and the floor's medians for calls of one latency."""
        plan = self._plan
        engine_s: list[float] = []
        floor_s: list[float] = []
        engine_calls = floor_calls = 0
        for turn in range(1, plan.repeats + 1):
            self._told(f"{self._dialect}: {plan.count} calls of {latency_ms:g} ms, {turn} of {plan.repeats}")
            floor_run = self._floor.run(plan.count, latency_s=latency_ms / 1000, slots=plan.slots)
            floor_s.append(floor_run.makespan_s)
            floor_calls += floor_run.calls
            makespan_s, calls = self._drain(latency_ms, turn)
            engine_s.append(makespan_s)
            engine_calls += calls
        floor_median, engine_median = statistics.median(floor_s), statistics.median(engine_s)
        limit = _RATIO_LIMITS[self._dialect, slow_disk]
        suffix = "" if latency_ms else "_no_latency"
        floor = self._makespan(f"floor{suffix}", latency_ms, floor_median, floor_calls)
        engine = self._makespan(f"engine{suffix}", latency_ms, engine_median, engine_calls)
        if engine.ratio is None:
            share = floor_median / engine_median
            goal, reached = f"items/s >= {_FLOOR_SHARE:.2f} x floor", share >= _FLOOR_SHARE
        else:
            share = engine_median / floor_median
            goal = f"ratio <= {limit:.2f} and <= {_OVER_FLOOR:.2f} x floor"
            reached = engine.ratio <= limit and share <= _OVER_FLOOR
        return [floor, replace(engine, of_floor=round(share, 3), goal=goal, reached=reached)]

    def crash(self) -> list[Result]:
        """Return what a killed worker costs: calls that were repeated, and the time until the next one begins."""
        plan = self._plan
        self._told(f"{self._dialect}: kill -9 at {KILL_AT:.0%} of {plan.count} calls of {plan.latency_ms:g} ms")
        run = crash_and_resume(
            self._runtime, self._folder, plan.count, latency_ms=plan.latency_ms, slots=plan.slots, key="bench-crash"
        )
        shared = self._result("crash", plan.latency_ms)
        return [
            replace(
                shared,
                calls=run.calls,
                repeated_committed=run.repeated_committed,
                repeated_in_flight=run.repeated_in_flight,
                goal=f"repeated: 0 committed, <= {plan.slots} in flight, all accepted",
                reached=run.repeated_committed == 0
                and run.repeated_in_flight <= plan.slots
                and run.accepted == plan.count,
            ),
            replace(
                shared,
                name="resume",
                first_call_s=None if run.first_call_s is None else round(run.first_call_s, 3),
                goal=f"first call <= {_FIRST_CALL_S} s after process start",
                reached=None if run.first_call_s is None else run.first_call_s <= _FIRST_CALL_S,
            ),
        ]

    def _drain(self, latency_ms: float, turn: int) -> tuple[float, int]:
        job_id = open_rule_stage(self._runtime, self._plan.count, f"bench-{latency_ms:g}-{turn}")
        calls: list[Claim] = []
        engine = Engine(
            self._runtime,
            timed_calls(latency_ms / 1000, calls.append),
            slots=self._plan.slots,
            observe=lambda _outcome: None,
        )
        began = time.perf_counter()
        asyncio.run(engine.drain(rule_scope(job_id)))
        makespan_s = time.perf_counter() - began
        accepted = self._runtime.ledger.reads.stage_counts(job_id)[Stage.GENERATE_RULES][WorkState.SUCCEEDED]
        if accepted != self._plan.count:
            raise StateError(f"the bench's engine left {self._plan.count - accepted} items without an output")
        return makespan_s, len(calls)

    def _makespan(self, name: str, latency_ms: float, makespan_s: float, calls: int) -> Result:
        plan = self._plan
        ideal_s = math.ceil(plan.count / plan.slots) * latency_ms / 1000
        return replace(
            self._result(name, latency_ms),
            makespan_s=round(makespan_s, 4),
            ideal_s=round(ideal_s, 4),
            ratio=round(makespan_s / ideal_s, 3) if ideal_s else None,
            items_per_s=round(plan.count / makespan_s, 1),
            calls=calls // plan.repeats,
            repeated_committed=calls - plan.count * plan.repeats,
        )

    def _result(self, name: str, latency_ms: float) -> Result:
        plan = self._plan
        return Result(name=name, n=plan.count, latency_ms=latency_ms, slots=plan.slots, database=self._dialect)


def _claims(plan: Plan, told: Callable[[str], None], folder: Path) -> list[Result]:
    """Return the median time of a claiming turn in a small ledger and in a big one, taken in turn."""
    with ExitStack() as stack:
        small, big = (stack.enter_context(_ledger(plan, folder)) for _ in range(2))
        dialect = small.ledger.database.dialect
        for runtime, size in ((small, SMALL_LEDGER), (big, plan.big_ledger)):
            told(f"{dialect}: claims in a ledger of {size} items")
            fill(runtime.ledger.database, open_rule_stage(runtime, 1, "template"), size)
        seconds: dict[int, list[float]] = {id(small): [], id(big): []}
        for _ in range(_CLAIM_TURNS):
            for runtime in (small, big):
                seconds[id(runtime)].append(_claim_turn(runtime))
        small_ms, big_ms = (1000 * statistics.median(seconds[id(runtime)]) for runtime in (small, big))
    ratio = big_ms / small_ms
    shared = Result(name="claim_small_ledger", n=SMALL_LEDGER, latency_ms=None, slots=None, database=dialect)
    return [
        replace(shared, claim_ms=round(small_ms, 3)),
        replace(
            shared,
            name="claim_big_ledger",
            n=plan.big_ledger,
            claim_ms=round(big_ms, 3),
            ratio=round(ratio, 3),
            goal=f"claims <= {_BIG_LEDGER_RATIO} x those with {SMALL_LEDGER} items",
            reached=ratio <= _BIG_LEDGER_RATIO,
        ),
    ]


def _claim_turn(runtime: Runtime) -> float:
    """Return the seconds of a turn that claims; the items are completed after it, so that few are in flight."""
    tokens = [runtime.tokens() for _ in range(_CLAIMED_AT_ONCE)]
    began = time.perf_counter()
    with runtime.ledger.turn(runtime.claimant) as turn:
        claimed = turn.claim(Scope(stages=(Stage.GENERATE_RULES,)), tokens)
    took = time.perf_counter() - began
    if len(claimed) != len(tokens):
        raise StateError("the bench's ledger has no more items to claim")
    with runtime.ledger.turn(runtime.claimant) as turn:
        for claim in claimed:
            turn.offer(Offer(claim=claim, output="{}", provider="bench", provider_called=True))
        turn.settle()
    return took


@contextmanager
def _ledger(plan: Plan, folder: Path) -> Iterator[Runtime]:
    with scratch_database(plan.database, folder) as url, closing(open_bench_runtime(url, folder)) as runtime:
        yield runtime


@contextmanager
def _floor(plan: Plan, folder: Path) -> Iterator[Floor]:
    with scratch_database(plan.database, folder) as url, closing(Floor(url)) as floor:
        yield floor
