"""Blobs: uploads and texts under the digest of their bytes, on any file system that fsspec knows."""

import io
import os
import threading
from typing import Any

from upath import UPath

from rulegen_dagster.domain.canonical import sha256_hex
from rulegen_dagster.domain.errors import LedgerError


class BlobStore:
    """A content-addressed store; a blob is written once and never changed.

    A blob is written before the transaction that names it, so a crash between the two leaves an orphan, never a
    dangling digest.
    """

    def __init__(self, root: UPath) -> None:
        """Keep blobs below `root`, which is made when the first one is written."""
        self._root = root

    def put(self, data: bytes) -> str:
        """Store bytes and return their SHA-256; the same bytes again change nothing. Raises `LedgerError`."""
        digest = sha256_hex(data)
        path = self._path(digest)
        try:
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                partial = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.partial")
                with partial.open("wb") as file:
                    file.write(data)
                    file.flush()
                    _sync(file)
                partial.rename(path)
        except OSError as error:
            raise LedgerError(f"a blob cannot be stored: {error.strerror or error}", code="blob_store") from error
        return digest

    def get(self, digest: str) -> bytes:
        """Return the bytes of a digest. Raises `LedgerError` where they are missing or damaged."""
        try:
            data = self._path(digest).read_bytes()
        except OSError as error:
            raise LedgerError(f"the blob {digest[:12]}… is missing from the store", code="blob_missing") from error
        if sha256_hex(data) != digest:
            raise LedgerError(f"the blob {digest[:12]}… is damaged: its digest differs", code="blob_damaged")
        return bytes(data)

    def _path(self, digest: str) -> UPath:
        return self._root / digest[:2] / digest


def _sync(file: Any) -> None:
    # A transaction is going to name this blob, so it has to be on the disk first; object stores answer a write only
    # then, and have no file number.
    try:
        number = file.fileno()
    except (AttributeError, io.UnsupportedOperation):
        return
    os.fsync(number)
