"""Canonical JSON and digests: one text for one value, so that a hash names it."""

import hashlib
import json
from typing import Any


def canonical_json(value: Any) -> str:
    """Return the one JSON text of a value: sorted keys, no spaces, UTF-8 kept.

    Floats are refused (`TypeError`): two machines may print the same float differently,
    and nothing that this project hashes needs one.
    """
    _refuse_floats(value)
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def sha256_hex(data: bytes | str) -> str:
    """Return the lower-case SHA-256 of bytes, or of a text as UTF-8."""
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()


def digest_of(value: Any) -> str:
    """Return the SHA-256 of a value's canonical JSON."""
    return sha256_hex(canonical_json(value))


def _refuse_floats(value: Any) -> None:
    if isinstance(value, float):
        raise TypeError("a float has no canonical form; use integers (minor units, micros, ms)")
    if isinstance(value, dict):
        for item in value.values():
            _refuse_floats(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _refuse_floats(item)
