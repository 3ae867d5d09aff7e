"""Formulas: a rule reduced to what decides, so that it can be varied and asked many thousand times.

The AST evaluator answers alone here: validation has already held every test against both evaluators, and what is asked
here are rules that differ from the accepted one in a single place.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from rulegen_dagster.domain.money import MAX_MINOR
from rulegen_dagster.domain.rule import Decision
from rulegen_dagster.domain.vocabulary import FactValue
from rulegen_dagster.rules.engine import CompiledRule, Outcome
from rulegen_dagster.rules.evaluate import evaluate
from rulegen_dagster.rules.expression import Expr, names_in
from rulegen_dagster.rules.symbols import PARAM_PREFIX

_NO_MATCH = Outcome()


@dataclass(frozen=True, kw_only=True)
class Formula:
    """Condition, exceptions and cap as syntax trees, with the values of the parameters that they read."""

    decision: Decision
    condition: Expr
    exceptions: tuple[Expr, ...]
    cap: Expr | None
    parameters: Mapping[str, int]

    @cached_property
    def expressions(self) -> tuple[Expr, ...]:
        """Every tree of the formula: the condition, the exceptions, and the cap where there is one."""
        return (self.condition, *self.exceptions, *(() if self.cap is None else (self.cap,)))

    @cached_property
    def facts(self) -> frozenset[str]:
        """The facts that the formula reads."""
        names = frozenset[str]().union(*map(names_in, self.expressions))
        return frozenset(name for name in names if not name.startswith(PARAM_PREFIX))

    def holds(self, facts: Mapping[str, FactValue]) -> bool:
        """Return whether the rule applies. Raises `RuleLanguageError` as `evaluate` does."""
        return self._holds({**facts, **self.parameters})

    def decide(self, facts: Mapping[str, FactValue]) -> Outcome:
        """Return the decision and the cap, like `CompiledRule.decide`; a cap out of range is no error but is clipped.

        A mutant may well put a cap out of range. It then differs from the rule all the same.
        """
        known = {**facts, **self.parameters}
        if not self._holds(known):
            return _NO_MATCH
        if self.cap is None:
            return Outcome(decision=self.decision)
        cap = evaluate(self.cap, known)
        return Outcome(decision=self.decision, cap_minor=min(max(int(cap), -1), MAX_MINOR + 1))

    def _holds(self, known: Mapping[str, FactValue]) -> bool:
        return bool(evaluate(self.condition, known)) and not any(evaluate(item, known) for item in self.exceptions)


def formula_of(rule: CompiledRule) -> Formula:
    """Return the formula of a compiled rule."""
    return Formula(
        decision=rule.rule.decision,
        condition=rule.condition.expr,
        exceptions=tuple(item.expr for item in rule.exceptions),
        cap=None if rule.cap is None else rule.cap.expr,
        parameters=dict(rule.parameters),
    )
