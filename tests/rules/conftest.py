"""A small vocabulary and builders of clauses and drafts for the tests of the rules."""

from collections.abc import Callable
from typing import Any

import pytest

from rulegen_dagster.domain.clause import Clause, ClauseKind, ClauseRole
from rulegen_dagster.domain.vocabulary import Vocabulary

ClauseBuilder = Callable[..., Clause]


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    """Facts of each type, as an expense policy needs them."""
    return Vocabulary.model_validate(
        {
            "name": "small",
            "version": 1,
            "description": "facts for tests",
            "subjects": ["meals", "lodging", "mileage", "claim"],
            "facts": {
                "expense.category": {
                    "type": "enum",
                    "values": {"meals": ["meals"], "lodging": ["hotel"], "other": []},
                    "description": "category",
                    "default": "other",
                },
                "expense.amount_minor": {"type": "money", "description": "amount"},
                "expense.day_total_minor": {"type": "money", "description": "total of the day"},
                "expense.has_receipt": {"type": "bool", "description": "a receipt is attached", "default": True},
                "expense.preapproved": {"type": "bool", "description": "approved before"},
                "trip.km": {"type": "int", "min": 0, "max": 100_000, "unit": "km", "description": "distance"},
                "trip.nights": {"type": "int", "min": 0, "max": 400, "description": "nights"},
                "claim.days_past_deadline": {"type": "int", "min": -4000, "max": 4000, "description": "days"},
            },
        }
    )


@pytest.fixture(scope="session")
def make_clause() -> ClauseBuilder:
    """Return a builder of clauses that stand at offset 100 of their text."""

    def build(text: str, *, kind: ClauseKind = ClauseKind.SENTENCE, **fields: Any) -> Clause:
        start = fields.pop("start", 100)
        return Clause(
            ordinal=7,
            start=start,
            end=start + len(text),
            text=text,
            kind=kind,
            content_hash="c",
            context_hash="x",
            role=ClauseRole.NORMATIVE,
            role_reason="marker",
            **fields,
        )

    return build


@pytest.fixture
def meal_rule() -> dict[str, Any]:
    """Return the draft of a rule for `Meals are limited to $75 per day.`."""
    return {
        "quote": "Meals are limited to $75 per day.",
        "modality": "must",
        "subject": "meals",
        "decision": "reimburse_up_to",
        "applies_when": 'expense.category == "meals" && expense.day_total_minor > p.limit',
        "cap": "p.limit",
        "params": {"limit": {"type": "money", "currency": "USD", "minor": 7500, "quote": "$75 per day"}},
    }


@pytest.fixture
def meal_tests() -> list[dict[str, Any]]:
    """Return test cases that were written from the same clause."""

    def case(name: str, kind: str, total: int, expect: str, cap: int | None = None) -> dict[str, Any]:
        facts = {"expense.category": "meals", "expense.day_total_minor": total}
        return {"name": name, "kind": kind, "facts": facts, "expect": expect, "expect_cap_minor": cap}

    return [
        case("below", "boundary", 7499, "no_match"),
        case("at the limit", "boundary", 7500, "no_match"),
        case("above", "boundary", 7501, "reimburse_up_to", 7500),
        {
            "name": "another category",
            "kind": "negative",
            "facts": {"expense.category": "lodging", "expense.day_total_minor": 9000},
            "expect": "no_match",
        },
    ]
