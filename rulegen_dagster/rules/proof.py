"""Proofs: what the fact grid finds by looking at telling facts, decided for all facts by a theorem prover (z3).

An optional part (`pip install -e '.[prove]'`), imported only where a validation policy asks for it. The
prover sees what the evaluators see, and each of its witnesses is asked of the evaluator before it is believed. A
question that takes more than a fixed number of the prover's steps stays open, and the grid's answer stands: steps and
not seconds, so that every machine gives the same report.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Final

from rulegen_dagster.domain.rule import Decision
from rulegen_dagster.domain.vocabulary import BoolFact, EnumFact, FactValue, Vocabulary
from rulegen_dagster.rules.conflicts import (
    ConflictReport,
    Finding,
    FindingKind,
    Placed,
    can_meet,
    gap_message,
    never_holds,
    overrides,
    pair_message,
)
from rulegen_dagster.rules.engine import CompiledRule, Outcome
from rulegen_dagster.rules.formula import formula_of

if TYPE_CHECKING:
    from rulegen_dagster.rules.prover import Answer, Prover, Terms

STEPS_PER_QUESTION: Final = 3_000_000
"""Steps of the prover for one question, about a second; the hard ones multiply facts with one another."""

STEPS_IN_ALL: Final = 60_000_000
"""Steps for a whole ruleset, some twenty seconds; what is asked after them stays open."""

_Seen = Mapping[tuple[FindingKind, frozenset[str]], Finding]


@dataclass(frozen=True, kw_only=True)
class Proof:
    """A conflict report after the proof.

    `open_questions` took too many steps; `added` findings the grid had not seen, `withdrawn` ones were refuted.
    """

    engine: str
    report: ConflictReport
    questions: int
    open_questions: int
    added: int
    withdrawn: int


def prove(
    rules: Sequence[CompiledRule],
    vocabulary: Vocabulary,
    grid: ConflictReport,
    *,
    steps_per_question: int = STEPS_PER_QUESTION,
    steps_in_all: int = STEPS_IN_ALL,
) -> Proof:
    """Decide for all facts what the grid's report says of some; raises `ImportError` without the prover."""
    # Imported here: no process pays for the prover unless a policy asks for it.
    from rulegen_dagster.rules.prover import Prover  # noqa: PLC0415

    prover = Prover(vocabulary, steps_per_question=steps_per_question, steps_in_all=steps_in_all)
    seen = {_key(finding): finding for finding in grid.findings}
    placed = [Placed(rule, formula_of(rule)) for rule in rules]
    found: list[Finding] = []
    living = []
    for rule in placed:
        holding = prover.ask(prover.terms(rule.formula).holds, rule.formula.facts, rule.formula.holds)
        known = seen.get((FindingKind.NEVER_HOLDS, frozenset((rule.id,))))
        if holding.is_impossible or (holding.witness is None and known is not None):
            found.append(known or never_holds(rule))
        else:
            living.append(rule)
    for first, second in combinations(living, 2):
        if first.rule.rule.subject == second.rule.rule.subject and can_meet(first, second):
            found += _Pair(prover, vocabulary, first, second, seen).findings()
    keys = {_key(finding) for finding in found}
    return Proof(
        engine=prover.engine,
        report=replace(grid, findings=tuple(found)),
        questions=prover.questions,
        open_questions=prover.open_questions,
        added=len(keys - set(seen)),
        withdrawn=len(set(seen) - keys),
    )


def _key(finding: Finding) -> tuple[FindingKind, frozenset[str]]:
    return finding.kind, frozenset(finding.rule_ids)


class _Pair:
    """Two rules of one subject; the questions are those of the grid, in its order."""

    def __init__(self, prover: "Prover", vocabulary: Vocabulary, first: Placed, second: Placed, seen: _Seen) -> None:
        self._prover = prover
        self._vocabulary = vocabulary
        self._rules = (first, second)
        self._terms = (prover.terms(first.formula), prover.terms(second.formula))
        self._facts = first.formula.facts | second.formula.facts
        self._seen = seen

    def findings(self) -> Iterator[Finding]:
        """Yield what is true of the two for some facts, or for all."""
        found = self._contradiction() or self._duplicate() or self._never_decisive()
        if found is not None:
            yield found
        gap = self._gap()
        if gap is not None:
            yield gap

    def _contradiction(self) -> Finding | None:
        first, second = self._rules
        mine, others = self._terms
        if first.priority != second.priority:
            return None
        if {first.formula.decision, second.formula.decision} == {Decision.ALLOW, Decision.DENY}:
            answer = self._ask(self._prover.both(mine, others), _both_decide)
            return self._finding(FindingKind.ALLOW_AND_DENY, answer)
        if first.is_cap and second.is_cap:
            differ = self._prover.all_of(self._prover.both(mine, others), mine.cap != others.cap)
            answer = self._ask(differ, lambda a, b: None not in (a.cap_minor, b.cap_minor) and a != b)
            return self._finding(FindingKind.TWO_CAPS, answer)
        return None

    def _duplicate(self) -> Finding | None:
        first, second = self._rules
        mine, others = self._terms
        if first.formula.decision is not second.formula.decision:
            return None
        differ = [self._prover.only_first(mine, others), self._prover.only_first(others, mine)]
        if mine.cap is not None and others.cap is not None:
            differ.append(self._prover.all_of(self._prover.both(mine, others), mine.cap != others.cap))
        answer = self._ask(self._prover.any_of(*differ), lambda a, b: a != b)
        if not answer.is_impossible:
            return self._known(FindingKind.DUPLICATE, answer)
        shown = self._ask(self._prover.both(mine, others), lambda a, b: a == b and a.decision is not None)
        return self._finding(FindingKind.DUPLICATE, shown)

    def _never_decisive(self) -> Finding | None:
        for index in (0, 1):
            hidden, other = self._rules[index], self._rules[1 - index]
            if overrides(other, hidden):
                found = self._hidden(index, hidden, other)
                if found is not None:
                    return found
        return None

    def _hidden(self, index: int, hidden: Placed, other: Placed) -> Finding | None:
        mine, others = self._terms[index], self._terms[1 - index]
        counts = [self._prover.only_first(mine, others)]
        # Of two caps of one priority the lower one counts.
        compares = hidden.is_cap and other.is_cap and other.priority <= hidden.priority
        if compares:
            counts.append(self._prover.all_of(self._prover.both(mine, others), others.cap > mine.cap))

        def matters(*outcomes: Outcome) -> bool:
            own, its = outcomes[index], outcomes[1 - index]
            cap, its_cap = own.cap_minor, its.cap_minor
            lower = compares and cap is not None and its_cap is not None and its_cap > cap
            return own.decision is not None and (its.decision is None or lower)

        answer = self._ask(self._prover.any_of(*counts), matters)
        if not answer.is_impossible:
            return self._known(FindingKind.NEVER_DECISIVE, answer)
        shown = self._ask(mine.holds, lambda *outcomes: outcomes[index].decision is not None)
        message = pair_message(FindingKind.NEVER_DECISIVE, hidden, other, ())
        return self._finding(FindingKind.NEVER_DECISIVE, shown, message)

    def _gap(self) -> Finding | None:
        first, second = self._rules
        if first.formula.decision is second.formula.decision and not first.is_cap:
            return None
        together = self._ask(self._prover.both(*self._terms), _both_decide)
        if not together.is_impossible:
            return self._known(FindingKind.GAP_AT_THRESHOLD, together)
        last = together
        for name in sorted(self._facts):
            if isinstance(self._vocabulary.facts[name], BoolFact | EnumFact):
                continue
            below, above = (self._beside(name, by) for by in (-1, 1))
            wanted = self._prover.all_of(
                self._prover.neither(*self._terms),
                self._prover.any_of(
                    self._prover.all_of(below[0].holds, above[1].holds),
                    self._prover.all_of(below[1].holds, above[0].holds),
                ),
            )
            last = self._prover.ask(wanted, self._facts, self._divides(name), {name: (-1, 1)})
            if last.witness is not None:
                message = gap_message(first, second, name, int(last.witness[name]))
                return self._finding(FindingKind.GAP_AT_THRESHOLD, last, message)
            if not last.is_impossible:
                break
        return self._known(FindingKind.GAP_AT_THRESHOLD, last)

    def _beside(self, name: str, by: int) -> "tuple[Terms, Terms]":
        first, second = (self._prover.terms(rule.formula, {name: by}) for rule in self._rules)
        return first, second

    def _divides(self, name: str) -> Callable[[Mapping[str, FactValue]], bool]:
        first, second = (rule.formula for rule in self._rules)

        def confirmed(facts: Mapping[str, FactValue]) -> bool:
            value = int(facts[name])
            below, above = ({**facts, name: value + by} for by in (-1, 1))
            crosses = any(a.holds(below) and b.holds(above) for a, b in ((first, second), (second, first)))
            return crosses and not first.holds(facts) and not second.holds(facts)

        return confirmed

    def _ask(self, wanted: object, confirmed: Callable[..., bool]) -> "Answer":
        return self._prover.ask(wanted, self._facts, lambda facts: confirmed(*self._outcomes(facts)))

    def _outcomes(self, facts: Mapping[str, FactValue]) -> tuple[Outcome, Outcome]:
        first, second = (rule.formula.decide(facts) for rule in self._rules)
        return first, second

    def _finding(self, kind: FindingKind, answer: "Answer", message: str | None = None) -> Finding | None:
        if answer.witness is None:
            return self._known(kind, answer)
        # The grid's witness stands beside a threshold, and tells a person more than any other.
        first, second = self._rules
        known = self._seen.get((kind, frozenset((first.id, second.id))))
        if known is not None:
            return known
        outcomes = self._outcomes(answer.witness)
        return Finding(
            kind=kind,
            rule_ids=(first.id, second.id),
            message=message or pair_message(kind, first, second, outcomes),
            witness=answer.witness,
            outcomes=outcomes,
        )

    def _known(self, kind: FindingKind, answer: "Answer") -> Finding | None:
        """Return the grid's finding where the question stayed open; a refuted one is withdrawn."""
        is_open = answer.witness is None and not answer.is_impossible
        return self._seen.get((kind, frozenset(rule.id for rule in self._rules))) if is_open else None


def _both_decide(first: Outcome, second: Outcome) -> bool:
    return first.decision is not None and second.decision is not None
