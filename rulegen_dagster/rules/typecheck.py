"""The type check: every name, unit and bound of an expression is proved before it is ever evaluated.

Beyond CEL's own check this one knows enum values, money and rates, refuses a divisor that could be zero, and proves
with intervals that no intermediate result leaves 64 bits.
"""

from typing import Final

from rulegen_dagster.domain.errors import RuleLanguageError
from rulegen_dagster.domain.money import micros_per_minor
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
    StringLiteral,
)
from rulegen_dagster.rules.symbols import INT64_MAX, Kind, Symbols, ValueType, unknown_enum_value

_QUANTITIES: Final = frozenset({Kind.INT, Kind.MONEY, Kind.MICROS})
_ORDERED: Final = _QUANTITIES | {Kind.RATE}
_BOOL: Final = ValueType(Kind.BOOL)


def check(expr: Expr, symbols: Symbols) -> ValueType:
    """Return the type of an expression.

    Raises `RuleLanguageError`: `unknown_fact`, `undeclared_parameter`, `wrong_type`, `unknown_enum_value`,
    `bare_number_against_money`, `divisor_not_positive`, `overflow_possible`, `money_conversion`.
    """
    match expr:
        case BoolLiteral():
            return _BOOL
        case IntLiteral(value):
            return ValueType(Kind.INT, value, value)
        case StringLiteral(text):
            return ValueType(Kind.STRING, fact=text)
        case Name(name, position):
            return symbols.type_of(name, position)
        case Not(operand):
            return _need_bool(operand, symbols, "!")
        case And(operands) | Or(operands):
            for operand in operands:
                _need_bool(operand, symbols, "&&" if isinstance(expr, And) else "||")
            return _BOOL
        case Negate(operand, position):
            inner = check(operand, symbols)
            if inner.kind not in _QUANTITIES:
                raise RuleLanguageError("wrong_type", f"- needs a number, not {inner.kind}", position)
            return ValueType(inner.kind, -inner.high, -inner.low)
        case Comparison():
            return _check_comparison(expr, check(expr.left, symbols), check(expr.right, symbols))
        case Membership():
            return _check_membership(expr, check(expr.operand, symbols))
        case Arithmetic():
            return _check_arithmetic(expr, check(expr.left, symbols), check(expr.right, symbols), symbols.currency)
        case Conditional(condition, then, otherwise, position):
            _need_bool(condition, symbols, "?")
            left, right = check(then, symbols), check(otherwise, symbols)
            kind = _common_kind(expr, then, left, otherwise, right, "?:")
            if kind not in _ORDERED | {Kind.BOOL}:
                raise RuleLanguageError("wrong_type", f"?: cannot choose between {kind} values", position)
            return ValueType(kind, min(left.low, right.low), max(left.high, right.high))


def _need_bool(expr: Expr, symbols: Symbols, operator: str) -> ValueType:
    found = check(expr, symbols)
    if found.kind is not Kind.BOOL:
        raise RuleLanguageError("wrong_type", f"{operator} needs a bool, not {found.kind}", expr.position)
    return _BOOL


def _common_kind(  # noqa: PLR0917 (two operands, each an expression and its type)
    at: Expr, left: Expr, a: ValueType, right: Expr, b: ValueType, operator: str
) -> Kind:
    """Return the one kind of two operands; a bare 0 takes the kind of the amount beside it."""
    if a.kind is b.kind:
        return a.kind
    for literal, other in ((left, b), (right, a)):
        if isinstance(literal, IntLiteral) and other.kind in _ORDERED:
            if literal.value == 0:
                return other.kind
            raise RuleLanguageError(
                "bare_number_against_money",
                f"{operator} sets a bare number against {other.kind}; state the amount as a parameter",
                literal.position,
            )
    hint = "; divide the micros first" if {a.kind, b.kind} == {Kind.MONEY, Kind.MICROS} else ""
    raise RuleLanguageError("wrong_type", f"{operator} cannot join {a.kind} and {b.kind}{hint}", at.position)


def _check_comparison(expr: Comparison, a: ValueType, b: ValueType) -> ValueType:
    relation = expr.relation
    for enum, other in ((a, b), (b, a)):
        if enum.kind is Kind.ENUM and other.kind is Kind.STRING and not relation.is_ordering:
            if other.fact not in enum.values:
                raise unknown_enum_value(other.fact, enum.fact, enum.values, expr.position)
            return _BOOL
    if Kind.ENUM in (a.kind, b.kind) or Kind.STRING in (a.kind, b.kind):
        raise RuleLanguageError(
            "wrong_type",
            f"{relation} cannot join {a.kind} and {b.kind}; an enum is compared by == or != with one of its values",
            expr.position,
        )
    kind = _common_kind(expr, expr.left, a, expr.right, b, relation)
    if kind is Kind.BOOL and relation.is_ordering:
        raise RuleLanguageError("wrong_type", f"{relation} needs numbers, not {kind}", expr.position)
    return _BOOL


def _check_membership(expr: Membership, operand: ValueType) -> ValueType:
    if operand.kind in (Kind.MONEY, Kind.RATE, Kind.MICROS):
        raise RuleLanguageError(
            "bare_number_against_money", f"`in` sets bare numbers against {operand.kind}", expr.position
        )
    for item in expr.items:
        match item:
            case StringLiteral(text) if operand.kind is Kind.ENUM:
                if text not in operand.values:
                    raise unknown_enum_value(text, operand.fact, operand.values, item.position)
            case IntLiteral() if operand.kind is Kind.INT:
                pass
            case _:
                raise RuleLanguageError(
                    "wrong_type", f"`in` cannot look for {operand.kind} in a list with this item", item.position
                )
    return _BOOL


def _check_arithmetic(expr: Arithmetic, a: ValueType, b: ValueType, currency: str | None) -> ValueType:
    kind = _arithmetic_kind(expr, a, b, currency)
    low, high = _interval(expr.operator, a, b)
    if low < -INT64_MAX or high > INT64_MAX:
        raise RuleLanguageError("overflow_possible", f"the result of {expr.operator} may leave 64 bits", expr.position)
    return ValueType(kind, low, high)


def _arithmetic_kind(expr: Arithmetic, a: ValueType, b: ValueType, currency: str | None) -> Kind:
    operator = expr.operator
    wrong = RuleLanguageError("wrong_type", f"{operator} cannot join {a.kind} and {b.kind}", expr.position)
    match operator:
        case ArithmeticOperator.ADD | ArithmeticOperator.SUBTRACT:
            kind = _common_kind(expr, expr.left, a, expr.right, b, operator)
            if kind not in _QUANTITIES:
                raise wrong
            return kind
        case ArithmeticOperator.MULTIPLY:
            kinds = {a.kind, b.kind}
            if Kind.INT not in kinds or not kinds <= _ORDERED:
                raise wrong
            other = b.kind if a.kind is Kind.INT else a.kind
            return Kind.MICROS if other is Kind.RATE else other
        case ArithmeticOperator.DIVIDE | ArithmeticOperator.REMAINDER:
            if a.kind is Kind.MICROS and operator is ArithmeticOperator.DIVIDE:
                return _converted_micros(expr, currency)
            if b.kind is not Kind.INT or a.kind not in (Kind.INT, Kind.MONEY):
                raise wrong
            if b.low <= 0:
                raise RuleLanguageError(
                    "divisor_not_positive", f"the divisor of {operator} must be provably above 0", expr.position
                )
            return a.kind


def _converted_micros(expr: Arithmetic, currency: str | None) -> Kind:
    # Micros come from a rate parameter only, and a rate always names its currency.
    divisor = micros_per_minor(currency) if currency else 0
    if expr.right != IntLiteral(divisor):
        raise RuleLanguageError(
            "money_conversion", f"micros of {currency} become money by / {divisor} and nothing else", expr.position
        )
    return Kind.MONEY


def _interval(operator: ArithmeticOperator, a: ValueType, b: ValueType) -> tuple[int, int]:
    match operator:
        case ArithmeticOperator.ADD:
            return a.low + b.low, a.high + b.high
        case ArithmeticOperator.SUBTRACT:
            return a.low - b.high, a.high - b.low
        case ArithmeticOperator.MULTIPLY:
            corners = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
        case ArithmeticOperator.DIVIDE:
            corners = [truncated_quotient(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
        case ArithmeticOperator.REMAINDER:
            # The sign follows the dividend, and the size stays below both the divisor and the dividend.
            corners = [max(a.low, 1 - b.high) if a.low < 0 else 0, min(a.high, b.high - 1) if a.high > 0 else 0]
    return min(corners), max(corners)


def truncated_quotient(dividend: int, divisor: int) -> int:
    """Return the quotient cut towards zero, as CEL and C do; Python's own `//` rounds down."""
    quotient = abs(dividend) // abs(divisor)
    return quotient if (dividend < 0) == (divisor < 0) else -quotient
