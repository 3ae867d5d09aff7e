"""Vocabulary packs load, or say exactly why not."""

from collections import Counter

import pytest

from rulegen_dagster.domain.errors import VocabularyError
from rulegen_dagster.domain.vocabulary import BoolFact, EnumFact, IntFact, MoneyFact
from rulegen_dagster.providers.pattern_english import ENGLISH
from rulegen_dagster.providers.pattern_german import GERMAN
from rulegen_dagster.providers.pattern_roles import (
    APPROVAL_PREFIX,
    amount_of,
    category_of,
    count_of,
    events_of,
    measures_of,
    papers_of,
    periods_of,
    wholes_of,
)
from rulegen_dagster.rules.packs import load_vocabulary, parse_vocabulary

PACK = """\
name: small
version: 1
description: for tests
subjects: [meals]
facts:
  expense.amount_minor:
    type: money
    description: amount
  expense.category:
    type: enum
    values: {meals: [meals], other: []}
    default: other
    description: category
  trip.km:
    type: int
    min: 0
    max: 1000
    description: distance
"""


def test_a_pack_becomes_a_vocabulary() -> None:
    vocabulary = parse_vocabulary(PACK, name="small")

    assert isinstance(vocabulary.facts["expense.amount_minor"], MoneyFact)
    assert vocabulary.defaults() == {"expense.amount_minor": 0, "expense.category": "other", "trip.km": 0}


@pytest.mark.parametrize("name", ["nonsense", "../domain/rule", "", "a/b", "Expense", "x" * 500])
def test_an_unknown_pack_is_refused_with_the_packs_there_are(name: str) -> None:
    with pytest.raises(VocabularyError, match=r"there is no vocabulary .*; available: ") as refused:
        load_vocabulary(name)

    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("name: small", "name: [small", r"small.yaml is not valid YAML at line 2: "),
        (
            "name: small",
            "name: small\nname: small",
            r"small.yaml is not valid YAML at line 2: the key 'name' stands twice",
        ),
        ("  trip.km:", "  expense.amount_minor:", r"at line 14: the key 'expense.amount_minor' stands twice"),
        ("name: small", "name: !!python/object:os.system x", r"small.yaml is not valid YAML at line 1"),
        (PACK, "- just a list", "small.yaml must be a mapping with name, version"),
        ("version: 1", "version: one", "small.yaml: version: Input should be a valid integer"),
        ("description: for tests", "describtion: x", r"small.yaml: description: Field required \(and 1 more\)"),
        ("name: small", "name: large", "small.yaml names itself large; file and name must agree"),
        ("type: money", "type: dollars", "small.yaml: facts > expense.amount_minor: Input tag 'dollars'"),
        ("default: other", "default: taxi", "default 'taxi' is not one of the values"),
        ("default: other", "default: yes", "default: Input should be a valid string"),
        ("min: 0", "min: 5", "trip.km > int: default 0 is outside 5..1000"),
        ("max: 1000", f"max: {10**16}", "facts > trip.km: bounds must lie within 10\\^15"),
        (
            "type: money\n",
            "type: money\n    default: 7\n    max: 5\n",
            "expense.amount_minor: default 7 is outside 0..5",
        ),
        ("trip.km:", "p.km:", "facts > p.km: `p.` is kept for the parameters of a rule"),
        ("trip.km:", "if.km:", "facts > if.km: a reserved word cannot be part of a name"),
        ("trip.km:", "trip.in:", "facts > trip.in: a reserved word cannot be part of a name"),
        ("trip.km:", "km:", "String should match pattern"),
        ("[meals]\nfacts", "[meals, meals]\nfacts", "subjects: a subject is listed twice"),
    ],
)
def test_a_faulty_pack_is_refused_with_file_field_and_reason(old: str, new: str, message: str) -> None:
    assert old in PACK

    with pytest.raises(VocabularyError, match=message):
        parse_vocabulary(PACK.replace(old, new, 1), name="small")


PACKS = ["expense", "leave", "travel"]


def test_the_packs_that_are_shipped_are_these() -> None:
    with pytest.raises(VocabularyError, match=f"available: {', '.join(PACKS)}"):
        load_vocabulary("nonsense")


@pytest.mark.parametrize("name", PACKS)
def test_a_shipped_pack_loads_and_knows_a_category_and_an_approver(name: str) -> None:
    vocabulary = load_vocabulary(name)

    assert vocabulary.name == name
    assert category_of(vocabulary) in ("expense.category", "leave.kind")
    assert any(fact.startswith(APPROVAL_PREFIX) for fact in vocabulary.facts)
    assert papers_of(vocabulary)


@pytest.mark.parametrize("name", PACKS)
def test_no_phrase_of_a_shipped_pack_has_two_meanings(name: str) -> None:
    phrases: list[str] = []
    for fact in load_vocabulary(name).facts.values():
        if isinstance(fact, BoolFact):
            phrases += fact.phrases
        elif isinstance(fact, EnumFact):
            phrases += [phrase for words in fact.values.values() for phrase in words]

    counts = Counter(" ".join(phrase.replace("-", " ").casefold().split()) for phrase in phrases)

    assert {phrase for phrase, count in counts.items() if count > 1} == set()


@pytest.mark.parametrize("name", PACKS)
def test_each_phrase_of_a_number_has_a_part_to_play(name: str) -> None:
    vocabulary = load_vocabulary(name)
    events = {
        (event.fact, f"{event.action} {order} {event.words}")
        for event in events_of(vocabulary)
        for order in ("before", "after", "vor", "nach")
    }
    parts = {*periods_of(vocabulary), *wholes_of(vocabulary), *measures_of(vocabulary)}

    for fact, known in vocabulary.facts.items():
        if isinstance(known, IntFact | MoneyFact):
            assert all(phrase in parts or (fact, phrase) in events for phrase in known.phrases), fact


@pytest.mark.parametrize("name", PACKS)
def test_the_actions_of_a_shipped_pack_are_known_to_one_language(name: str) -> None:
    known = {*ENGLISH.actions, *GERMAN.actions}

    assert {event.action for event in events_of(load_vocabulary(name))} <= known


@pytest.mark.parametrize("name", PACKS)
def test_what_has_to_happen_before_something_has_happened_early_where_nothing_is_known(name: str) -> None:
    vocabulary = load_vocabulary(name)

    for event in events_of(vocabulary):
        fact = vocabulary.facts[event.fact]
        assert isinstance(fact, IntFact)
        assert fact.default == (fact.max if event.is_before else fact.min), event.fact


def test_an_amount_a_count_and_a_category_are_told_by_type_unit_and_phrases() -> None:
    expense, leave = load_vocabulary("expense"), load_vocabulary("leave")

    assert (amount_of(expense), amount_of(leave)) == ("expense.amount_minor", None)
    assert (count_of(expense, "days"), count_of(leave, "days")) == (None, "leave.requested_days")
    assert category_of(parse_vocabulary(PACK.replace("[meals]\nfacts", "[trip]\nfacts"), name="small")) is None
    assert measures_of(expense)["km"] == ("travel.distance_km", "km")
