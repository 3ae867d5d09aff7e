"""Roles: which sentences demand, define or inform, and the mark that decided it."""

import pytest

from rulegen_dagster.domain.clause import Clause, ClauseRole
from rulegen_dagster.specs.document import read_document


def _first(text: str) -> Clause:
    return read_document(text.encode(), "policy.md", max_bytes=10**6).clauses[0]


@pytest.mark.parametrize(
    ("text", "mark"),
    [
        ("Meals must be cheap.", "must"),
        ("Meals shall be cheap.", "must"),
        ("You may not claim alcohol.", "may_not"),
        ("Alcohol cannot be claimed.", "may_not"),
        ("We do not pay for traffic fines.", "may_not"),
        ("Alcohol is not reimbursable.", "prohibited"),
        ("Smoking is prohibited.", "prohibited"),
        ("A receipt is required.", "required"),
        ("Training courses need manager approval.", "required"),
        ("Meals are limited to $50 per day.", "limit"),
        ("Meals up to $50 are fine.", "limit"),
        ("Mileage is reimbursed at $0.67 per mile.", "reimbursed"),
        ("Business class may be booked on long flights.", "reimbursed"),
        ("You should book early.", "should"),
        ("Employees may claim lunch.", "permission"),
        ("Kindly submit your expenses within 30 days.", "deadline"),
        ("The maximum rate is low.", "maximum"),
        ("The limit for meals is $75.", "maximum"),
        ("Belege müssen vorgelegt werden.", "muss"),
        ("Alkohol darf nicht abgerechnet werden.", "darf"),
        ("Notwendige Kosten werden erstattet.", "erstattet"),
        ("Das Tagegeld beträgt 28 Euro.", "hoechstens"),
        ("Ein Mietwagen kann benutzt werden.", "kann"),
        ("Le reçu doit porter un nom.", "doit"),
        ("事前に承認を受けなければなりません。", "ja_obligation"),
        ("アルコールは対象外です。", "ja_prohibition"),
    ],
)
def test_a_demand_is_normative_and_its_mark_is_named(text: str, mark: str) -> None:
    clause = _first(text)

    assert clause.role is ClauseRole.NORMATIVE
    assert clause.role_reason.partition(":")[0] == mark


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("The office opens at nine.", "no_mark"),
        ("In 2025, 40 requests were made for $56,262 with a maximum of 2 requests each.", "history"),
        ("Sums ranged from $140 to $6,400.", "no_mark"),
        ("Last year, 412 claims were paid, with a median of $138.", "no_mark"),
        ("Must I keep receipts?", "question"),
        ("For example, a receipt is required for a taxi.", "example"),
        ("Most trips are booked through the travel desk.", "no_mark"),
        ("See [the list](#what-you-should-and-must-do).", "no_mark"),
        ("These must not be claimed:\n\n- Fines\n", "introduces_list"),
    ],
)
def test_information_is_no_work_item(text: str, reason: str) -> None:
    clause = _first(text)

    assert clause.role is ClauseRole.INFORMATIVE
    assert clause.role_reason == reason


@pytest.mark.parametrize(
    "text",
    [
        "“Business travel” means travel that must be approved.",
        "A trip is defined as a journey of a day or more.",
        "## Definitions\n\n**Trip**: a journey of a day or more.",
        "Dienstreisen im Sinne dieses Gesetzes sind Reisen.",
    ],
)
def test_a_definition_is_no_work_item(text: str) -> None:
    assert _first(text).role is ClauseRole.DEFINITION


@pytest.mark.parametrize(
    "text",
    [
        "Employees must use the cheapest means of transport.",
        "## Definitions\n\nReceipts must be kept for a year.",
        "This means that receipts must be kept.",
    ],
)
def test_a_demand_among_definitions_stays_a_demand(text: str) -> None:
    assert _first(text).role is ClauseRole.NORMATIVE


def test_an_item_is_normative_by_the_lead_that_it_inherits() -> None:
    clauses = read_document(b"These are not reimbursed:\n\n- Fines\n", "policy.md", max_bytes=1000).clauses

    assert clauses[1].role is ClauseRole.NORMATIVE
    assert clauses[1].role_reason == "lead:are not reimbursed"


def test_an_item_is_normative_by_a_heading_that_refuses() -> None:
    clauses = read_document(b"# Non-reimbursable items\n\n- Fines\n", "policy.md", max_bytes=1000).clauses

    assert clauses[0].role_reason == "heading:non-reimbursable"


@pytest.mark.parametrize(
    ("header", "role"),
    [("Limit", ClauseRole.NORMATIVE), ("Score", ClauseRole.INFORMATIVE)],
)
def test_a_row_with_a_number_is_normative_under_a_header_of_limits(header: str, role: ClauseRole) -> None:
    assert _first(f"| Item | {header} |\n|---|---|\n| Hotel | 180 |\n").role is role


def test_a_german_condition_tells_no_history() -> None:
    demands = read_document(
        b"(3) Wurde ein Taxi benutzt, wird der Preis erstattet.\n\nIm Vorjahr wurde der Preis erstattet.\n",
        "policy.md",
        max_bytes=1000,
    ).clauses

    assert [clause.role_reason for clause in demands] == ["erstattet:erstattet", "history"]


@pytest.mark.parametrize("name", ["policy.md", "policy.txt"])
def test_half_a_sentence_before_a_list_introduces_it(name: str) -> None:
    text = "(2) No allowance is paid if travellers\n\n1. use a car of the company,\n\n2. stay at home.\n"

    clauses = read_document(text.encode(), name, max_bytes=1000).clauses

    assert [clause.lead for clause in clauses[1:]] == ["(2) No allowance is paid if travellers"] * 2
    assert clauses[0].role_reason == "introduces_list"


def test_a_title_in_bold_print_introduces_nothing() -> None:
    clauses = read_document(b"**Not paid**\n\n- Fines\n- Alcohol\n", "policy.md", max_bytes=1000).clauses

    assert [clause.lead for clause in clauses] == [None, None, None]
