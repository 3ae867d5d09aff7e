"""The answer's shape: the JSON schema that a model is held to, and the way back from an answer to a draft.

Endpoints that enforce a schema know no objects with free keys, and want every field named. The schema is therefore
made of the draft models with each such object as a list of names and values; `to_draft` turns that back. An answer in
the drafts' own shape is taken as well. Nothing is decided here: what does not fit is left for the validation to refuse.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from pydantic import BaseModel

from rulegen_dagster.domain.rule import RulesReply, TestsReply

ANSWER_SHAPE: Final = "1"
"""Version of what this module makes of the draft models; part of each job's behaviour."""

_MODELS: Final[Mapping[str, type[BaseModel]]] = {"rules": RulesReply, "tests": TestsReply}
_NOT_ASKED: Final = frozenset({"clause_id", "tenant"})
# What endpoints do not know, and patterns, at which the grammars of some break; the validation checks all of it.
_LEFT_OUT: Final = frozenset(
    "title default discriminator minLength maxLength minimum maximum maxProperties propertyNames format pattern".split()
)
_FREE_KEYS: Final = frozenset({"params", "facts"})
_MAX_DEPTH: Final = 12


@lru_cache(maxsize=4)
def answer_schema(task: str) -> dict[str, Any]:
    """Return the JSON schema of a task's answers: closed objects, every field required, no free keys."""
    whole = _MODELS[task].model_json_schema()
    definitions = whole.pop("$defs", {})
    schema: dict[str, Any] = _strict(whole)
    for name in _NOT_ASKED & set(schema["properties"]):
        del schema["properties"][name]
    schema["required"] = list(schema["properties"])
    return schema | {"$defs": {name: _strict(definition) for name, definition in definitions.items()}}


@lru_cache(maxsize=4)
def answer_schema_text(task: str) -> str:
    """Return the schema as one line of JSON, for a prompt."""
    return json.dumps(answer_schema(task), separators=(",", ":"))


def _strict(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "patternProperties" in schema:
        (value,) = schema["patternProperties"].values()
        pair = {"name": {"type": "string"}, "value": _strict(value)}
        return {"type": "array", "items": _closed(pair)}
    if schema.get("type") == "object":
        kept = {key: _strict(value) for key, value in schema.items() if key == "description"}
        return kept | _closed({name: _strict(value) for name, value in schema["properties"].items()})
    strict = {}
    for key, value in schema.items():
        if key == "const":
            strict["enum"] = [value]
        elif key not in _LEFT_OUT:
            strict["anyOf" if key == "oneOf" else key] = _strict(value)
    return strict


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def to_draft(answer: str) -> str:
    """Return the draft that an answer holds, as JSON text; the answer itself where it is no JSON object.

    A fence of a code block around the whole answer is taken off: models put it there however they are asked.
    """
    text = _unfenced(answer.strip())
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(value, dict):
        return text
    try:
        return json.dumps(_with_free_keys(value, 0), ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def _unfenced(text: str) -> str:
    head, _, rest = text.partition("\n")
    if head.strip().lower() in {"```", "```json"} and rest.rstrip().endswith("```"):
        return rest.rstrip().removesuffix("```").strip()
    return text


def _with_free_keys(value: Any, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        return value
    if isinstance(value, list):
        return [_with_free_keys(item, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _with_free_keys(_joined(item) if key in _FREE_KEYS else item, depth + 1) for key, item in value.items()
    }


def _joined(pairs: Any) -> Any:
    """Return a list of names and values as an object; anything else, and a name that comes twice, as it is."""
    if not isinstance(pairs, list):
        return pairs
    joined: dict[str, Any] = {}
    for pair in pairs:
        if not isinstance(pair, dict) or set(pair) != {"name", "value"} or not isinstance(pair["name"], str):
            return pairs
        if pair["name"] in joined:
            return pairs
        joined[pair["name"]] = pair["value"]
    return joined
