"""The mutation score: whether the tests of a clause would notice if one of its rules were wrong in one place."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rulegen_dagster.domain.errors import RuleLanguageError
from rulegen_dagster.domain.rule import TestCase
from rulegen_dagster.domain.vocabulary import FactValue, Vocabulary
from rulegen_dagster.rules.engine import CompiledRule, Outcome
from rulegen_dagster.rules.fact_grid import FactGrid, fact_grid
from rulegen_dagster.rules.facts import complete_facts
from rulegen_dagster.rules.formula import Formula, formula_of
from rulegen_dagster.rules.mutants import mutants_of
from rulegen_dagster.rules.validation import meets

MAX_SURVIVORS: Final = 20
"""Most survivors that are described for one clause; the numbers count all of them."""

_WITNESS_POINTS = 4_000


@dataclass(frozen=True, kw_only=True)
class Survivor:
    """A wrong rule that every test lets pass, with facts at which it decides otherwise than the right one.

    The witness is empty where the rule reads so many facts that not all of their values could be tried.
    """

    rule_id: str
    change: str
    witness: Mapping[str, FactValue]
    expected: Outcome
    found: Outcome


@dataclass(frozen=True, kw_only=True)
class MutationResult:
    """How many mutants of a clause's rules there were, and what became of them.

    `equivalent` decide like the rule at every point of the fact grid, and count for nothing.
    """

    mutants: int
    killed: int
    equivalent: int
    survivors: tuple[Survivor, ...]

    @property
    def survived(self) -> int:
        """How many mutants no test noticed."""
        return self.mutants - self.killed - self.equivalent

    @property
    def score(self) -> float:
        """The share of the mutants that a test noticed, of those that differ; 1.0 where there are none."""
        telling = self.mutants - self.equivalent
        return self.killed / telling if telling else 1.0


def mutate(rules: Sequence[CompiledRule], cases: Sequence[TestCase], vocabulary: Vocabulary) -> MutationResult:
    """Run the tests of a clause over every mutant of each of its rules; the clause's other rules stay as they are.

    The tests must pass on the rules themselves. Raises `RuleLanguageError` where a test names facts that do not exist.
    """
    formulas = [formula_of(rule) for rule in rules]
    asked = [(case, complete_facts(vocabulary, case.facts)) for case in cases]
    answers = [[formula.decide(facts) for formula in formulas] for _, facts in asked]
    mutants = killed = equivalent = 0
    survivors: list[Survivor] = []
    for index, rule in enumerate(rules):
        right = formulas[index]
        for change, mutant in mutants_of(rule, vocabulary):
            mutants += 1
            if _is_noticed(mutant, index, asked, answers):
                killed += 1
                continue
            grid = fact_grid((right, mutant), vocabulary, max_points=_WITNESS_POINTS)
            witness = _witness(right, mutant, grid)
            if witness is None and grid.complete:
                equivalent += 1
            elif len(survivors) < MAX_SURVIVORS:
                named, expected, found = witness or ({}, Outcome(), Outcome())
                survivors.append(
                    Survivor(rule_id=rule.rule.id, change=change, witness=named, expected=expected, found=found)
                )
    return MutationResult(mutants=mutants, killed=killed, equivalent=equivalent, survivors=tuple(survivors))


def _is_noticed(
    mutant: Formula,
    index: int,
    asked: Sequence[tuple[TestCase, Mapping[str, FactValue]]],
    answers: Sequence[Sequence[Outcome]],
) -> bool:
    for (case, facts), outcomes in zip(asked, answers, strict=True):
        try:
            changed = [*outcomes[:index], mutant.decide(facts), *outcomes[index + 1 :]]
        except RuleLanguageError:
            # It cannot even be asked, and so is no rule that anybody could overlook.
            return True
        if not meets(case, changed):
            return True
    return False


def _witness(right: Formula, mutant: Formula, grid: FactGrid) -> tuple[dict[str, FactValue], Outcome, Outcome] | None:
    for point in grid.points():
        expected = right.decide(point)
        try:
            found = mutant.decide(point)
        except RuleLanguageError:
            continue
        if expected != found:
            return point, expected, found
    return None
