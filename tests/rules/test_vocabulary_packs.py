"""Vocabulary packs load, or say exactly why not."""

import pytest

from rulegen_dagster.domain.errors import VocabularyError
from rulegen_dagster.domain.vocabulary import MoneyFact
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


def test_the_expense_pack_loads() -> None:
    vocabulary = load_vocabulary("expense")

    assert vocabulary.name == "expense"
    assert any(isinstance(fact, MoneyFact) for fact in vocabulary.facts.values())
