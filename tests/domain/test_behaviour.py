from dataclasses import fields, replace
from typing import Any

import pytest

from rulegen_dagster.domain.behaviour import Behaviour

BEHAVIOUR = Behaviour(
    application_release="0.1.0",
    pipeline_revision="p",
    provider="rulegen-pattern",
    model_id="m",
    provider_settings={"temperature_permille": 0},
    prompt_versions={"rules": "1"},
    output_schema="o",
    vocabulary="expense@1",
    vocabulary_digest="d",
    retrieval_index="r",
    validation_policy="v",
    validation_policy_digest="d",
    tool_policy="t",
    evaluation_suite="e",
)


def _changed(value: Any) -> Any:
    return {**value, "other": "x"} if isinstance(value, dict) else f"{value}x"


@pytest.mark.parametrize("name", [field.name for field in fields(Behaviour)])
def test_a_change_of_any_field_is_another_behaviour(name: str) -> None:
    changed = replace(BEHAVIOUR, **{name: _changed(getattr(BEHAVIOUR, name))})

    assert changed.digest != BEHAVIOUR.digest
    assert changed.content != BEHAVIOUR.content


def test_equal_behaviours_have_one_digest_whatever_the_order_of_their_settings() -> None:
    one = replace(BEHAVIOUR, provider_settings={"a": 1, "b": True})
    other = replace(BEHAVIOUR, provider_settings={"b": True, "a": 1})

    assert one.digest == other.digest


def test_a_part_that_the_pipeline_lacks_differs_from_one_that_is_empty() -> None:
    assert replace(BEHAVIOUR, tool_policy=None).digest != replace(BEHAVIOUR, tool_policy="").digest
