"""The typed syntax tree of the rule language.

Every node carries the position of its first significant character in the source; positions do not take part in
comparison, so that two spellings of one condition are equal.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum


class Relation(StrEnum):
    """An operator that compares two values."""

    EQUAL = "=="
    NOT_EQUAL = "!="
    LESS = "<"
    LESS_OR_EQUAL = "<="
    GREATER = ">"
    GREATER_OR_EQUAL = ">="

    @property
    def is_ordering(self) -> bool:
        """Whether the operator asks which of two numbers is larger, so that its operand is a threshold."""
        return self not in (Relation.EQUAL, Relation.NOT_EQUAL)


class ArithmeticOperator(StrEnum):
    """An operator that makes a number of two numbers."""

    ADD = "+"
    SUBTRACT = "-"
    MULTIPLY = "*"
    DIVIDE = "/"
    REMAINDER = "%"


@dataclass(frozen=True)
class BoolLiteral:
    """`true` or `false`."""

    value: bool
    position: int = field(default=0, compare=False)


@dataclass(frozen=True)
class IntLiteral:
    """A whole number without a sign; a negative number is a `Negate` of one."""

    value: int
    position: int = field(default=0, compare=False)


@dataclass(frozen=True)
class StringLiteral:
    """A string in double quotes; it can only be compared with an enum fact."""

    value: str
    position: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Name:
    """A fact (`expense.amount_minor`) or a parameter (`p.limit`)."""

    name: str
    position: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Not:
    """`!operand`."""

    operand: "Expr"
    position: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Negate:
    """`-operand`."""

    operand: "Expr"
    position: int = field(default=0, compare=False)


@dataclass(frozen=True)
class And:
    """A conjunction of two or more operands."""

    operands: tuple["Expr", ...]
    position: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Or:
    """A disjunction of two or more operands."""

    operands: tuple["Expr", ...]
    position: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Comparison:
    """`left relation right`; comparisons do not chain."""

    relation: Relation
    left: "Expr"
    right: "Expr"
    position: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Membership:
    """`operand in [item, ...]`, the only place for a list."""

    operand: "Expr"
    items: tuple[IntLiteral | StringLiteral, ...]
    position: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Arithmetic:
    """`left operator right`."""

    operator: ArithmeticOperator
    left: "Expr"
    right: "Expr"
    position: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Conditional:
    """`condition ? then : otherwise`."""

    condition: "Expr"
    then: "Expr"
    otherwise: "Expr"
    position: int = field(default=0, compare=False)


Expr = (
    BoolLiteral
    | IntLiteral
    | StringLiteral
    | Name
    | Not
    | Negate
    | And
    | Or
    | Comparison
    | Membership
    | Arithmetic
    | Conditional
)


def children(expr: Expr) -> tuple[Expr, ...]:
    """Return the direct operands of a node, from left to right."""
    match expr:
        case BoolLiteral() | IntLiteral() | StringLiteral() | Name():
            return ()
        case Not(operand) | Negate(operand):
            return (operand,)
        case And(operands) | Or(operands):
            return operands
        case Comparison(_, left, right) | Arithmetic(_, left, right):
            return (left, right)
        case Membership(operand, items):
            return (operand, *items)
        case Conditional(condition, then, otherwise):
            return (condition, then, otherwise)


def walk(expr: Expr) -> Iterator[Expr]:
    """Yield every node, a parent before its operands; never recurses."""
    pending = [expr]
    while pending:
        node = pending.pop()
        yield node
        pending.extend(reversed(children(node)))


def depth_of(expr: Expr) -> int:
    """Return the number of nodes on the longest way from the root to a leaf; never recurses."""
    deepest = 0
    pending = [(expr, 1)]
    while pending:
        node, depth = pending.pop()
        deepest = max(deepest, depth)
        pending.extend((child, depth + 1) for child in children(node))
    return deepest


def names_in(expr: Expr) -> frozenset[str]:
    """Return every fact and parameter that an expression reads."""
    return frozenset(node.name for node in walk(expr) if isinstance(node, Name))
