"""Refusals: why a draft was refused, as codes and places, fit to be kept in the ledger and shown to a provider again.

Nothing of the draft's own words is in them: a step of a path that is no word of the schema (a parameter's name, a
made-up key) is kept as `*`.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Final

from rulegen_dagster.domain.errors import Failure
from rulegen_dagster.domain.failure_kinds import REPAIRABLE_KINDS, FailureKind, kind_of

MAX_REFUSALS: Final = 20
"""Most refusals that are kept of one draft."""

ANSWER_TRUNCATED: Final = "answer_truncated"
"""The code of an answer that was cut off at its limit of tokens."""

_MAX_PATH: Final = 200
_STEP = re.compile(
    r"""\[(?P<index>\d{1,4})\] | \.(?P<name>\w+) | \[(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")\] | .[^.\[]*""",
    re.DOTALL | re.VERBOSE,
)


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """One reason why a draft was refused: a failure's code and its place (`$.rules[0].quote`)."""

    code: str
    path: str

    @property
    def kind(self) -> FailureKind:
        """What the refusal is about, by its code."""
        return kind_of(self.code)


def refusals_of(failures: Iterable[Failure]) -> tuple[Refusal, ...]:
    """Return what may be kept of failures: each code and place once, at most `MAX_REFUSALS`."""
    found = dict.fromkeys(Refusal(code=failure.code, path=_public(failure.path)) for failure in failures)
    return tuple(found)[:MAX_REFUSALS]


def may_be_repaired(failures: Iterable[Failure]) -> bool:
    """Return whether a provider may be asked once more: every failure is of a kind that a call may mend."""
    kinds = {failure.kind for failure in failures}
    return bool(kinds) and kinds <= REPAIRABLE_KINDS


def wants_longer_answer(refusals: Iterable[Refusal]) -> bool:
    """Return whether a repair needs room for a longer answer than the refused one had."""
    return any(refusal.code == ANSWER_TRUNCATED for refusal in refusals)


def refusals_to_json(refusals: Iterable[Refusal]) -> str | None:
    """Return refusals as the ledger keeps them; None for none."""
    rows = [[refusal.code, refusal.path] for refusal in refusals]
    return json.dumps(rows, separators=(",", ":")) if rows else None


def refusals_from_json(text: str | None) -> tuple[Refusal, ...]:
    """Return the refusals that `refusals_to_json` made plain."""
    return tuple(Refusal(code=code, path=path) for code, path in json.loads(text or "[]"))


@cache
def _words() -> frozenset[str]:
    """Return every word of the schema of drafts."""
    # A worker that resumes makes its first call before any draft is read; the models take a fifth of a second to build.
    from rulegen_dagster.domain import rule as shapes  # noqa: PLC0415

    read = (
        shapes.RulesReply,
        shapes.RuleDraft,
        shapes.NoRuleDraft,
        shapes.FactProposal,
        shapes.ExceptionDraft,
        shapes.MoneyParam,
        shapes.IntParam,
        shapes.RateParam,
        shapes.TestsReply,
        shapes.TestCase,
    )
    return frozenset(name for shape in read for name in shape.model_fields)


def _public(path: str) -> str:
    steps = ["$"]
    for match in _STEP.finditer(path.removeprefix("$")):
        if match["index"] is not None:
            steps.append(f"[{match['index']}]")
        else:
            steps.append(f".{match['name']}" if match["name"] in _words() else ".*")
    return "".join(steps)[:_MAX_PATH]
