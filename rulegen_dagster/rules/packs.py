"""Vocabulary packs: the YAML files of `rulegen_dagster/vocabularies`, checked field by field."""

import re
from collections.abc import Hashable, Iterator
from functools import lru_cache
from importlib.resources import files
from typing import Any, Final

import yaml
from pydantic import ValidationError

from rulegen_dagster.domain.errors import VocabularyError
from rulegen_dagster.domain.vocabulary import BoolFact, EnumFact, Fact, Vocabulary
from rulegen_dagster.rules.language import MAX_LITERAL, RESERVED_ROOTS, UNUSABLE_SEGMENTS

_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,31}")


def load_vocabulary(name: str) -> Vocabulary:
    """Return the vocabulary pack of this name; raises `VocabularyError` that names the file, field and reason."""
    folder = files("rulegen_dagster") / "vocabularies"
    pack = folder / f"{name}.yaml"
    if not _NAME.fullmatch(name) or not pack.is_file():
        known = sorted(item.name.removesuffix(".yaml") for item in folder.iterdir() if item.name.endswith(".yaml"))
        available = ", ".join(known) or "none"
        raise VocabularyError(f"there is no vocabulary {name[:60]!a}; available: {available}")
    return parse_vocabulary(pack.read_text(encoding="utf-8"), name=name)


# A process reads the same pack for every job and every stage; a vocabulary is frozen, and its text is the cache's key.
@lru_cache(maxsize=8)
def parse_vocabulary(text: str, *, name: str) -> Vocabulary:
    """Return the vocabulary of a pack's YAML text; `name` is the name of its file."""
    try:
        # A subclass of SafeLoader: it builds plain values only.
        value = yaml.load(text, Loader=_UniqueKeyLoader)  # noqa: S506
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or "it cannot be read"
        raise VocabularyError(f"{name}.yaml is not valid YAML{where}: {problem}") from error
    if not isinstance(value, dict):
        raise VocabularyError(f"{name}.yaml must be a mapping with name, version, description, subjects and facts")
    try:
        vocabulary = Vocabulary.model_validate(value)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        first = found[0]
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        field = " > ".join(map(str, first["loc"])) or "the pack"
        message = first["msg"].removeprefix("Value error, ")
        raise VocabularyError(f"{name}.yaml: {field}: {message}{more}") from error
    if vocabulary.name != name:
        raise VocabularyError(f"{name}.yaml names itself {vocabulary.name}; file and name must agree")
    for problem in _problems(vocabulary):
        raise VocabularyError(f"{name}.yaml: {problem}")
    return vocabulary


def _problems(vocabulary: Vocabulary) -> Iterator[str]:
    if len(set(vocabulary.subjects)) < len(vocabulary.subjects):
        yield "subjects: a subject is listed twice"
    for name, fact in vocabulary.facts.items():
        root, *rest = name.split(".")
        if root == "p":
            yield f"facts > {name}: `p.` is kept for the parameters of a rule"
        if root in RESERVED_ROOTS or not UNUSABLE_SEGMENTS.isdisjoint(rest):
            yield f"facts > {name}: a reserved word cannot be part of a name"
        if problem := _bounds_problem(fact):
            yield f"facts > {name}: {problem}"


def _bounds_problem(fact: Fact) -> str | None:
    if isinstance(fact, BoolFact | EnumFact):
        return None
    if not fact.min <= fact.default <= fact.max:
        return f"default {fact.default} is outside {fact.min}..{fact.max}"
    if max(abs(fact.min), abs(fact.max)) > MAX_LITERAL:
        return "bounds must lie within 10^15"
    return None


class _UniqueKeyLoader(yaml.SafeLoader):
    """Refuses a key that stands twice in one mapping; YAML libraries keep the last one silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = getattr(key_node, "value", None)
            if isinstance(key, str):
                if key in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key!r} stands twice", key_node.start_mark
                    )
                seen.add(key)
        return super().construct_mapping(node, deep)
