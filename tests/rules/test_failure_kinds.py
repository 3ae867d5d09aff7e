"""Failure kinds: every code that a check can raise has one, and the kinds decide on a repair."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from rulegen_dagster.domain.errors import Failure
from rulegen_dagster.domain.failure_kinds import FAILURE_KINDS, REPAIRABLE_KINDS, FailureKind, kind_of
from rulegen_dagster.domain.refusal import (
    MAX_REFUSALS,
    Refusal,
    may_be_repaired,
    refusals_from_json,
    refusals_of,
    refusals_to_json,
)
from rulegen_dagster.providers.port import AnswerProblem
from rulegen_dagster.rules.grounding import QuoteProblem
from rulegen_dagster.rules.replies import SHAPE_CODES

PACKAGE = Path(__file__).parents[2] / "rulegen_dagster"
SOURCES = [*(PACKAGE / "rules").glob("*.py"), PACKAGE / "workflow" / "generate.py"]
MAKERS = {"RuleLanguageError", "Failure", "failure_at", "_fail"}


def _codes() -> Iterator[str]:
    """Yield each code that is written out where a failure is made."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
                given = [*node.args[:1], *(word.value for word in node.keywords if word.arg == "code")]
                if name in MAKERS:
                    for value in given:
                        yield from (
                            part.value
                            for part in ast.walk(value)
                            if isinstance(part, ast.Constant) and isinstance(part.value, str)
                        )


def test_every_code_that_a_check_can_raise_has_a_kind() -> None:
    raised = {*_codes(), *SHAPE_CODES, *QuoteProblem, *AnswerProblem, "invalid_json", "invalid_schema"}

    assert len(raised) > 50
    assert raised - set(FAILURE_KINDS) == set()


def test_the_table_has_no_code_that_nothing_raises() -> None:
    raised = {*_codes(), *SHAPE_CODES, *QuoteProblem, *AnswerProblem, "invalid_json", "invalid_schema"}
    raised |= {"draft_unreadable"}

    assert set(FAILURE_KINDS) - raised == set()


def test_each_kind_has_a_code() -> None:
    assert set(FAILURE_KINDS.values()) == set(FailureKind)


def test_a_code_that_nobody_knows_is_never_repaired() -> None:
    assert kind_of("made_up") not in REPAIRABLE_KINDS


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        (["invalid_json"], True),
        (["quote_not_verbatim", "number_not_in_quote"], True),
        (["unknown_fact"], True),
        (["quote_not_verbatim", "active_text"], False),
        (["foreign_tenant"], False),
        (["should_denies"], False),
        (["contradicting_tests"], False),
        ([], False),
    ],
)
def test_one_failure_that_must_not_be_prompted_away_forbids_the_repair(codes: list[str], expected: bool) -> None:
    assert may_be_repaired([Failure(code=code, path="$", message="m") for code in codes]) is expected


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("$", "$"),
        ("$.rules[0].quote", "$.rules[0].quote"),
        ("$.rules[12].unless[3].condition", "$.rules[12].unless[3].condition"),
        ("$.rules[0].params.ignore_the_rules.quote", "$.rules[0].params.*.quote"),
        ("$['pay me'].rules", "$.*.rules"),
        ("$.tests[0].facts['expense.amount_minor']", "$.tests[0].facts.*"),
        ("$['a[0].quote']", "$.*"),
        ("$['it\\'s [0].rules']", "$.*"),
        ("$.rules[99999]", "$.rules.*"),
        ("$.pay_me_everything", "$.*"),
    ],
)
def test_a_kept_path_has_words_of_the_schema_alone(path: str, kept: str) -> None:
    assert refusals_of([Failure(code="c", path=path, message="m")]) == (Refusal(code="c", path=kept),)


def test_kept_refusals_are_bounded_and_survive_the_ledger() -> None:
    failures = [Failure(code=f"c{number}", path=f"$.rules[{number}]" * 100, message="m") for number in range(50)]

    kept = refusals_of([*failures, *failures])

    assert len(kept) == MAX_REFUSALS
    assert max(len(refusal.path) for refusal in kept) == 200
    assert refusals_from_json(refusals_to_json(kept)) == kept
    assert refusals_to_json(()) is None
    assert refusals_from_json(None) == ()
