"""Validation policies: the YAML files of `rulegen_dagster/policies`, checked field by field."""

from functools import lru_cache
from importlib.util import find_spec

from rulegen_dagster.domain.errors import PolicyError
from rulegen_dagster.domain.policy import ValidationPolicy
from rulegen_dagster.rules.pack_files import pack_text, read_pack, restore_pack


def load_policy(name: str) -> ValidationPolicy:
    """Return the validation policy of this name.

    Raises `PolicyError` that names the file, field and reason, or the optional part that the policy needs and that is
    not installed.
    """
    policy = parse_policy(pack_text("policies", name, kind="validation policy", refused=PolicyError), name=name)
    if policy.proofs and not prover_is_installed():
        raise PolicyError(
            f"the validation policy {name} asks for proofs, and the prover is not installed; run"
            " pip install -e '.[prove]', or name another policy"
        )
    return policy


def prover_is_installed() -> bool:
    """Return whether the prover can be imported, without importing it."""
    return find_spec("z3") is not None


@lru_cache(maxsize=8)
def parse_policy(text: str, *, name: str) -> ValidationPolicy:
    """Return the policy of a file's YAML text; `name` is the name of its file."""
    return read_pack(text, ValidationPolicy, name=name, refused=PolicyError)


@lru_cache(maxsize=8)
def restore_policy(content: str) -> ValidationPolicy:
    """Return the policy of canonical JSON, as a job froze it. Raises `PolicyError` where it cannot be read."""
    return restore_pack(content, ValidationPolicy, refused=PolicyError)
