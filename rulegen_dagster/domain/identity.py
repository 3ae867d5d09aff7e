"""Names and keys: who owns a job, how it is named, and the partition keys that Dagster sees.

A user's text never becomes a key as it is. A partition key is made here and nowhere else; it matches
`PARTITION_KEY`, which keeps commas, slashes, dots and newlines out of run tags, file paths and the backfill dialog.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from rulegen_dagster.domain.canonical import sha256_hex
from rulegen_dagster.domain.errors import IdentityError

DEFAULT_TENANT = "default"
PARTITION_KEY = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_TENANT = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
_SUBMISSION_KEY = re.compile(r"(?=.{1,100}\Z)[A-Za-z0-9][A-Za-z0-9._-]*(?:~[1-9][0-9]{0,3})?")
_SUCCESSOR = re.compile(r"(.*)~([0-9]+)")
_NOT_SLUG = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, kw_only=True)
class JobName:
    """The outward name of a job: `<tenant>/<submission key>`."""

    tenant: str
    submission_key: str

    def __str__(self) -> str:
        """Return `<tenant>/<submission key>`."""
        return f"{self.tenant}/{self.submission_key}"

    @classmethod
    def parse(cls, text: str, *, tenant: str = DEFAULT_TENANT) -> "JobName":
        """Read `<tenant>/<submission key>`, or a bare submission key of the given tenant.

        Raises `IdentityError` where either part is not well formed.
        """
        owner, slash, key = text.partition("/")
        if not slash:
            owner, key = tenant, text
        return cls(tenant=check_tenant(owner), submission_key=check_submission_key(key))


def check_tenant(tenant: str) -> str:
    """Return the tenant's name, or raise `IdentityError`."""
    if not _TENANT.fullmatch(tenant):
        raise IdentityError(
            "a tenant's name has 1 to 32 characters: lower-case letters, digits, '_' and '-', a letter or digit first",
            code="invalid_tenant",
        )
    return tenant


def check_submission_key(key: str) -> str:
    """Return the submission key, or raise `IdentityError`; the message never repeats the key."""
    if not _SUBMISSION_KEY.fullmatch(key) or ".." in key:
        raise IdentityError(
            "a submission key has 1 to 100 characters: letters, digits, '.', '_' and '-', a letter or digit first,"
            f" and no '..' (a successor's key ends in '~' and a number); the one given has {len(key)} characters",
            code="invalid_submission_key",
        )
    return key


def successor_keys(key: str) -> Iterator[str]:
    """Return the keys for successors of a job, in order: `policy~2`, `policy~3` and so on; after `policy~2`, the rest.

    A long key is cut, so that each of them is a submission key.
    """
    found = _SUCCESSOR.fullmatch(key)
    stem, number = (found[1], int(found[2])) if found else (key, 1)
    return (f"{stem[:95]}~{following}" for following in range(number + 1, 10_000))


def slug(text: str, *, limit: int = 48) -> str:
    """Return a text as lower-case words joined by '-', at most `limit` characters; `spec` where nothing is left."""
    return _NOT_SLUG.sub("-", text.lower()).strip("-")[:limit].strip("-") or "spec"


def ruleset_name(file_name: str) -> str:
    """Return the ruleset's name: the upload's file name without its ending, as a slug.

    A name without a Latin letter or digit gets the start of its digest, so that two of them stay apart.
    """
    stem = file_name.rsplit(".", 1)[0] if "." in file_name else file_name
    name = slug(stem)
    return name if _NOT_SLUG.sub("", stem.lower()) else f"{name}-{sha256_hex(stem)[:8]}"


def default_submission_key(file_name: str, content_digest: str) -> str:
    """Return the key of an upload that came without one: its name and the start of its digest.

    An ending other than `.md` is part of the key: equal bytes in another format are read in another way.
    """
    ending = slug(file_name.rsplit(".", 1)[-1]) if "." in file_name else "md"
    format_part = "" if ending == "md" else f"{ending}-"
    return f"{ruleset_name(file_name)}-{format_part}{content_digest[:12]}"


def job_partition_key(name: JobName) -> str:
    """Return the key of a job in the `jobs` partition set: readable, unique by the digest at its end."""
    return f"{slug(name.tenant, limit=12)}-{slug(name.submission_key, limit=28)}-{sha256_hex(str(name))[:8]}"


def item_key(number: int, count: int) -> str:
    """Return the key of the n-th rule item of a job with `count` of them; zero-padded so that text order is order."""
    return f"rule-{number:0{max(2, len(str(count)))}d}"


def rule_partition_key(job_key: str, item: str) -> str:
    """Return the key of a rule item in the `rules` partition set."""
    key = f"{job_key}-{item}"
    if not PARTITION_KEY.fullmatch(key):
        raise IdentityError(f"{len(key)} characters are too many for a partition key", code="invalid_partition_key")
    return key
