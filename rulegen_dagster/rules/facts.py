"""Facts of one evaluation: strictly typed, complete, and within the bounds of the vocabulary."""

from collections.abc import Mapping

from rulegen_dagster.domain.errors import RuleLanguageError
from rulegen_dagster.domain.vocabulary import FactValue, Vocabulary
from rulegen_dagster.rules.symbols import INT64_MAX, Kind, ValueType, fact_type, unknown_enum_value, unknown_fact


def complete_facts(vocabulary: Vocabulary, named: Mapping[str, FactValue]) -> dict[str, FactValue]:
    """Return the facts of an evaluation: the vocabulary's defaults, overlaid by the named ones.

    Raises `RuleLanguageError` with `unknown_fact`, `wrong_fact_type`, `fact_out_of_range` or `unknown_enum_value`.
    """
    facts: dict[str, FactValue] = dict(vocabulary.defaults())
    for name, value in named.items():
        fact = vocabulary.facts.get(name)
        if fact is None:
            raise unknown_fact(name, vocabulary)
        check_value(name, value, fact_type(name, fact))
        facts[name] = value
    return facts


def check_value(name: str, value: FactValue, expected: ValueType) -> None:
    """Refuse a value of another type than its fact, or outside its bounds or values."""
    match expected.kind:
        case Kind.BOOL:
            if type(value) is not bool:
                raise _wrong_type(name, value, "a bool")
        case Kind.ENUM:
            if not isinstance(value, str):
                raise _wrong_type(name, value, "one of its values")
            if value not in expected.values:
                raise unknown_enum_value(value, name, expected.values, None)
        case _:
            if type(value) is not int:
                raise _wrong_type(name, value, "a whole number")
            low, high = max(expected.low, -INT64_MAX), min(expected.high, INT64_MAX)
            if not low <= value <= high:
                raise RuleLanguageError("fact_out_of_range", f"{name} must lie in {low}..{high}")


def _wrong_type(name: str, value: FactValue, wanted: str) -> RuleLanguageError:
    return RuleLanguageError("wrong_fact_type", f"{name} needs {wanted}, not {type(value).__name__}")
