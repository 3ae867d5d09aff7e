"""Real policies: they parse whole, and the pattern provider abstains rather than guess."""

import asyncio
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rulegen_dagster.domain.clause import Clause, ParsedSpec
from rulegen_dagster.domain.states import Stage
from rulegen_dagster.domain.vocabulary import Vocabulary
from rulegen_dagster.providers.pattern import PatternProvider
from rulegen_dagster.providers.port import ProviderRequest
from rulegen_dagster.rules.drafts import read_rules_draft
from rulegen_dagster.rules.packs import load_vocabulary
from rulegen_dagster.specs.document import read_document

SPECS = Path(__file__).parents[2].parent / "shared" / "specs"
NAMES = (
    "18f_leave.en.md",
    "18f_procurement_over_10000.en.md",
    "18f_purchase_requests.en.md",
    "18f_travel_guide_faq.en.md",
    "de_arv_1991.de.md",
    "de_brkg_2005.de.md",
    "de_tgv_1986.de.md",
    "fr_betagouv_sgmap.fr.md",
    "gitlab_expenses.ja.md",
    "openjs_community_fund_policy.en.md",
    "openjs_project_directed_funding.en.md",
    "us_ftr_301-11_mie.en.md",
    "derived/18f_leave.en.docx",
    "derived/18f_leave.en.html",
    "derived/18f_leave.en.txt",
    "derived/de_brkg_2005.de.docx",
    "derived/de_brkg_2005.de.html",
    "derived/de_brkg_2005.de.pdf",
    "derived/de_brkg_2005.de.txt",
)
GOLD = SPECS.parent / "gold" / "brkg.gold.json"
ONE_LAW = ("de_brkg_2005.de.md", *(f"derived/de_brkg_2005.de.{ending}" for ending in ("txt", "html", "docx", "pdf")))


def _parsed(name: str) -> ParsedSpec:
    path = SPECS / name
    if not path.is_file():
        pytest.skip(f"the shared specification {name} is not beside the project")
    return read_document(path.read_bytes(), name, max_bytes=10**6)


def _rules(clause: Clause, vocabulary: Vocabulary) -> str:
    request = ProviderRequest(
        stage=Stage.GENERATE_RULES,
        job="shared",
        item_key="rule-01",
        attempt=1,
        operation_key="shared",
        timeout_ms=1000,
        clause=clause,
        context=(),
        vocabulary=vocabulary,
    )
    return asyncio.run(PatternProvider().call(request)).draft


@pytest.mark.parametrize("name", NAMES)
def test_a_real_policy_parses_into_exact_clauses_with_some_that_demand(name: str) -> None:
    parsed = _parsed(name)

    assert parsed.normative
    assert all(clause.text == parsed.canonical_text[clause.start : clause.end] for clause in parsed.clauses)
    assert all(before.end <= after.start for before, after in pairwise(parsed.clauses))


@pytest.mark.parametrize("name", ONE_LAW)
def test_each_gold_quote_of_one_law_lies_in_one_clause_in_every_format(name: str) -> None:
    parsed = _parsed(name)
    if not GOLD.is_file():
        pytest.skip("the shared gold rules are not beside the project")
    quotes = {rule["id"]: rule["source"]["quote"] for rule in json.loads(GOLD.read_text())["rules"]}
    clauses = ["".join(clause.text.split()) for clause in parsed.clauses]

    missed = [key for key, quote in quotes.items() if not any("".join(quote.split()) in text for text in clauses)]

    assert (len(quotes), missed) == (18, [])


@pytest.mark.parametrize("name", [name for name in NAMES if not name.endswith((".md", ".txt"))])
def test_each_clause_of_a_real_document_has_its_place(name: str) -> None:
    parsed = _parsed(name)

    order = [parsed.source_map.places.index(parsed.location_of(clause.start)) for clause in parsed.clauses]

    assert order == sorted(order)


def test_nothing_hidden_of_the_fund_policy_becomes_a_clause() -> None:
    parsed = _parsed("openjs_community_fund_policy.en.md")

    assert "On Hold For 2025" in parsed.canonical_text
    assert not any("On Hold" in clause.text or "Speakers Bureau" in clause.text for clause in parsed.clauses)
    assert not any("[!" in clause.text for clause in parsed.clauses)


def test_the_statistics_of_the_fund_policy_are_no_work_items() -> None:
    parsed = _parsed("openjs_community_fund_policy.en.md")

    assert not any("$" in clause.text for clause in parsed.normative)


def test_one_law_demands_the_same_number_of_things_in_every_format_that_keeps_its_lists() -> None:
    # The PDF was made without the marks of its items, so nothing tells them from paragraphs.
    demands = {name: len(_parsed(name).normative) for name in ONE_LAW if not name.endswith(".pdf")}

    assert len(set(demands.values())) == 1, demands


@pytest.mark.parametrize("name", NAMES)
def test_every_draft_for_a_real_policy_is_accepted_or_a_typed_abstention(name: str) -> None:
    vocabulary = load_vocabulary("expense")

    outputs = [
        read_rules_draft(_rules(clause, vocabulary), clause=clause, item_key="rule-01", vocabulary=vocabulary)
        for clause in _parsed(name).normative
    ]

    assert all(output.no_rule or len(output.rules) == 1 for output in outputs)


def test_the_plain_refusal_of_the_fund_policy_is_taken() -> None:
    parsed = _parsed("openjs_community_fund_policy.en.md")
    clause = next(clause for clause in parsed.normative if "expenses without receipts" in clause.text)

    rule: dict[str, Any] = json.loads(_rules(clause, load_vocabulary("expense")))["rules"][0]

    assert (rule["decision"], rule["applies_when"]) == (
        "deny",
        "!expense.has_receipt && expense.amount_minor > 0",
    )


def test_a_list_of_the_travel_guide_is_read_with_its_lead() -> None:
    parsed = _parsed("18f_travel_guide_faq.en.md")
    clause = next(clause for clause in parsed.normative if clause.text.startswith("[Hotels]"))

    rule: dict[str, Any] = json.loads(_rules(clause, load_vocabulary("expense")))["rules"][0]

    assert rule["decision"] == "require_receipt"
    assert rule["applies_when"].startswith('expense.category == "lodging"')
