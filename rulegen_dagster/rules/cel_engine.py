"""The CEL engine: compiles and runs conditions with `cel-expr-python`, and trusts none of its silences.

The library returns evaluation errors as values, accepts a bool for a number, and notices a missing variable only
when it is reached. So the facts are checked before they come here, and whatever is not exactly a bool or a whole
number afterwards is an error.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from cel_expr_python import cel

from rulegen_dagster.domain.errors import RuleLanguageError
from rulegen_dagster.domain.vocabulary import FactValue
from rulegen_dagster.rules.expression import Expr
from rulegen_dagster.rules.language import to_cel
from rulegen_dagster.rules.symbols import PARAM_PREFIX, Kind, Symbols, fact_type

Declarations = tuple[tuple[str, str], ...]
"""Names and CEL types; hashable, so that one environment serves every rule that declares the same."""

_CEL_TYPES: Final = {"BOOL": cel.Type.BOOL, "INT": cel.Type.INT, "STRING": cel.Type.STRING}


@dataclass(frozen=True, kw_only=True)
class CelProgram:
    """A compiled expression; may be evaluated by several threads at once."""

    text: str
    result: str
    program: Any

    def evaluate(self, facts: Mapping[str, FactValue]) -> bool | int:
        """Return the value; raises `RuleLanguageError` with the code `cel_evaluation`."""
        try:
            value = self.program.eval(data=facts)
        except RuntimeError as error:
            # The iteration budget is the one evaluation error that the library raises.
            raise RuleLanguageError("cel_evaluation", "the CEL engine gave up on an expression") from error
        kind, plain = value.type().name(), value.plain_value()
        expected = bool if self.result == "BOOL" else int
        if kind == self.result and isinstance(plain, int) and type(plain) is expected:
            return plain
        raise RuleLanguageError("cel_evaluation", f"the CEL engine returned {kind} where {self.result} is due")


def declarations_of(symbols: Symbols) -> Declarations:
    """Return the CEL type of every fact and parameter that a rule may read."""
    facts = ((name, _cel_type(fact_type(name, fact).kind)) for name, fact in symbols.vocabulary.facts.items())
    return (*facts, *((PARAM_PREFIX + name, "INT") for name in symbols.params))


def compile_cel(expr: Expr, declarations: Declarations, kind: Kind) -> CelProgram:
    """Compile a checked expression; raises `RuleLanguageError` with the code `cel_compile`."""
    text, result = to_cel(expr), _cel_type(kind)
    try:
        program = _environment(declarations).compile(text)
    except RuntimeError as error:
        # The library's message repeats the condition, which is not ours to show.
        raise RuleLanguageError("cel_compile", "the CEL engine does not accept this condition") from error
    found = program.return_type().name()
    if found != result:
        raise RuleLanguageError("cel_compile", f"the CEL engine finds {found} where {result} is due")
    return CelProgram(text=text, result=result, program=program)


@lru_cache(maxsize=64)
def _environment(declarations: Declarations) -> Any:
    return cel.NewEnv(variables={name: _CEL_TYPES[kind] for name, kind in declarations})


def _cel_type(kind: Kind) -> str:
    match kind:
        case Kind.BOOL:
            return "BOOL"
        case Kind.ENUM | Kind.STRING:
            return "STRING"
        case _:
            return "INT"
