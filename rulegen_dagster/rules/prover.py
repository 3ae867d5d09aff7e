"""The prover: formulas of the rule language as z3 sees them, and questions about them for all facts.

The translation keeps the evaluators' semantics: whole numbers without a bound (the type check has shown that none
leaves 64 bits), division that cuts towards zero, an enum as the number of its value. This module imports the optional
dependency; nothing imports it but a proof that was asked for.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import z3

from rulegen_dagster.domain.money import MAX_MINOR
from rulegen_dagster.domain.vocabulary import BoolFact, EnumFact, FactValue, IntFact, MoneyFact, Vocabulary
from rulegen_dagster.rules.expression import (
    And,
    Arithmetic,
    ArithmeticOperator,
    BoolLiteral,
    Comparison,
    Conditional,
    Expr,
    IntLiteral,
    Membership,
    Name,
    Negate,
    Not,
    Or,
    Relation,
    StringLiteral,
)
from rulegen_dagster.rules.formula import Formula

_Term = Any


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Whether there are such facts: a witness, none at all (`is_impossible`), or neither where it stayed open."""

    witness: Mapping[str, FactValue] | None = None
    is_impossible: bool = False


@dataclass(frozen=True, kw_only=True)
class Terms:
    """A formula at one choice of facts: whether it holds, and its cap where it has one."""

    holds: _Term
    cap: _Term


class Prover:
    """Answers questions within its steps; one object for one ruleset."""

    def __init__(self, vocabulary: Vocabulary, *, steps_per_question: int, steps_in_all: int) -> None:
        """Take the facts' bounds from the vocabulary."""
        self.questions = self.open_questions = 0
        self._vocabulary = vocabulary
        self._steps_per_question = steps_per_question
        self._steps_left = steps_in_all
        # The prover counts on from what this process asked before.
        self._steps_before = _steps_of(z3.Solver())
        self._known_bounds: dict[tuple[str, tuple[int, ...]], _Term] = {}
        values = {value for fact in vocabulary.facts.values() if isinstance(fact, EnumFact) for value in fact.values}
        self._number_of = {value: number for number, value in enumerate(sorted(values))}

    @property
    def engine(self) -> str:
        """Name and version of the prover."""
        return f"z3 {z3.get_version_string()}"

    def terms(self, formula: Formula, shifted: Mapping[str, int] | None = None) -> Terms:
        """Return a formula over the facts, some of them shifted by a number (the value beside)."""
        names: dict[str, _Term] = {name: z3.IntVal(value) for name, value in formula.parameters.items()}
        for name in formula.facts:
            variable = self._variable(name)
            names[name] = variable + shifted[name] if shifted and name in shifted else variable
        holds = z3.And(
            self._translated(formula.condition, names),
            *(z3.Not(self._translated(item, names)) for item in formula.exceptions),
        )
        if formula.cap is None:
            return Terms(holds=holds, cap=None)
        cap = self._translated(formula.cap, names)
        # As `Formula.decide` clips it.
        clipped = z3.If(cap < -1, z3.IntVal(-1), z3.If(cap > MAX_MINOR + 1, z3.IntVal(MAX_MINOR + 1), cap))
        return Terms(holds=holds, cap=clipped)

    def ask(
        self,
        wanted: _Term,
        facts: frozenset[str],
        confirmed: Callable[[Mapping[str, FactValue]], bool],
        shifted: Mapping[str, tuple[int, ...]] | None = None,
    ) -> Answer:
        """Look for facts of the vocabulary for which a term is true; a witness that is not confirmed counts as open."""
        self.questions += 1
        if self._steps_left > 0:
            solver = z3.Solver()
            solver.set("rlimit", min(self._steps_per_question, self._steps_left))
            solver.add(*(self._bounds(name, (shifted or {}).get(name, ())) for name in sorted(facts)), wanted)
            result = solver.check()
            steps = _steps_of(solver)
            self._steps_left -= steps - self._steps_before
            self._steps_before = steps
            if result == z3.unsat:
                return Answer(is_impossible=True)
            if result == z3.sat:
                witness = {name: self._value(solver.model(), name) for name in sorted(facts)}
                if confirmed(witness):
                    return Answer(witness=witness)
        self.open_questions += 1
        return Answer()

    def both(self, first: Terms, second: Terms) -> _Term:
        """Return that two formulas hold at once."""
        return z3.And(first.holds, second.holds)

    def only_first(self, first: Terms, second: Terms) -> _Term:
        """Return that the first of two formulas holds, and the second does not."""
        return z3.And(first.holds, z3.Not(second.holds))

    def neither(self, first: Terms, second: Terms) -> _Term:
        """Return that none of two formulas holds."""
        return z3.And(z3.Not(first.holds), z3.Not(second.holds))

    def all_of(self, *terms: _Term) -> _Term:
        """Return that all terms are true."""
        return z3.And(*terms)

    def any_of(self, *terms: _Term) -> _Term:
        """Return that some term is true."""
        return z3.Or(*terms)

    def _variable(self, name: str) -> _Term:
        return z3.Bool(name) if isinstance(self._vocabulary.facts[name], BoolFact) else z3.Int(name)

    def _bounds(self, name: str, shifts: tuple[int, ...]) -> _Term:
        """Return that a fact, and the values beside it, are in its range; made once, for every question asks it."""
        if (name, shifts) not in self._known_bounds:
            self._known_bounds[name, shifts] = self._new_bounds(name, shifts)
        return self._known_bounds[name, shifts]

    def _new_bounds(self, name: str, shifts: tuple[int, ...]) -> _Term:
        variable = self._variable(name)
        match self._vocabulary.facts[name]:
            case BoolFact():
                return z3.BoolVal(True)
            case EnumFact(values=values):
                return z3.Or(*(variable == self._number_of[value] for value in values))
            case IntFact(min=low, max=high) | MoneyFact(min=low, max=high):
                return z3.And(*(z3.And(variable + by >= low, variable + by <= high) for by in (0, *shifts)))

    def _value(self, model: Any, name: str) -> FactValue:
        found = model.eval(self._variable(name), model_completion=True)
        match self._vocabulary.facts[name]:
            case BoolFact():
                return bool(z3.is_true(found))
            case EnumFact(values=values):
                return next(value for value in values if self._number_of[value] == found.as_long())
            case _:
                return int(found.as_long())

    def _translated(self, expr: Expr, names: Mapping[str, _Term]) -> _Term:
        match expr:
            case BoolLiteral(value):
                return z3.BoolVal(value)
            case IntLiteral(number):
                return z3.IntVal(number)
            case StringLiteral(text):
                return z3.IntVal(self._number_of[text])
            case Name(name):
                return names[name]
            case Not(operand):
                return z3.Not(self._translated(operand, names))
            case And(operands):
                return z3.And(*(self._translated(operand, names) for operand in operands))
            case Or(operands):
                return z3.Or(*(self._translated(operand, names) for operand in operands))
            case Negate(operand):
                return -self._translated(operand, names)
            case Comparison(relation, left, right):
                return _compared(relation, self._translated(left, names), self._translated(right, names))
            case Membership(operand, items):
                found = self._translated(operand, names)
                return z3.Or(*(found == self._translated(item, names) for item in items))
            case Arithmetic(operator, left, right):
                return _calculated(operator, self._translated(left, names), self._translated(right, names))
            case Conditional(condition, then, otherwise):
                return z3.If(
                    self._translated(condition, names),
                    self._translated(then, names),
                    self._translated(otherwise, names),
                )


def _compared(relation: Relation, left: _Term, right: _Term) -> _Term:
    match relation:
        case Relation.EQUAL:
            return left == right
        case Relation.NOT_EQUAL:
            return left != right
        case Relation.LESS:
            return left < right
        case Relation.LESS_OR_EQUAL:
            return left <= right
        case Relation.GREATER:
            return left > right
        case Relation.GREATER_OR_EQUAL:
            return left >= right


def _calculated(operator: ArithmeticOperator, left: _Term, right: _Term) -> _Term:
    match operator:
        case ArithmeticOperator.ADD:
            return left + right
        case ArithmeticOperator.SUBTRACT:
            return left - right
        case ArithmeticOperator.MULTIPLY:
            return left * right
        case ArithmeticOperator.DIVIDE:
            return _truncated(left, right)
        case ArithmeticOperator.REMAINDER:
            return left - _truncated(left, right) * right


def _truncated(dividend: _Term, divisor: _Term) -> _Term:
    # The type check lets positive divisors through alone; z3 rounds down for those.
    return z3.If(dividend >= 0, dividend / divisor, -((-dividend) / divisor))


def _steps_of(solver: Any) -> int:
    """Return how many steps the prover has taken up to here, for this question and those before it."""
    return next((int(count) for name, count in solver.statistics() if name == "rlimit count"), 0)
