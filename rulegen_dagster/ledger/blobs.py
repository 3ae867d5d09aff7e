"""Blobs: uploads and texts under the digest of their bytes, on any file system that fsspec knows."""

import contextlib
import io
import os
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from rulegen_dagster.domain.canonical import sha256_hex
from rulegen_dagster.domain.errors import LedgerError

if TYPE_CHECKING:
    from upath import UPath

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_PARTIAL: Final = ".partial"
_COLLECTED: Final = f".collected{_PARTIAL}"
_ACCOUNT: Final = re.compile(r"//[^/@]*@")

BLOB_MISSING: Final = "blob_missing"
BLOB_STORE: Final = "blob_store"

OUT_OF_REACH: Final = frozenset({BLOB_MISSING, BLOB_STORE})
"""Codes of a store that this host does not share or cannot use: no work item is to blame, another host may have it."""


@dataclass(frozen=True, kw_only=True)
class StoredFile:
    """A file of the store: a blob, or (without a digest) what is left of one that is not needed, or never was whole."""

    path: "UPath"
    digest: str | None
    size: int
    modified_ms: int


class BlobStore:
    """A content-addressed store; a blob is written once and never changed.

    A blob is written before the transaction that names it, so a crash between the two leaves an orphan, never a
    dangling digest.
    """

    def __init__(self, root: "os.PathLike[str] | UPath") -> None:
        """Keep blobs below `root`, which is made when the first one is written."""
        self._place = root

    @cached_property
    def _root(self) -> "UPath":
        # Slow to import, and a worker that goes on after a crash may need no blob at all.
        from upath import UPath  # noqa: PLC0415

        return UPath(self._place)

    def put(self, data: bytes) -> str:
        """Store bytes and return their SHA-256; the same bytes again only renew the blob's time. Raises `LedgerError`.

        The new time keeps the blob from being collected before the caller's transaction names it.
        """
        digest = sha256_hex(data)
        path = self._path(digest)
        try:
            if not _renewed(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                partial = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}{_PARTIAL}")
                with partial.open("wb") as file:
                    file.write(data)
                    file.flush()
                    _sync(file)
                partial.rename(path)
        except OSError as error:
            raise LedgerError(f"a blob cannot be stored: {error.strerror or error}", code=BLOB_STORE) from error
        return digest

    def get(self, digest: str) -> bytes:
        """Return the bytes of a digest. Raises `LedgerError` where they are missing, out of reach or damaged.

        A blob that a collection has moved aside is found there: one that was killed in between puts nothing back.
        """
        path = self._path(digest)
        try:
            data = _first_of(path, _aside(path), path)
        except FileNotFoundError as error:
            raise LedgerError(
                f"the blob {digest[:12]}… is missing from {self._shown_place}; every worker of one ledger needs the"
                " same $RULEGEN_HOME/blobs",
                code=BLOB_MISSING,
            ) from error
        except OSError as error:
            raise LedgerError(
                f"the blob {digest[:12]}… cannot be read from {self._shown_place}: {error.strerror or error}",
                code=BLOB_STORE,
            ) from error
        if sha256_hex(data) != digest:
            raise LedgerError(f"the blob {digest[:12]}… is damaged: its digest differs", code="blob_damaged")
        return bytes(data)

    def files(self) -> Iterator[StoredFile]:
        """List blobs and left-over partial files; anything else below the root is none of the store's.

        Raises `LedgerError`.
        """
        try:
            for path in self._root.glob("*/*") if self._root.exists() else ():
                digest = _digest_of(path)
                if digest is None and not path.name.endswith(_PARTIAL):
                    continue
                try:
                    yield StoredFile(path=path, digest=digest, size=path.stat().st_size, modified_ms=_modified_ms(path))
                except FileNotFoundError:
                    continue
        except OSError as error:
            raise LedgerError(f"the blobs cannot be listed: {error.strerror or error}", code=BLOB_STORE) from error

    def discard(self, file: StoredFile, *, unchanged_since: int) -> bool:
        """Remove a file that nobody stored again after `unchanged_since` (ms); return whether it is gone by this call.

        On a local disk the file is moved aside before its time is looked at: whoever stores the same bytes either
        renewed it before, and it is put back, or finds it missing and writes it anew. Other file systems have no move
        that keeps the time, so there the look comes right before the removal. Raises `LedgerError`.
        """
        path = file.path
        try:
            if not isinstance(path, os.PathLike) or not _DIGEST.fullmatch(path.name):
                if _modified_ms(path) > unchanged_since:
                    return False
                path.unlink()
                return True
            aside = path.rename(_aside(path))
            if _modified_ms(aside) > unchanged_since:
                aside.rename(path)
                return False
            aside.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise LedgerError(f"a blob cannot be removed: {error.strerror or error}", code=BLOB_STORE) from error
        return True

    def _path(self, digest: str) -> "UPath":
        return self._root / digest[:2] / digest

    @property
    def _shown_place(self) -> str:
        """The folder or URL of the store, without an account and its password."""
        return _ACCOUNT.sub("//", str(self._place))


def _aside(path: "UPath") -> "UPath":
    """Return where a collection moves a blob before it looks at its time."""
    return path.with_name(f"{path.name}{_COLLECTED}")


def _digest_of(path: "UPath") -> str | None:
    """Return the digest of a blob, or of one that was left aside and is not in its place; else None."""
    name = path.name.removesuffix(_COLLECTED)
    if not _DIGEST.fullmatch(name) or (name != path.name and path.with_name(name).exists()):
        return None
    return name


def _first_of(*places: "UPath") -> bytes:
    """Return the bytes of the first place that has any. Raises `FileNotFoundError` where none has."""
    *others, last = places
    for place in others:
        with contextlib.suppress(FileNotFoundError):
            return bytes(place.read_bytes())
    return bytes(last.read_bytes())


def _renewed(path: "UPath") -> bool:
    """Set the time of a blob that is there to now; return False where it has to be written."""
    if not isinstance(path, os.PathLike):
        return False
    try:
        os.utime(path)
    except OSError:
        return False
    return True


def _modified_ms(path: "UPath") -> int:
    return int(path.fs.modified(path.path).timestamp() * 1000)


def _sync(file: Any) -> None:
    # A transaction is going to name this blob, so it has to be on the disk first; object stores answer a write only
    # then, and have no file number.
    try:
        number = file.fileno()
    except (AttributeError, io.UnsupportedOperation):
        return
    os.fsync(number)
