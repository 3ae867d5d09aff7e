"""The AST evaluator: the second opinion on every condition, complete without the native CEL engine."""

from collections.abc import Mapping

from rulegen_dagster.domain.errors import RuleLanguageError
from rulegen_dagster.domain.vocabulary import FactValue
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
from rulegen_dagster.rules.symbols import INT64_MAX
from rulegen_dagster.rules.typecheck import truncated_quotient


def evaluate(expr: Expr, facts: Mapping[str, FactValue]) -> FactValue:
    """Return the value of an expression with the semantics of CEL.

    Division cuts towards zero, a remainder takes the sign of the dividend, `&&`, `||` and `?:` do not look at what
    they do not need. Raises `RuleLanguageError` with `missing_fact`, `wrong_fact_type`, `division_by_zero` or
    `overflow`; after the type check and with complete facts none of them can happen.
    """
    match expr:
        case BoolLiteral(value):
            return value
        case IntLiteral(number):
            return number
        case StringLiteral(text):
            return text
        case Name(name, position):
            if name not in facts:
                raise RuleLanguageError("missing_fact", f"no value for {name}", position)
            return facts[name]
        case Not(operand):
            return not _bool(operand, facts)
        case And(operands):
            return all(_bool(operand, facts) for operand in operands)
        case Or(operands):
            return any(_bool(operand, facts) for operand in operands)
        case Negate(operand, position):
            return _bounded(-_int(operand, facts), position)
        case Comparison():
            return _compare(expr, facts)
        case Membership(operand, items):
            found = evaluate(operand, facts)
            return any(type(item.value) is type(found) and item.value == found for item in items)
        case Arithmetic():
            return _calculate(expr, facts)
        case Conditional(condition, then, otherwise):
            return evaluate(then if _bool(condition, facts) else otherwise, facts)


def _compare(expr: Comparison, facts: Mapping[str, FactValue]) -> bool:
    if not expr.relation.is_ordering:
        left, right = evaluate(expr.left, facts), evaluate(expr.right, facts)
        if type(left) is not type(right):
            raise RuleLanguageError("wrong_fact_type", "values of two types are compared", expr.position)
        return (left == right) is (expr.relation is Relation.EQUAL)
    a, b = _int(expr.left, facts), _int(expr.right, facts)
    match expr.relation:
        case Relation.LESS:
            return a < b
        case Relation.LESS_OR_EQUAL:
            return a <= b
        case Relation.GREATER:
            return a > b
        case _:
            return a >= b


def _calculate(expr: Arithmetic, facts: Mapping[str, FactValue]) -> int:
    a, b = _int(expr.left, facts), _int(expr.right, facts)
    match expr.operator:
        case ArithmeticOperator.ADD:
            result = a + b
        case ArithmeticOperator.SUBTRACT:
            result = a - b
        case ArithmeticOperator.MULTIPLY:
            result = a * b
        case ArithmeticOperator.DIVIDE | ArithmeticOperator.REMAINDER:
            if b == 0:
                raise RuleLanguageError("division_by_zero", "a divisor is zero", expr.position)
            quotient = truncated_quotient(a, b)
            result = quotient if expr.operator is ArithmeticOperator.DIVIDE else a - quotient * b
    return _bounded(result, expr.position)


def _bounded(value: int, position: int) -> int:
    if not -INT64_MAX - 1 <= value <= INT64_MAX:
        raise RuleLanguageError("overflow", "a result leaves 64 bits", position)
    return value


def _bool(expr: Expr, facts: Mapping[str, FactValue]) -> bool:
    value = evaluate(expr, facts)
    if not isinstance(value, bool):
        raise RuleLanguageError("wrong_fact_type", "a bool is needed here", expr.position)
    return value


def _int(expr: Expr, facts: Mapping[str, FactValue]) -> int:
    value = evaluate(expr, facts)
    # A bool is an int to Python, never to a rule.
    if isinstance(value, bool) or not isinstance(value, int):
        raise RuleLanguageError("wrong_fact_type", "a number is needed here", expr.position)
    return value
