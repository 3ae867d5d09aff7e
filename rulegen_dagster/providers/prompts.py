"""Prompts: the release's own, and what a request makes of them; text of a policy stands between marks."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Final

from rulegen_dagster.domain.canonical import digest_of
from rulegen_dagster.domain.errors import ProviderConfigError, ProviderPermanentError
from rulegen_dagster.domain.prompt import Prompt
from rulegen_dagster.domain.states import Stage
from rulegen_dagster.domain.vocabulary import BoolFact, EnumFact, Fact, IntFact, MoneyFact, Vocabulary
from rulegen_dagster.providers.port import ProviderRequest

RELEASE_VERSIONS: Final[Mapping[str, str]] = {"rules": "1", "tests": "1", "repair": "1"}
"""The version of each task's prompt that a job freezes when it is submitted to this release."""

TASK_OF_STAGE: Final[Mapping[Stage, str]] = {Stage.GENERATE_RULES: "rules", Stage.GENERATE_TESTS: "tests"}
"""Which prompt a stage is asked with; `repair` is put into either."""

_SYSTEM: Final = "<!-- system -->\n"
_USER: Final = "<!-- user -->\n"
_PLACEHOLDER: Final = re.compile(r"\{\{([a-z]+)\}\}")


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """What is sent for one request; `system` is the same for every clause of a job."""

    system: str
    user: str


def release_prompts() -> Mapping[str, Prompt]:
    """Return this release's own prompts, by task."""
    return {task: load_prompt(task, version) for task, version in RELEASE_VERSIONS.items()}


@lru_cache(maxsize=32)
def load_prompt(task: str, version: str) -> Prompt:
    """Return a prompt of the package. Raises `ProviderConfigError` where there is none of this name."""
    if not (re.fullmatch(r"[a-z]{1,32}", task) and re.fullmatch(r"[a-z0-9-]{1,32}", version)):
        raise ProviderConfigError(f"'{task[:32]}' in version '{version[:32]}' cannot name a prompt")
    try:
        text = (files("rulegen_dagster") / "prompts" / task / f"{version}.md").read_text(encoding="utf-8")
    except OSError:
        raise ProviderConfigError(f"this release has no prompt for {task} in version {version}") from None
    return Prompt(task=task, version=version, text=text)


def mark_of(request: ProviderRequest) -> str:
    """Return the mark of a request's blocks, which is made from the texts between them.

    Who writes a policy would have to search for a text that contains 64 bits of its own digest, and `render` refuses
    even that one. The mark is the same for every attempt at a request, so that a gateway which compares what comes
    under one `Idempotency-Key` finds it equal: https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/
    """
    clause = request.clause
    marked = [request.operation_key, clause.text, *clause.heading_path, clause.label, clause.lead, *clause.table_header]
    return digest_of([*marked, *(entry.text for entry in request.context)])[:16]


def render(prompts: Mapping[str, Prompt], request: ProviderRequest, *, mark: str, schema: str) -> Rendered:
    """Return what is sent for a request.

    `mark` begins and ends each block (see `mark_of`): a text that holds it could end its own block, and is refused with
    `ProviderPermanentError`. Raises `ProviderConfigError` for a prompt that is missing or has unknown placeholders.
    """
    task = TASK_OF_STAGE.get(request.stage)
    if task is None:
        raise ProviderPermanentError(f"a model drafts rules and tests, not {request.stage.value}")
    system, user = _parts(prompts, task)
    clause = request.clause
    place = [*clause.heading_path, *([clause.label] if clause.label else [])]
    place_texts = {"heading": " / ".join(place), "list": clause.lead or "", "columns": " | ".join(clause.table_header)}
    for text in (clause.text, *place_texts.values(), *(entry.text for entry in request.context)):
        if mark in text:
            raise ProviderPermanentError("the clause or its context holds this request's mark; it is not sent")
    places = "".join(_block(f"{name} above it", text, mark) for name, text in place_texts.items() if text)
    contexts = "".join(
        _block(f"context clause {entry.ordinal}, {entry.relation}", entry.text, mark) for entry in request.context
    )
    values = {
        "vocabulary": describe_vocabulary(request.vocabulary),
        "schema": schema,
        "fence": mark,
        "place": f"Where the clause stands:\n\n{places}" if places else "",
        "context": f"What its words mean, from elsewhere in the policy:\n\n{contexts}" if contexts else "",
        "clause": clause.text,
        "repair": _repair(prompts, request),
    }
    return Rendered(system=_fill(system, values), user=_fill(user, values))


def _parts(prompts: Mapping[str, Prompt], task: str) -> tuple[str, str]:
    if task not in prompts:
        raise ProviderConfigError(f"the job froze no prompt for {task}")
    head, mark, user = prompts[task].text.partition(_USER)
    if not mark or not head.startswith(_SYSTEM):
        raise ProviderConfigError(f"the prompt for {task} has no lines '{_SYSTEM.strip()}' and '{_USER.strip()}'")
    return head.removeprefix(_SYSTEM), user


def _repair(prompts: Mapping[str, Prompt], request: ProviderRequest) -> str:
    if not request.repair:
        return ""
    if "repair" not in prompts:
        raise ProviderConfigError("the job froze no prompt for repair")
    told = "\n".join(f"- `{refusal.code}` at `{refusal.path}`" for refusal in request.repair)
    return _fill(prompts["repair"].text, {"refusals": told}) + "\n"


def _block(name: str, text: str, mark: str) -> str:
    return f"<<{mark} {name}>>\n{text}\n<<{mark} end>>\n\n"


def _fill(template: str, values: Mapping[str, str]) -> str:
    """Fill every placeholder in one pass, so that a text which looks like one is left as it is."""
    unknown = {name for name in _PLACEHOLDER.findall(template) if name not in values}
    if unknown:
        raise ProviderConfigError(f"a prompt has the unknown placeholder {min(unknown)}")
    return _PLACEHOLDER.sub(lambda match: values[match[1]], template)


def describe_vocabulary(vocabulary: Vocabulary) -> str:
    """Return a vocabulary's subjects and facts, one fact a line."""
    lines = [f"Subjects: {', '.join(vocabulary.subjects)}.", ""]
    lines += [f"- `{name}` ({_type_of(fact)}): {fact.description}" for name, fact in vocabulary.facts.items()]
    return "\n".join(lines)


def _type_of(fact: Fact) -> str:
    match fact:
        case BoolFact():
            return "bool"
        case IntFact(min=low, max=high, unit=unit):
            return f"int, {low} to {high}{f' {unit}' if unit else ''}"
        case MoneyFact():
            return "money, minor units"
        case EnumFact(values=values):
            return "one of " + ", ".join(f'"{value}"' for value in values)
