import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rulegen_dagster.domain.canonical import canonical_json, digest_of, sha256_hex

SCALARS = st.none() | st.booleans() | st.integers() | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=12
)


@given(st.dictionaries(st.text(), VALUES, max_size=6))
def test_the_order_in_which_a_mapping_was_made_does_not_show(value: dict[str, Any]) -> None:
    turned = dict(reversed(list(value.items())))

    assert canonical_json(turned) == canonical_json(value)
    assert digest_of(turned) == digest_of(value)


@given(VALUES)
def test_canonical_json_is_json_of_the_same_value(value: Any) -> None:
    assert json.loads(canonical_json(value)) == value


def test_there_are_no_spaces_and_letters_stay_letters() -> None:
    assert canonical_json({"b": [1, 2], "a": "§ ü"}) == '{"a":"§ ü","b":[1,2]}'


@pytest.mark.parametrize(
    "value",
    [1.0, float("nan"), [1, [2.5]], {"a": {"b": 0.1}}, ({"x": (1, 2.0)},)],
    ids=["whole", "not a number", "in lists", "in mappings", "in tuples"],
)
def test_a_float_is_refused_wherever_it_stands(value: Any) -> None:
    with pytest.raises(TypeError, match="float"):
        canonical_json(value)


def test_true_and_one_have_different_digests() -> None:
    assert digest_of(True) != digest_of(1)


def test_a_text_is_hashed_as_utf_8() -> None:
    assert sha256_hex("ü") == sha256_hex("ü".encode())
