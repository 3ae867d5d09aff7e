"""What the pattern provider makes of plain sentences: the right rule, or a typed abstention."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from rulegen_dagster.domain.states import Stage
from rulegen_dagster.providers.pattern import PatternProvider
from rulegen_dagster.providers.port import ProviderRequest
from rulegen_dagster.rules.packs import load_vocabulary
from rulegen_dagster.specs.document import read_document

Draft = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def draft() -> Draft:
    vocabulary = load_vocabulary("expense")
    provider = PatternProvider()

    def draft_of(text: str, ordinal: int = 0) -> dict[str, Any]:
        request = ProviderRequest(
            stage=Stage.GENERATE_RULES,
            job="job",
            item_key="rule-01",
            attempt=1,
            operation_key="key",
            timeout_ms=1000,
            clause=read_document(text.encode(), "policy.md", max_bytes=10**6).clauses[ordinal],
            context=(),
            vocabulary=vocabulary,
        )
        reply: dict[str, Any] = json.loads(asyncio.run(provider.call(request)).draft)
        return reply

    return draft_of


TAKEN = [
    (
        "Meals are limited to $50 per day.",
        "must",
        "reimburse_up_to",
        'expense.category == "meals" && expense.day_total_minor > p.limit',
    ),
    (
        "Meals must not exceed €50/day.",
        "must",
        "reimburse_up_to",
        'expense.category == "meals" && expense.day_total_minor > p.limit',
    ),
    (
        "Dinner: up to $40 per person may be claimed.",
        "may",
        "reimburse_up_to",
        'meal.kind == "dinner" && expense.per_person_minor > p.limit',
    ),
    (
        "The limit for hotels is $200 per night.",
        "must",
        "reimburse_up_to",
        'expense.category == "lodging" && expense.night_rate_minor > p.limit',
    ),
    (
        "No more than $75 per day will be reimbursed for meals.",
        "must",
        "reimburse_up_to",
        'expense.category == "meals" && expense.day_total_minor > p.limit',
    ),
    (
        "Hotels are capped at $200 a night.",
        "must",
        "reimburse_up_to",
        'expense.category == "lodging" && expense.night_rate_minor > p.limit',
    ),
    (
        "Meals should not exceed $60 per day.",
        "should",
        "flag",
        'expense.category == "meals" && expense.day_total_minor > p.limit',
    ),
    (
        "Taxis and ride-shares over $50 require a receipt.",
        "must",
        "require_receipt",
        'expense.category in ["taxi", "ride_share"] && !expense.has_receipt && expense.amount_minor > p.threshold',
    ),
    (
        "All expenses of $75 or more must be accompanied by a receipt.",
        "must",
        "require_receipt",
        "!expense.has_receipt && expense.amount_minor >= p.threshold",
    ),
    (
        "If a meal costs more than $50, a receipt is required.",
        "must",
        "require_receipt",
        'expense.category == "meals" && !expense.has_receipt && expense.amount_minor > p.threshold',
    ),
    (
        "International flights must be approved in advance by a vice president.",
        "must",
        "require_approval",
        (
            'trip.scope == "international" && expense.category == "airfare" && !approval.vice_president'
            " && expense.amount_minor > 0"
        ),
    ),
    (
        "Purchases over $100 should be approved by your manager.",
        "should",
        "flag",
        "!approval.manager && expense.amount_minor > p.threshold",
    ),
    (
        "Gifts over $50 per person are not reimbursable.",
        "must",
        "deny",
        'expense.category == "gifts" && expense.per_person_minor > p.threshold',
    ),
    (
        "Alcohol, tobacco, and laundry are prohibited.",
        "must",
        "deny",
        'expense.category in ["alcohol", "tobacco", "laundry"]',
    ),
    (
        "First class and business class flights are not allowed.",
        "must",
        "deny",
        'flight.class in ["first", "business"] && expense.category == "airfare"',
    ),
    (
        "Lodging without a receipt is not reimbursable.",
        "must",
        "deny",
        'expense.category == "lodging" && !expense.has_receipt && expense.amount_minor > 0',
    ),
    (
        "Claims must be submitted within thirty (30) days of the expense.",
        "must",
        "deny",
        "claim.days_since_expense > p.days",
    ),
    (
        "Claims should be submitted within 30 days of the end of the trip.",
        "should",
        "flag",
        "claim.days_since_trip_end > p.days",
    ),
    ("Expenses older than 90 days will not be reimbursed.", "must", "deny", "claim.days_since_expense > p.days"),
    (
        "Train tickets must be booked at least 7 days in advance of travel.",
        "must",
        "deny",
        'expense.category == "rail" && trip.booked_days_ahead < p.days',
    ),
    ("Mileage is reimbursed at €0.30 per km.", "must", "reimburse_up_to", 'expense.category == "mileage"'),
    ("Lunch may be claimed.", "may", "allow", 'meal.kind == "lunch"'),
    (
        "**Meals** are limited to [$50](https://example.org/must) per day.",
        "must",
        "reimburse_up_to",
        'expense.category == "meals" && expense.day_total_minor > p.limit',
    ),
]

LEFT = [
    ("Please be nice to all.", "no_pattern"),
    ("Hotel costs in New York are limited to $300 per night.", "unread_words"),
    ("Reasonable meals are reimbursable.", "unread_words"),
    ("Travel expenses over $500 require approval from a director.", "unread_words"),
    ("It must be approved by a director.", "unread_words"),
    ("Hotels are capped at $200 per night, including taxes.", "unread_words"),
    ("The expense must be approved by a director.", "scope_unclear"),
    ("Receipts are required.", "scope_unclear"),
    ("Claims over $500 must be approved by a director.", "claim_or_expense_unclear"),
    ("Expenses are limited to $50 per day.", "no_known_category"),
    ("Any expense is not reimbursable.", "no_known_category"),
    ("Meals are not limited to $50 per day.", "condition_or_exception_not_modelled"),
    ("Rental cars are reimbursable only with manager approval.", "condition_or_exception_not_modelled"),
    ("Alcohol is not reimbursable unless the moon is full.", "condition_or_exception_not_modelled"),
    ("Business class is not permitted unless the flight is at least 8 hours.", "condition_or_exception_not_modelled"),
    ("Expenses over $500 must be approved by a director and the CFO.", "condition_or_exception_not_modelled"),
    ("Hotels are not covered unless the flight is longer than 8 hours.", "condition_or_exception_not_modelled"),
    ("Meals between $20 and $50 require a receipt.", "several_amounts_in_one_clause"),
    ("Meals of $20 require a receipt.", "threshold_boundary_unclear"),
    ("No receipt is required for expenses of $25 or less.", "threshold_boundary_unclear"),
    ("Meals and lodging are limited to $200 per day.", "several_categories_in_one_clause"),
    ("Alcohol with meals is not reimbursable.", "several_categories_in_one_clause"),
    ("Business class flights and minibar purchases are not reimbursable.", "several_categories_in_one_clause"),
    ("Meals are limited to $50 per person per day.", "several_periods_in_one_clause"),
    ("Parking is reimbursed if a receipt is required.", "several_demands_in_one_clause"),
    ("Training must be approved in advance.", "approver_not_known"),
    ("Tips above 20 % will not be reimbursed.", "percentage_not_modelled"),
    ("Claims must be submitted within two weeks of the expense.", "weeks_not_modelled"),
    ("Claims must be filed within 10 business days of the purchase.", "business_days_not_modelled"),
    ("Claims must be submitted within 2 months of the expense.", "months_not_modelled"),
    ("Claims must be submitted within 5000 days of the expense.", "threshold_out_of_range"),
    ("Meals are limited to $50.555 per day.", "amount_format_unclear"),
    ("Meals \ue001 are limited to $50 per day.", "unread_words"),
    ("Meals must " + "be very " * 400 + "cheap.", "clause_too_long"),
]


@pytest.mark.parametrize(("text", "modality", "decision", "condition"), TAKEN)
def test_a_plain_sentence_gives_its_rule(draft: Draft, text: str, modality: str, decision: str, condition: str) -> None:
    [rule] = draft(text)["rules"]

    assert (rule["modality"], rule["decision"], rule["applies_when"]) == (modality, decision, condition)


@pytest.mark.parametrize(("text", "reason"), LEFT)
def test_anything_else_is_left_with_a_typed_reason(draft: Draft, text: str, reason: str) -> None:
    reply = draft(text)

    assert not reply["rules"]
    assert reply["no_rule"]["reason"] == reason


@pytest.mark.parametrize(
    ("text", "condition", "quote"),
    [
        ("Alcohol is not paid unless approved by your manager.", "approval.manager", "unless approved by your manager"),
        (
            "Unless a director has approved it, alcohol is not paid.",
            "approval.director",
            "Unless a director has approved it",
        ),
        ("Taxis are not paid, except in an emergency.", "expense.is_emergency", "except in an emergency"),
        (
            "Alcohol is not paid except for client entertainment.",
            'expense.category == "client_entertainment"',
            "except for client entertainment",
        ),
        (
            "Business class is not paid unless the flight is longer than 8 hours.",
            "flight.duration_hours > p.exception_hours",
            "unless the flight is longer than 8 hours",
        ),
    ],
)
def test_a_known_exception_is_read_with_its_own_quote(draft: Draft, text: str, condition: str, quote: str) -> None:
    [rule] = draft(text)["rules"]

    assert rule["unless"] == [{"condition": condition, "quote": quote}]


def test_each_number_has_a_verbatim_quote_of_its_own(draft: Draft) -> None:
    [rule] = draft("Gifts over\n$1,050.50 per person are not reimbursable.")["rules"]

    assert rule["params"] == {
        "threshold": {"type": "money", "currency": "USD", "minor": 105050, "quote": "over\n$1,050.50"}
    }


def test_mileage_is_capped_by_a_rate_in_micros(draft: Draft) -> None:
    [rule] = draft("Mileage is reimbursed at $0.655 per mile.")["rules"]

    assert rule["cap"] == "p.rate * travel.distance_miles / 10000"
    assert rule["params"]["rate"]["micros"] == 655_000


def test_a_general_demand_below_a_heading_that_names_a_category_is_left(draft: Draft) -> None:
    reply = draft("# Conference fees\n\nExpenses over $500 must be approved by a director.")

    assert reply["no_rule"]["reason"] == "scope_set_by_heading"


def test_an_item_is_read_with_its_lead(draft: Draft) -> None:
    [rule] = draft("Daily limits:\n\n- Meals: $75\n- Taxis: $20\n", ordinal=1)["rules"]

    assert rule["applies_when"] == 'expense.category == "meals" && expense.day_total_minor > p.limit'


def test_a_row_is_read_with_its_header(draft: Draft) -> None:
    [rule] = draft("| Item | Maximum per night |\n|---|---|\n| Hotel | $180 |\n")["rules"]

    assert rule["applies_when"] == 'expense.category == "lodging" && expense.night_rate_minor > p.limit'
    assert rule["params"]["limit"]["quote"] == "$180"


def test_a_row_with_a_note_that_is_not_understood_is_left(draft: Draft) -> None:
    reply = draft("| Item | Limit | Note |\n|---|---|---|\n| Hotel | $180 | in cities |\n")

    assert reply["no_rule"]["reason"] == "unread_words"
