"""Chaos: one small job, again and again, in processes that die or stand still at every failpoint.

A first run without a failure counts how often each point is reached. Then each occurrence of each point gets a run in
which the process dies there, another goes on, and the invariants are checked from what both left. Further runs kill
the recovery too, stop a process beyond its lease and let it go on after another has finished, or kill from outside.
"""

import secrets
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rulegen_dagster.domain import failpoints
from rulegen_dagster.domain.errors import StateError
from rulegen_dagster.domain.failpoints import Effect, Failpoint
from rulegen_dagster.domain.states import Stage
from rulegen_dagster.ledger.audit import audit_job
from rulegen_dagster.ledger.claims import Scope
from rulegen_dagster.ledger.database import open_database
from rulegen_dagster.rules.packs import load_vocabulary
from rulegen_dagster.rules.selfcheck import evaluators_agree
from rulegen_dagster.workflow import chaos_job
from rulegen_dagster.workflow.chaos_endings import check_others, play
from rulegen_dagster.workflow.chaos_invariants import Evidence, Violation, check
from rulegen_dagster.workflow.chaos_job import BYSTANDER, TENANT, Ending, Scene, SharedClock, Snapshot
from rulegen_dagster.workflow.chaos_plan import PARTS_OF_COURSE, Course, Kind, Run, course_of, plan
from rulegen_dagster.workflow.chaos_processes import Child, Fate, fork
from rulegen_dagster.workflow.documents import NotReady, Reused, accept, prepare


@dataclass(frozen=True, kw_only=True)
class Broken:
    """A violation, with the run in which it was found."""

    run: str
    point: str
    invariant: int
    found: str


@dataclass(kw_only=True)
class Line:
    """What became of one point, over its runs."""

    point: str
    kills: int = 0
    stops: int = 0
    violations: int = 0


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything that chaos found; `points` counts the failpoints that were reached."""

    points: int
    runs: int
    kills: int
    stops: int
    violations: tuple[Broken, ...]
    lines: tuple[Line, ...]
    folder: Path | None
    seconds: float


@dataclass(kw_only=True)
class Chaos:
    """One session over one ledger; `only` limits it to some points, `kinds` to some runs.

    `seed` adds runs with random kills, the same ones for the same seed.
    `tell` is told each run before it starts: its number, how many there are, and its name.
    """

    url: str | None = None
    seed: int | None = None
    only: tuple[Failpoint, ...] = ()
    kinds: frozenset[Kind] = frozenset(Kind)
    tell: Callable[[int, int, str], None] = lambda _number, _total, _name: None
    _lines: dict[str, Line] = field(default_factory=dict)
    _broken: list[Broken] = field(default_factory=list)
    _number: int = 0

    def run(self) -> Report:
        """Do every run; nothing is left of them unless an invariant was broken.

        Raises `StateError` where the ledger holds jobs of others: chaos moves its own clock, and leaves its jobs.
        """
        started = time.monotonic()
        self._folder = Path(tempfile.mkdtemp(prefix="rulegen-chaos-"))
        self._session = secrets.token_hex(4)
        self._database = self.url or f"sqlite:///{self._folder / 'ledger.sqlite3'}"
        # What the parent has imported, read and compiled, no child has to. An engine connects only when it is used.
        open_database(self._database).close()
        load_vocabulary(chaos_job.VOCABULARY)
        evaluators_agree()
        try:
            self._set_up()
            counts = self._count()
            reached = [point for point in self._wanted() if counts[point]]
            runs = [planned for planned in plan(reached, counts, self.seed) if planned.kind in self.kinds]
            for number, planned in enumerate(runs, start=1):
                self.tell(number, len(runs), str(planned))
                self._one(planned)
        finally:
            keep = bool(self._broken)
            if not keep:
                shutil.rmtree(self._folder, ignore_errors=True)
        return Report(
            points=len(reached),
            runs=len(runs),
            kills=sum(line.kills for line in self._lines.values()),
            stops=sum(line.stops for line in self._lines.values()),
            violations=tuple(self._broken),
            lines=tuple(self._lines.values()),
            folder=self._folder if keep else None,
            seconds=round(time.monotonic() - started, 1),
        )

    def _wanted(self) -> Sequence[Failpoint]:
        return self.only or tuple(Failpoint)

    def _scene(self, **parts: Any) -> Scene:
        self._number += 1
        key = f"chaos-{self._session}-{self._number:04d}"
        clock = SharedClock(int(time.time() * 1000))
        # In every other run, the lease alone tells that a process was lost.
        locks = self._number % 2 == 0
        scene = Scene(url=self._database, home=self._folder / key, key=key, clock=clock, locks=locks, **parts)
        scene.prepare()
        return scene

    def _set_up(self) -> None:
        scene = self._scene()
        _in_child(scene, lambda: _make_bystander(scene))
        strangers = _only(scene.told("strangers"))["jobs"]
        if strangers:
            raise StateError(
                f"the ledger holds {strangers} jobs of others; give chaos a database of its own", code="ledger_in_use"
            )
        self._bystander: str = _only(scene.told("bystander"))["fingerprint"]

    def _count(self) -> Counter[Failpoint]:
        counts: Counter[Failpoint] = Counter()
        for course in sorted({course_of(point) for point in self._wanted()} | {Course.PLAIN}):
            scene = self._scene(**PARTS_OF_COURSE[course])
            _in_child(scene, lambda scene=scene: _counted(scene))  # type: ignore[misc]  # bound for this turn of the loop
            for name, times in _only(scene.told("counts")).items():
                if course_of(Failpoint(name)) is course:
                    counts[Failpoint(name)] += times
            self._examine(Run(kind=Kind.UNDISTURBED), scene, killed=False)
        for point in self._wanted():
            if not counts[point]:
                self._report(Run(kind=Kind.KILL, armed=((point, 1),)), 0, "the job never reaches this point")
        return counts

    def _one(self, run: Run) -> None:
        line = self._lines.setdefault(run.label, Line(point=run.label))
        match run.kind:
            case Kind.KILL:
                scene = self._scene(**PARTS_OF_COURSE[course_of(run.armed[0][0])])
                for point, nth in run.armed:
                    child = _start(scene, lambda p=point, n=nth: failpoints.arm(p, n))  # type: ignore[misc]
                    line.kills += self._killed(run, scene, child.wait())
                self._finish(run, scene)
            case Kind.RANDOM:
                scene = self._scene(delay_ms=5)
                for more in run.journal_lines:
                    line.kills += self._killed(run, scene, _kill_after(scene, more))
                self._finish(run, scene)
            case Kind.STOP:
                scene = self._scene(slots=1, **PARTS_OF_COURSE[course_of(run.armed[0][0])])
                self._stopped(run, scene, line)
            case _:
                scene = self._scene(slots=1, faults=False)
                self._stopped(run, scene, line)
        if not any(broken.run == str(run) for broken in self._broken):
            shutil.rmtree(scene.home, ignore_errors=True)

    def _killed(self, run: Run, scene: Scene, fate: Fate) -> int:
        if fate in {Fate.BROKEN, Fate.HUNG}:
            self._report(run, 0, f"a process was {fate}: {scene.told('broken')}")
        return int(fate is Fate.KILLED)

    def _stopped(self, run: Run, scene: Scene, line: Line) -> None:
        stopped: list[Child] = []
        try:
            for point, nth in run.armed:
                child = _start(scene, lambda p=point, n=nth: failpoints.arm(p, n, Effect.STOP))  # type: ignore[misc]
                fate = child.wait()
                if fate is Fate.STOPPED:
                    stopped.append(child)
                    line.stops += 1
                elif fate is not Fate.ENDED:
                    self._report(run, 0, f"a process was {fate} before it stood still: {scene.told('broken')}")
            if run.kind is Kind.STOP:
                self._ends(run, scene, _start(scene, failpoints.disarm).wait())
            while stopped:
                _in_child(scene, lambda: _look(scene, "frozen"))
                self._ends(run, scene, stopped[0].go_on())
                stopped.pop(0)
        finally:
            for child in stopped:
                child.kill()
        self._examine(run, scene, killed=False)

    def _finish(self, run: Run, scene: Scene) -> None:
        self._ends(run, scene, _start(scene, failpoints.disarm).wait())
        self._examine(run, scene, killed=True)

    def _ends(self, run: Run, scene: Scene, fate: Fate) -> None:
        if fate is not Fate.ENDED:
            self._report(run, 0, f"a process was {fate}: {scene.told('broken')}")

    def _examine(self, run: Run, scene: Scene, *, killed: bool) -> None:
        _in_child(scene, lambda: _look(scene, "after"))
        after = Snapshot(**_only(scene.told("after")))
        if not after.rows:
            self._report(run, 7, "the job was lost")
            return
        evidence = Evidence(
            before=[Snapshot(**word) for word in scene.told("before")],
            frozen=[Snapshot(**word) for word in scene.told("frozen")],
            after=after,
            calls=scene.calls(),
            ending=Ending(**_tuples(_only(scene.told("ending")))),
            bystander=(self._bystander, _only(scene.told("bystander"))["fingerprint"]),
            killed=killed,
        )
        for violation in [*check(evidence), *check_others(evidence)]:
            self._violated(run, violation)

    def _report(self, run: Run, invariant: int, found: str) -> None:
        self._violated(run, Violation(invariant=invariant, found=found))

    def _violated(self, run: Run, violation: Violation) -> None:
        line = self._lines.setdefault(run.label, Line(point=run.label))
        line.violations += 1
        self._broken.append(
            Broken(run=str(run), point=run.label, invariant=violation.invariant, found=violation.found[:500])
        )


def report_of(report: Report) -> dict[str, Any]:
    """Return a report as plain data."""
    return {**asdict(report), "folder": str(report.folder) if report.folder else None}


def _start(scene: Scene, arming: Callable[[], None]) -> Child:
    def work() -> None:
        runtime = scene.open()
        scene.tell("before", asdict(chaos_job.snapshot(scene, runtime)))
        arming()
        play(scene, runtime)
        failpoints.disarm()
        runtime.close()

    return fork(work, broken=lambda text: scene.tell("broken", {"error": text[:300]}))


def _in_child(scene: Scene, work: Callable[[], None]) -> None:
    child = fork(work, broken=lambda text: scene.tell("broken", {"error": text[:300]}))
    fate = child.wait()
    if fate is not Fate.ENDED:
        words = [word["error"] for word in scene.told("broken")]
        raise StateError(f"a process of chaos was {fate}: {words[-1] if words else 'it said nothing'}", code="chaos")


def _kill_after(scene: Scene, more: int) -> Fate:
    made = len(scene.calls()) + more
    child = _start(scene, failpoints.disarm)
    while len(scene.calls()) < made and not child.ended():
        time.sleep(0.001)
    if child.ended():
        return child.wait()
    return child.kill()


def _make_bystander(scene: Scene) -> None:
    runtime = scene.open()
    strangers = [job for job in runtime.ledger.reads.jobs() if job.name.tenant not in {TENANT, BYSTANDER.tenant}]
    scene.tell("strangers", {"jobs": len(strangers)})
    if strangers:
        return
    for tenant in (TENANT, BYSTANDER.tenant):
        runtime.ledger.submissions.add_tenant(tenant)
    own = replace(scene, key=BYSTANDER.submission_key)
    job = chaos_job.submit(own, runtime, tenant=BYSTANDER.tenant)
    for stage in (Stage.PARSE, Stage.RETRIEVE):
        prepared = prepare(runtime, job.job_id, stage)
        if not isinstance(prepared, (NotReady, Reused)):
            accept(runtime, prepared)
    # A run mirrors what it finds unmirrored, and is to find nothing of the bystander.
    chaos_job.mirror_all(own, runtime)
    with runtime.ledger.turn(runtime.claimant) as turn:
        turn.claim(Scope(stages=(Stage.GENERATE_RULES,), job_ids=(job.job_id,)), [runtime.tokens()])
    scene.tell("bystander", {"fingerprint": chaos_job.fingerprint(audit_job(runtime.ledger.database, job.job_id))})
    runtime.close()


def _counted(scene: Scene) -> None:
    counts = failpoints.record()
    runtime = scene.open()
    play(scene, runtime)
    failpoints.disarm()
    scene.tell("counts", {point.value: times for point, times in counts.items()})
    runtime.close()


def _look(scene: Scene, kind: str) -> None:
    runtime = scene.open()
    found = chaos_job.snapshot(scene, runtime)
    scene.tell(kind, asdict(found))
    if kind == "after" and found.rows:
        job = runtime.ledger.reads.job(scene.name)
        scene.tell("ending", asdict(chaos_job.ending(scene, runtime, job)))
        other = runtime.ledger.reads.job(BYSTANDER)
        rows = audit_job(runtime.ledger.database, other.job_id)
        scene.tell("bystander", {"fingerprint": chaos_job.fingerprint(rows)})
    runtime.close()


def _only(words: list[dict[str, Any]]) -> dict[str, Any]:
    (word,) = words
    return word


def _tuples(word: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in word.items()}
