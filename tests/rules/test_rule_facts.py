"""Facts are complete, strictly typed and within the bounds of the vocabulary."""

from typing import Any

import pytest

from rulegen_dagster.domain.errors import RuleLanguageError
from rulegen_dagster.domain.vocabulary import Vocabulary
from rulegen_dagster.rules.facts import complete_facts


def test_facts_that_are_not_named_keep_their_defaults(vocabulary: Vocabulary) -> None:
    facts = complete_facts(vocabulary, {"trip.km": 12, "expense.category": "meals"})

    assert set(facts) == set(vocabulary.facts)
    assert facts["trip.km"] == 12
    assert facts["expense.has_receipt"] is True
    assert facts["expense.amount_minor"] == 0


@pytest.mark.parametrize(
    ("name", "value", "code", "message"),
    [
        ("trip.kn", 1, "unknown_fact", "did you mean trip.km?"),
        ("p.limit", 1, "unknown_fact", "the vocabulary has no fact"),
        ("trip.km", True, "wrong_fact_type", "trip.km needs a whole number, not bool"),
        ("trip.km", 1.0, "wrong_fact_type", "not float"),
        ("trip.km", "1", "wrong_fact_type", "not str"),
        ("trip.km", None, "wrong_fact_type", "not NoneType"),
        ("trip.km", -1, "fact_out_of_range", "trip.km must lie in 0..100000"),
        ("trip.km", 100_001, "fact_out_of_range", "0..100000"),
        ("expense.amount_minor", 10**12 + 1, "fact_out_of_range", "0..1000000000000"),
        ("expense.has_receipt", 1, "wrong_fact_type", "needs a bool, not int"),
        ("expense.has_receipt", "true", "wrong_fact_type", "needs a bool, not str"),
        ("expense.category", "meel", "unknown_enum_value", "did you mean 'meals'?"),
        ("expense.category", 1, "wrong_fact_type", "needs one of its values, not int"),
    ],
)
def test_a_fact_that_the_vocabulary_does_not_allow_is_refused(
    name: str, value: Any, code: str, message: str, vocabulary: Vocabulary
) -> None:
    with pytest.raises(RuleLanguageError) as refused:
        complete_facts(vocabulary, {name: value})

    assert refused.value.code == code
    assert message in refused.value.message
