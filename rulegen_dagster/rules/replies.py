"""Replies: the JSON text of a provider becomes a value of the shape that was asked for, or typed failures."""

import re
from collections.abc import Sequence
from typing import Final, TypeVar

from pydantic import BaseModel, ValidationError

from rulegen_dagster.domain.errors import DraftRejectedError, Failure
from rulegen_dagster.domain.failure_kinds import REPAIRABLE_KINDS
from rulegen_dagster.domain.rule import MAX_RULES

MAX_DRAFT_BYTES: Final = 64 * 1024
MAX_FAILURES: Final = 20

SHAPE_CODES: Final = frozenset({"should_denies"})
"""What the shapes refuse under a code of their own."""
_PARAM_TAGS: Final = ("money", "int", "rate")
_UNION_MEMBER = re.compile(r"(?:str-enum|literal)\[.*\]|\[key\]", re.DOTALL)

_Reply = TypeVar("_Reply", bound=BaseModel)


def read_reply(model: type[_Reply], raw: str) -> _Reply:
    """Return a reply of the shape that was asked for; raises `DraftRejectedError` with at most 20 failures."""
    # Code points bound the bytes from below, so that a huge text is refused before it is encoded.
    if len(raw) > MAX_DRAFT_BYTES or len(raw.encode("utf-8", "replace")) > MAX_DRAFT_BYTES:
        raise DraftRejectedError((failure_at("draft_too_large", "$", f"more than {MAX_DRAFT_BYTES:,} bytes"),))
    # No store keeps this character, and no word of a policy needs it.
    if "\\u0000" in raw:
        raise DraftRejectedError((failure_at("nul_character", "$", "the escape for the character NUL is not allowed"),))
    try:
        return model.model_validate_json(raw)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        unique = {_path(item["loc"]): item for item in reversed(found)}
        failures = [_schema_failure(path, item["type"], item["msg"]) for path, item in reversed(unique.items())]
        raise DraftRejectedError(first_failures(failures)) from None


def _schema_failure(path: str, kind: str, message: str) -> Failure:
    if path == "$.rules" and kind == "too_long":
        return failure_at("too_many_rules", path, f"at most {MAX_RULES} rules are made of one clause")
    code = kind if kind in SHAPE_CODES else "invalid_json" if kind == "json_invalid" else "invalid_schema"
    return failure_at(code, path, message.removeprefix("Value error, "))


def _path(location: Sequence[int | str]) -> str:
    """Return a JSON path; the tags that pydantic adds for the members of a union are left out."""
    parts = ["$"]
    for index, step in enumerate(location):
        behind_key = location[index - 2] if index >= 2 else None
        if behind_key == "facts" or (behind_key == "params" and step in _PARAM_TAGS):
            continue
        if isinstance(step, str) and _UNION_MEMBER.fullmatch(step):
            continue
        if isinstance(step, int):
            parts.append(f"[{step}]")
        elif step.isidentifier():
            parts.append(f".{step[:60]}")
        else:
            parts.append(f"[{step[:60]!a}]")
    return "".join(parts)


def first_failures(failures: Sequence[Failure]) -> tuple[Failure, ...]:
    """Return at most 20 failures; what no further call may mend is not cut off, for it decides on a repair."""
    if len(failures) > MAX_FAILURES:
        failures = sorted(failures, key=lambda failure: failure.kind in REPAIRABLE_KINDS)
    return tuple(failures[:MAX_FAILURES])


def failure_at(code: str, path: str, message: str) -> Failure:
    """Return a failure at a JSON path of the draft."""
    return Failure(code=code, path=path, message=message)
