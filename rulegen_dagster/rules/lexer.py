"""The lexer of the rule language."""

import re
from typing import Final, NamedTuple

from rulegen_dagster.domain.errors import RuleLanguageError

# ASCII white space and digits only: what looks like a space or a digit to a reader must be one to every engine.
_TOKEN = re.compile(
    r"""[ \t\r\n]*(?:
        (?P<number>[0-9]+)
      | (?P<string>"(?:[^"\\\n]|\\["\\])*")
      | (?P<name>[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*)
      | (?P<operator>&&|\|\||[=!<>]=|[-+*/%<>!?:()\[\],])
    )""",
    re.VERBOSE,
)
_BLANK: Final = " \t\r\n"


class Token(NamedTuple):
    """One token with its position in code points; the last one of a source has the kind `end`."""

    kind: str
    text: str
    position: int


def tokens_of(source: str) -> list[Token]:
    """Return the tokens of an expression, with an `end` token after them.

    Raises `RuleLanguageError` with `unexpected_character` or `number_format`.
    """
    tokens = []
    position, end = 0, len(source.rstrip(_BLANK))
    while position < end:
        match = _TOKEN.match(source, position)
        if match is None:
            raise _unexpected_character(source, position)
        kind = match.lastgroup or ""
        token = Token(kind, match[kind], match.start(kind))
        position = match.end()
        following = source[position : position + 1]
        if kind == "number" and (following.isalnum() or following in ("_", ".")):
            raise RuleLanguageError("number_format", "only whole decimal numbers are allowed", token.position)
        tokens.append(token)
    tokens.append(Token("end", "", end))
    return tokens


def _unexpected_character(source: str, position: int) -> RuleLanguageError:
    while source[position] in _BLANK:
        position += 1
    character = source[position]
    hint = "; a string is written in double quotes" if character in "\"'" else ""
    return RuleLanguageError("unexpected_character", f"unexpected character {character!a}{hint}", position)
