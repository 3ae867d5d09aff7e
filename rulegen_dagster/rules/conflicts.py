"""Conflicts: what the rules of a whole set say against, over or past each other, each with facts that show it.

Decisions accumulate: an approval and a receipt may both be due, a denial ends the matter, the lowest of several caps
holds. True conflicts are therefore few: two rules of equal priority of which one allows and one denies, and two of
equal priority that cap one subject differently. Beyond those, a rule that never holds or never matters, two rules that
say the same, and a value at which neither of two neighbouring rules holds deserve a look.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations

from rulegen_dagster.domain.rule import Decision
from rulegen_dagster.domain.vocabulary import BoolFact, EnumFact, FactValue, Vocabulary
from rulegen_dagster.rules.engine import CompiledRule, Outcome
from rulegen_dagster.rules.fact_grid import MAX_POINTS, FactGrid, fact_grid
from rulegen_dagster.rules.formula import Formula, formula_of

# A set with very many rules shares its points between the pairs, so that the time of a whole comparison is bounded.
_ALL_POINTS = 1_000_000
_FEWEST_POINTS = 256


class FindingKind(StrEnum):
    """What is wrong between rules; the first two make them contradict each other."""

    ALLOW_AND_DENY = "allow_and_deny"
    TWO_CAPS = "two_caps"
    GAP_AT_THRESHOLD = "gap_at_threshold"
    NEVER_HOLDS = "never_holds"
    NEVER_DECISIVE = "never_decisive"
    DUPLICATE = "duplicate"

    @property
    def is_conflict(self) -> bool:
        """Whether the rules contradict each other, so that no reading satisfies both."""
        return self in (FindingKind.ALLOW_AND_DENY, FindingKind.TWO_CAPS)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One observation about one rule or two, with the facts that show it (none for a rule that never holds).

    `outcomes` are what the rules decide at the witness, in the order of `rule_ids`.
    """

    kind: FindingKind
    rule_ids: tuple[str, ...]
    message: str
    witness: Mapping[str, FactValue]
    outcomes: tuple[Outcome, ...]


@dataclass(frozen=True, kw_only=True)
class ConflictReport:
    """Every finding, and how much was asked; `thinned` names the pairs whose grid had to leave values out."""

    findings: tuple[Finding, ...]
    pairs: int
    evaluations: int
    thinned: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Placed:
    """A rule with what decides of it."""

    rule: CompiledRule
    formula: Formula

    @property
    def id(self) -> str:
        """The rule's id."""
        return self.rule.rule.id

    @property
    def priority(self) -> int:
        """Which rule counts where two say different things."""
        return self.rule.rule.priority

    @property
    def is_cap(self) -> bool:
        """Whether the rule limits an amount."""
        return self.formula.cap is not None


def find_conflicts(rules: Sequence[CompiledRule], vocabulary: Vocabulary) -> ConflictReport:
    """Compare all rules of one subject with each other on their common fact grid."""
    placed = [Placed(rule, formula_of(rule)) for rule in rules]
    findings: list[Finding] = []
    living = []
    evaluations = 0
    for rule in placed:
        grid = fact_grid((rule.formula,), vocabulary)
        evaluations += 1
        if any(rule.formula.holds(point) for point in grid.points()):
            living.append(rule)
        elif grid.complete:
            findings.append(never_holds(rule))
    pairs = [
        (first, second)
        for first, second in combinations(living, 2)
        if first.rule.rule.subject == second.rule.rule.subject and can_meet(first, second)
    ]
    max_points = min(MAX_POINTS, max(_FEWEST_POINTS, _ALL_POINTS // max(len(pairs), 1)))
    thinned = []
    for first, second in pairs:
        grid = fact_grid((first.formula, second.formula), vocabulary, max_points=max_points)
        compared = _Comparison(first, second, grid)
        findings += compared.findings(vocabulary)
        evaluations += compared.evaluations
        if not grid.complete:
            thinned.append((first.id, second.id))
    return ConflictReport(findings=tuple(findings), pairs=len(pairs), evaluations=evaluations, thinned=tuple(thinned))


def never_holds(rule: Placed) -> Finding:
    """Return the finding about a rule that holds for no facts."""
    message = f"{rule.id} holds for no facts at all: its condition contradicts itself or its exceptions"
    return Finding(kind=FindingKind.NEVER_HOLDS, rule_ids=(rule.id,), message=message, witness={}, outcomes=())


def pair_message(kind: FindingKind, first: Placed, second: Placed, outcomes: Sequence[Outcome]) -> str:
    """Return what a finding about two rules says; of a rule that never matters, the first one is it."""
    match kind:
        case FindingKind.ALLOW_AND_DENY:
            return f"{first.id} and {second.id} have one priority, and one allows what the other denies"
        case FindingKind.TWO_CAPS:
            caps = " and ".join(str(outcome.cap_minor) for outcome in outcomes)
            return f"{first.id} and {second.id} have one priority and cap one subject differently: {caps} (minor units)"
        case FindingKind.DUPLICATE:
            return f"{first.id} and {second.id} decide alike for all facts"
        case FindingKind.NEVER_DECISIVE:
            return f"{first.id} never matters: whenever it holds, {second.id} settles the matter"
        case _:
            raise ValueError(f"{kind} is no finding about two rules alone")


def gap_message(first: Placed, second: Placed, fact: str, value: int) -> str:
    """Return what is said of a value at which neither of two neighbouring rules holds."""
    return f"{first.id} and {second.id} divide {fact} between them, and neither holds at exactly {value}"


def can_meet(first: Placed, second: Placed) -> bool:
    """Return whether both rules are in force on some day; which rules are is decided before any is asked."""
    a, b = first.rule.rule, second.rule.rule
    starts = [day for day in (a.effective_from, b.effective_from) if day is not None]
    ends = [day for day in (a.effective_to, b.effective_to) if day is not None]
    return not starts or not ends or max(starts) <= min(ends)


class _Answers:
    """A formula's outcomes, asked once for each set of the facts that it reads, however many others a point names."""

    def __init__(self, formula: Formula) -> None:
        self._formula = formula
        self._names = tuple(sorted(formula.facts))
        self._known: dict[tuple[FactValue, ...], Outcome] = {}

    @property
    def evaluations(self) -> int:
        return len(self._known)

    def at(self, point: Mapping[str, FactValue]) -> Outcome:
        read = tuple(point[name] for name in self._names)
        found = self._known.get(read)
        if found is None:
            found = self._known[read] = self._formula.decide(point)
        return found


class _Comparison:
    """Two rules of one subject at every point of their grid, asked once."""

    def __init__(self, first: Placed, second: Placed, grid: FactGrid) -> None:
        self.grid = grid
        self._first = first
        self._second = second
        self._points = list(grid.points())
        asked = _Answers(first.formula), _Answers(second.formula)
        self._outcomes = [(asked[0].at(point), asked[1].at(point)) for point in self._points]
        self.evaluations = asked[0].evaluations + asked[1].evaluations

    def findings(self, vocabulary: Vocabulary) -> Iterator[Finding]:
        found = self._contradiction() or self._duplicate() or self._overridden()
        if found is not None:
            yield found
        gap = self._gap(vocabulary)
        if gap is not None:
            yield gap

    def _finding(self, kind: FindingKind, at: int, message: str | None = None) -> Finding:
        return Finding(
            kind=kind,
            rule_ids=(self._first.id, self._second.id),
            message=message or pair_message(kind, self._first, self._second, self._outcomes[at]),
            witness=self._points[at],
            outcomes=self._outcomes[at],
        )

    def _both(self) -> Iterator[int]:
        for at, (a, b) in enumerate(self._outcomes):
            if a.decision is not None and b.decision is not None:
                yield at

    def _contradiction(self) -> Finding | None:
        first, second = self._first, self._second
        if first.priority != second.priority:
            return None
        decisions = {first.formula.decision, second.formula.decision}
        if decisions == {Decision.ALLOW, Decision.DENY}:
            for at in self._both():
                return self._finding(FindingKind.ALLOW_AND_DENY, at)
        if first.is_cap and second.is_cap:
            for at in self._both():
                a, b = self._outcomes[at]
                if a.cap_minor != b.cap_minor:
                    return self._finding(FindingKind.TWO_CAPS, at)
        return None

    def _duplicate(self) -> Finding | None:
        if self._first.formula.decision is not self._second.formula.decision:
            return None
        if any(a != b for a, b in self._outcomes):
            return None
        return self._finding(FindingKind.DUPLICATE, next(self._both()))

    def _overridden(self) -> Finding | None:
        for index, (hidden, other) in enumerate(((self._first, self._second), (self._second, self._first))):
            if not overrides(other, hidden):
                continue
            holding = [at for at, outcomes in enumerate(self._outcomes) if outcomes[index].decision is not None]
            if holding and all(self._is_moot(at, index) for at in holding):
                message = pair_message(FindingKind.NEVER_DECISIVE, hidden, other, ())
                return self._finding(FindingKind.NEVER_DECISIVE, holding[0], message)
        return None

    def _is_moot(self, at: int, hidden: int) -> bool:
        mine, others = self._outcomes[at][hidden], self._outcomes[at][1 - hidden]
        if others.decision is None:
            return False
        if mine.cap_minor is not None and others.cap_minor is not None:
            return others.cap_minor <= mine.cap_minor or self._priority(1 - hidden) > self._priority(hidden)
        return True

    def _priority(self, index: int) -> int:
        return (self._first, self._second)[index].priority

    def _gap(self, vocabulary: Vocabulary) -> Finding | None:
        """Find a value that one rule stops short of and the other only begins behind."""
        if self._first.formula.decision is self._second.formula.decision and not self._first.is_cap:
            return None
        # Only rules that divide a number between them: where both hold at once they are no neighbours.
        if next(self._both(), None) is not None:
            return None
        positions = {tuple(sorted(point.items())): at for at, point in enumerate(self._points)}
        for name, values in self.grid.values.items():
            if isinstance(vocabulary.facts[name], BoolFact | EnumFact):
                continue
            known = {int(value) for value in values if not isinstance(value, str)}
            for at, point in enumerate(self._points):
                value = int(point[name])
                if self._holds(at) or not {value - 1, value + 1} <= known:
                    continue
                below, above = (
                    self._holds(positions[tuple(sorted({**point, name: value + step}.items()))]) for step in (-1, 1)
                )
                if below and above and below != above:
                    message = gap_message(self._first, self._second, name, value)
                    return self._finding(FindingKind.GAP_AT_THRESHOLD, at, message)
        return None

    def _holds(self, at: int) -> str:
        """Return which rule holds at a point, "" for none."""
        a, b = self._outcomes[at]
        return self._first.id if a.decision is not None else self._second.id if b.decision is not None else ""


def overrides(other: Placed, hidden: Placed) -> bool:
    """Return whether a rule settles the matter wherever it holds, so that the other one no longer counts there."""
    if other.is_cap and hidden.is_cap:
        return other.priority >= hidden.priority
    if hidden.formula.decision is Decision.ALLOW:
        return other.priority > hidden.priority and other.formula.decision is not Decision.ALLOW
    return (
        other.formula.decision is Decision.DENY
        and hidden.formula.decision is not Decision.DENY
        and other.priority >= hidden.priority
    )
