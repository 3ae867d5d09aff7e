"""Validation policies: the YAML files of `rulegen_dagster/policies`, checked field by field."""

from functools import lru_cache

from rulegen_dagster.domain.errors import PolicyError
from rulegen_dagster.domain.policy import ValidationPolicy
from rulegen_dagster.rules.pack_files import pack_text, read_pack


def load_policy(name: str) -> ValidationPolicy:
    """Return the validation policy of this name; raises `PolicyError` that names the file, field and reason."""
    return parse_policy(pack_text("policies", name, kind="validation policy", refused=PolicyError), name=name)


@lru_cache(maxsize=8)
def parse_policy(text: str, *, name: str) -> ValidationPolicy:
    """Return the policy of a file's YAML text; `name` is the name of its file."""
    return read_pack(text, ValidationPolicy, name=name, refused=PolicyError)
