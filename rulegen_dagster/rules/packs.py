"""Vocabulary packs: the YAML files of `rulegen_dagster/vocabularies`, checked field by field."""

from collections.abc import Iterator
from functools import lru_cache

from rulegen_dagster.domain.errors import VocabularyError
from rulegen_dagster.domain.vocabulary import BoolFact, EnumFact, Fact, Vocabulary
from rulegen_dagster.rules.language import MAX_LITERAL, RESERVED_ROOTS, UNUSABLE_SEGMENTS
from rulegen_dagster.rules.pack_files import pack_text, read_pack, restore_pack


def load_vocabulary(name: str) -> Vocabulary:
    """Return the vocabulary pack of this name; raises `VocabularyError` that names the file, field and reason."""
    text = pack_text("vocabularies", name, kind="vocabulary", refused=VocabularyError)
    return parse_vocabulary(text, name=name)


# A process reads the same pack for every job and every stage; a vocabulary is frozen, and its text is the cache's key.
@lru_cache(maxsize=8)
def parse_vocabulary(text: str, *, name: str) -> Vocabulary:
    """Return the vocabulary of a pack's YAML text; `name` is the name of its file."""
    vocabulary = read_pack(text, Vocabulary, name=name, refused=VocabularyError)
    for problem in _problems(vocabulary):
        raise VocabularyError(f"{name}.yaml: {problem}")
    return vocabulary


@lru_cache(maxsize=8)
def restore_vocabulary(content: str) -> Vocabulary:
    """Return the vocabulary of canonical JSON, as a job froze it. Raises `VocabularyError` where it cannot be read."""
    vocabulary = restore_pack(content, Vocabulary, refused=VocabularyError)
    for problem in _problems(vocabulary):
        raise VocabularyError(f"the frozen vocabulary cannot be used: {problem}")
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
