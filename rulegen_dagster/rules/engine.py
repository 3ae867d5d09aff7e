"""The rule engine: a rule compiled for both evaluators, which must agree on every answer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rulegen_dagster.domain.errors import RuleLanguageError
from rulegen_dagster.domain.money import MAX_MINOR
from rulegen_dagster.domain.rule import Decision, Rule
from rulegen_dagster.domain.vocabulary import FactValue, Vocabulary
from rulegen_dagster.rules.cel_engine import CelProgram, Declarations, compile_cel, declarations_of
from rulegen_dagster.rules.evaluate import evaluate
from rulegen_dagster.rules.expression import Expr, names_in
from rulegen_dagster.rules.facts import check_value
from rulegen_dagster.rules.language import parse
from rulegen_dagster.rules.symbols import Kind, Symbols, ValueType
from rulegen_dagster.rules.typecheck import check


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a rule says about one set of facts; both are None where it does not hold."""

    decision: Decision | None = None
    cap_minor: int | None = None


@dataclass(frozen=True, kw_only=True)
class CompiledExpression:
    """One expression on both evaluators, with the type of each name that it reads."""

    expr: Expr
    program: CelProgram
    reads: Mapping[str, ValueType]

    def value(self, facts: Mapping[str, FactValue]) -> bool | int:
        """Return what both evaluators say; raises `RuleLanguageError`, where they differ `evaluator_difference`.

        A missing value or one of a wrong type is refused first (`missing_fact`, `wrong_fact_type`): the engines
        would notice it only where the evaluation reaches it.
        """
        for name, expected in self.reads.items():
            if name not in facts:
                raise RuleLanguageError("missing_fact", f"no value for {name}")
            check_value(name, facts[name], expected)
        read = {name: facts[name] for name in self.reads}
        ours = _answer(lambda: evaluate(self.expr, read))
        theirs = _answer(lambda: self.program.evaluate(read))
        match ours, theirs:
            case RuleLanguageError(), RuleLanguageError():
                raise ours
            case bool() | int(), bool() | int() if type(ours) is type(theirs) and ours == theirs:
                return theirs
            case _:
                raise RuleLanguageError("evaluator_difference", "the CEL engine and the AST evaluator disagree")


@dataclass(frozen=True, kw_only=True)
class CompiledRule:
    """A rule that can be asked for its decision."""

    rule: Rule
    condition: CompiledExpression
    exceptions: tuple[CompiledExpression, ...]
    cap: CompiledExpression | None
    parameters: Mapping[str, int]

    def decide(self, facts: Mapping[str, FactValue]) -> Outcome:
        """Return the decision and the cap for complete facts (see `complete_facts`).

        Raises `RuleLanguageError`; `cap_out_of_range` where the cap is negative or above the largest amount.
        """
        known = {**facts, **self.parameters}
        if not self.condition.value(known) or any(exception.value(known) for exception in self.exceptions):
            return Outcome()
        if self.cap is None:
            return Outcome(decision=self.rule.decision)
        cap_minor = self.cap.value(known)
        if not 0 <= cap_minor <= MAX_MINOR:
            raise RuleLanguageError("cap_out_of_range", f"the cap must lie in 0..{MAX_MINOR}")
        return Outcome(decision=self.rule.decision, cap_minor=cap_minor)


def compile_rule(rule: Rule, vocabulary: Vocabulary) -> CompiledRule:
    """Parse, check and compile a rule; raises `RuleLanguageError`."""
    symbols = Symbols(vocabulary, rule.params)
    declarations = declarations_of(symbols)
    return CompiledRule(
        rule=rule,
        condition=_compile(rule.applies_when, Kind.BOOL, symbols, declarations),
        exceptions=tuple(_compile(item.condition, Kind.BOOL, symbols, declarations) for item in rule.unless),
        cap=None if rule.cap is None else _compile(rule.cap, Kind.MONEY, symbols, declarations),
        parameters=symbols.parameter_values(),
    )


def parse_checked(source: str, kind: Kind, symbols: Symbols) -> Expr:
    """Return the tree of an expression that has the wanted type; raises `RuleLanguageError`."""
    expr = parse(source)
    found = check(expr, symbols).kind
    if found is not kind:
        raise RuleLanguageError("wrong_type", f"this must be {kind}, not {found}", expr.position)
    return expr


def _compile(source: str, kind: Kind, symbols: Symbols, declarations: Declarations) -> CompiledExpression:
    expr = parse_checked(source, kind, symbols)
    return CompiledExpression(
        expr=expr,
        program=compile_cel(expr, declarations, kind),
        reads={name: symbols.type_of(name) for name in sorted(names_in(expr))},
    )


def _answer(ask: Callable[[], FactValue]) -> FactValue | RuleLanguageError:
    try:
        return ask()
    except RuleLanguageError as error:
        return error
