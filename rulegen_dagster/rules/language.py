"""The rule language: a restricted profile of CEL, with its own lexer, parser and printer.

The profile: `&& || ! == != < <= > >= in [...] + - * / % ?:`, parentheses, whole numbers, strings in double quotes,
`true`, `false` and declared names. No calls, no regular expressions, no comprehensions, no floats, no macros. What
`parse` accepts is a subset of CEL with the same meaning; what `to_cel` prints parses to the same tree.

Every limit is checked before the parser recurses, so a hostile condition ends in a `RuleLanguageError` and nothing
else.
"""

import re
from typing import Final

from rulegen_dagster.domain.errors import RuleLanguageError
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
    depth_of,
)
from rulegen_dagster.rules.lexer import Token, tokens_of

MAX_CHARACTERS: Final = 2_000
MAX_NODES: Final = 200
# The CEL engine stops at 32 levels and counts some of its own; 24 of ours always fit.
MAX_DEPTH: Final = 24
MAX_LITERAL: Final = 10**15
# Each level may stand in parentheses, which the tree does not show: what is printed must parse again.
_MAX_NESTING: Final = 2 * MAX_DEPTH

UNUSABLE_SEGMENTS: Final = frozenset({"in", "true", "false", "null"})
"""Words that CEL accepts nowhere in a dotted name."""

RESERVED_ROOTS: Final = UNUSABLE_SEGMENTS | frozenset(
    "as break const continue else for function if import let loop package namespace return var void while".split()
)
"""Words with which a dotted name cannot begin in CEL."""

_OR, _AND, _RELATION, _SUM, _PRODUCT, _UNARY, _PRIMARY = range(1, 8)
_LEVELS: Final = (
    {"||": _OR, "&&": _AND, "in": _RELATION, "+": _SUM, "-": _SUM}
    | {relation.value: _RELATION for relation in Relation}
    | dict.fromkeys("*/%", _PRODUCT)
)


def parse(source: str) -> Expr:
    """Return the syntax tree of a condition or a cap.

    Raises `RuleLanguageError` with one of the codes `empty`, `too_long`, `too_large`, `too_deep`, `literal_range`,
    `number_format`, `unexpected_character`, `reserved_word`, `function_not_allowed`, `index_not_allowed`,
    `list_not_allowed`, `chained_comparison`, `syntax`.
    """
    if len(source) > MAX_CHARACTERS:
        raise RuleLanguageError("too_long", f"{len(source):,} characters; at most {MAX_CHARACTERS:,} are allowed")
    parser = _Parser(tokens_of(source))
    expr = parser.parse()
    # A chain such as `a + b + c` nests to the left without recursion in the parser; later passes do recurse.
    if depth_of(expr) > MAX_DEPTH:
        raise _too_deep(expr.position)
    return expr


def to_cel(expr: Expr) -> str:
    """Return the CEL text of an expression, with no more parentheses than its meaning needs."""
    return _print(expr)[0]


def _too_deep(position: int) -> RuleLanguageError:
    return RuleLanguageError("too_deep", f"nested deeper than {MAX_DEPTH} levels", position)


class _Parser:
    """Precedence climbing over the tokens; `depth` bounds the recursion before it happens, parentheses included."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._index = 0
        self._nodes = 0

    def parse(self) -> Expr:
        if self._current.kind == "end":
            raise RuleLanguageError("empty", "the expression is empty", 0)
        expr = self._conditional(1)
        if self._current.kind != "end":
            raise self._unexpected()
        return expr

    @property
    def _current(self) -> Token:
        return self._tokens[self._index]

    def _advance(self) -> Token:
        token = self._tokens[self._index]
        self._index += 1
        return token

    def _accept(self, operator: str) -> bool:
        token = self._current
        if token.kind == "operator" and token.text == operator:
            self._index += 1
            return True
        return False

    def _expect(self, operator: str) -> None:
        if not self._accept(operator):
            raise RuleLanguageError("syntax", f"expected {operator!r}, found {self._found()}", self._current.position)

    def _found(self) -> str:
        token = self._current
        return {"end": "the end", "string": "a string", "number": "a number", "name": "a name"}.get(
            token.kind, repr(token.text)
        )

    def _unexpected(self) -> RuleLanguageError:
        token = self._current
        if token.text == "[" and token.kind == "operator":
            if self._index and (self._tokens[self._index - 1].kind == "name"):
                return RuleLanguageError("index_not_allowed", "a name cannot be indexed", token.position)
            return RuleLanguageError("list_not_allowed", "a list is allowed only after `in`", token.position)
        return RuleLanguageError("syntax", f"unexpected {self._found()}", token.position)

    def _count(self, node: Expr) -> Expr:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise RuleLanguageError("too_large", f"more than {MAX_NODES} operators and operands", node.position)
        return node

    def _conditional(self, depth: int) -> Expr:
        condition = self._binary(_OR, depth)
        position = self._current.position
        if not self._accept("?"):
            return condition
        # As in CEL, a conditional between `?` and `:` needs parentheses.
        then = self._binary(_OR, depth + 1)
        self._expect(":")
        return self._count(Conditional(condition, then, self._conditional(depth + 1), position))

    def _binary(self, minimum: int, depth: int) -> Expr:
        left = self._unary(depth)
        while (level := self._level()) >= minimum:
            token = self._advance()
            if level in (_OR, _AND):
                left = self._chain(token, left, level, depth)
            elif level == _RELATION:
                left = self._relation(token, left, depth)
                if self._level() == _RELATION:
                    raise self._chained()
            else:
                right = self._binary(level + 1, depth + 1)
                left = self._count(Arithmetic(ArithmeticOperator(token.text), left, right, token.position))
        return left

    def _level(self) -> int:
        token = self._current
        if token.kind == "operator" or (token.kind == "name" and token.text == "in"):
            return _LEVELS.get(token.text, 0)
        return 0

    def _chain(self, operator: Token, first: Expr, level: int, depth: int) -> Expr:
        operands = [first, self._binary(level + 1, depth + 1)]
        while self._accept(operator.text):
            operands.append(self._binary(level + 1, depth + 1))
        node = Or if level == _OR else And
        return self._count(node(tuple(operands), operator.position))

    def _relation(self, operator: Token, left: Expr, depth: int) -> Expr:
        if operator.text == "in":
            return self._count(Membership(left, self._list(), operator.position))
        right = self._binary(_SUM, depth + 1)
        return self._count(Comparison(Relation(operator.text), left, right, operator.position))

    def _chained(self) -> RuleLanguageError:
        position = self._current.position
        return RuleLanguageError("chained_comparison", "comparisons do not chain; join them with &&", position)

    def _list(self) -> tuple[IntLiteral | StringLiteral, ...]:
        self._expect("[")
        items: list[IntLiteral | StringLiteral] = []
        while not items or self._accept(","):
            token = self._current
            item = self._unary(1) if token.kind in ("string", "number") else None
            if not isinstance(item, IntLiteral | StringLiteral):
                raise RuleLanguageError("syntax", "a list holds only strings and whole numbers", token.position)
            items.append(item)
        self._expect("]")
        return tuple(items)

    def _unary(self, depth: int) -> Expr:
        token = self._current
        if depth > _MAX_NESTING:
            raise _too_deep(token.position)
        if self._accept("!"):
            return self._count(Not(self._unary(depth + 1), token.position))
        if self._accept("-"):
            return self._count(Negate(self._unary(depth + 1), token.position))
        if self._accept("("):
            inner = self._conditional(depth + 1)
            self._expect(")")
            return inner
        match token.kind:
            case "number":
                return self._count(self._number(self._advance()))
            case "string":
                text = self._advance().text[1:-1]
                return self._count(StringLiteral(re.sub(r"\\(.)", r"\1", text), token.position))
            case "name":
                return self._count(self._name(self._advance()))
            case _:
                raise self._unexpected()

    def _number(self, token: Token) -> IntLiteral:
        value = int(token.text)
        if value > MAX_LITERAL:
            raise RuleLanguageError("literal_range", "the number is above 10^15", token.position)
        return IntLiteral(value, token.position)

    def _name(self, token: Token) -> BoolLiteral | Name:
        if token.text in ("true", "false"):
            return BoolLiteral(token.text == "true", token.position)
        if self._current.text == "(" and self._current.kind == "operator":
            raise RuleLanguageError("function_not_allowed", "the rule language has no calls", token.position)
        root, *rest = token.text.split(".")
        if root in RESERVED_ROOTS or not UNUSABLE_SEGMENTS.isdisjoint(rest):
            raise RuleLanguageError("reserved_word", "a reserved word cannot be part of a name", token.position)
        return Name(token.text, token.position)


def _print(expr: Expr) -> tuple[str, int]:
    """Return the text of a node and how tightly it binds."""
    match expr:
        case BoolLiteral(value):
            return ("true" if value else "false"), _PRIMARY
        case IntLiteral(value):
            return str(value), _PRIMARY
        case StringLiteral(text):
            return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"', _PRIMARY
        case Name(name):
            return name, _PRIMARY
        case Not(operand):
            return "!" + _operand(operand, _PRIMARY), _UNARY
        case Negate(operand):
            return "-" + _operand(operand, _PRIMARY), _UNARY
        case And(operands):
            return " && ".join(_operand(item, _RELATION) for item in operands), _AND
        case Or(operands):
            return " || ".join(_operand(item, _AND) for item in operands), _OR
        case Comparison(relation, left, right):
            return f"{_operand(left, _SUM)} {relation} {_operand(right, _SUM)}", _RELATION
        case Membership(operand, items):
            return f"{_operand(operand, _SUM)} in [{', '.join(to_cel(item) for item in items)}]", _RELATION
        case Arithmetic(operator, left, right):
            level = _LEVELS[operator.value]
            return f"{_operand(left, level)} {operator} {_operand(right, level + 1)}", level
        case Conditional(condition, then, otherwise):
            parts = (_operand(condition, _OR), _operand(then, _OR), _operand(otherwise, 0))
            return f"{parts[0]} ? {parts[1]} : {parts[2]}", 0


def _operand(expr: Expr, minimum: int) -> str:
    text, level = _print(expr)
    return text if level >= minimum else f"({text})"
