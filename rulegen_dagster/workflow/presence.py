"""Presence: a lock that a worker holds for as long as it lives, so that others on its host can prove that it is dead.

Each worker that claims holds an exclusive `flock` on a file of its own. The kernel gives the lock back however the
process ends, and keeps it for one that only stands still (SIGSTOP, a debugger). So a worker is proven dead when its
file is there, was made under this boot of this kernel, and its lock is free; never by a name, a process id, or what a
run says of itself. Whatever cannot be read proves nothing, and then the lease alone decides.

A forked child shares its parent's lock: while one lives, neither is proven dead. No correctness rests on a proof: a
worker that is wrongly taken for dead (a network file system may lose a lock) finds its token gone, like one whose
lease has passed.
"""

import contextlib
import errno
import fcntl
import os
import re
import stat
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")

# Names come back from the ledger, which others write too: nothing in one may lead out of the folder.
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,180}:[0-9]{1,10}:[0-9a-f]{8}", re.ASCII)
_SUFFIX: Final = ".lock"
_LONGEST: Final = 200


@dataclass(frozen=True, kw_only=True)
class LockFile:
    """One file of the folder: the worker that it belongs to, its size, and when it changed last (ms, UTC)."""

    worker: str
    size: int
    modified_ms: int


class Presence:
    """The locks of one folder: those that this process holds, and what those of others prove.

    Nothing here raises where the file system refuses: no lock is held then, and nothing is proven. Safe to share
    between threads.
    """

    def __init__(self, folder: Path, *, boot_id: str | None = None) -> None:
        """Work in the folder, which is made with the first lock; `boot_id` stands in for the kernel's own."""
        self._folder = folder
        self._boot_id = boot_id if boot_id is not None else _read_boot_id()
        self._held: dict[str, int | None] = {}
        self._guard = threading.Lock()

    def hold(self, worker: str) -> bool:
        """Take the worker's lock and keep it until `release` or the end of the process; return whether it is held.

        Tried once for each name, and names are never reused.
        """
        with self._guard:
            if worker not in self._held:
                self._held[worker] = self._acquire(worker)
            return self._held[worker] is not None

    def is_held(self, worker: str) -> bool:
        """Return whether this process holds the worker's lock."""
        with self._guard:
            return self._held.get(worker) is not None

    def release(self, worker: str, *, remove: bool) -> None:
        """Give the lock back; with `remove`, take its file away too, because the ledger has nothing under this name."""
        with self._guard:
            handle = self._held.pop(worker, None)
        if handle is None:
            return
        with contextlib.suppress(OSError):
            if remove:
                self._unlink(worker, handle)
        os.close(handle)

    def lost(self, workers: Iterable[str]) -> frozenset[str]:
        """Return those of the workers that are proven dead."""
        return frozenset(worker for worker in workers if self.is_lost(worker))

    def is_lost(self, worker: str) -> bool:
        """Return whether the worker is proven dead."""
        with self._taken(worker) as handle:
            return handle is not None and self._is_proof(handle)

    def is_free(self, worker: str) -> bool:
        """Return whether the worker's file is there and nobody on this host holds its lock."""
        with self._taken(worker) as handle:
            return handle is not None

    def discard(self, worker: str) -> bool:
        """Remove the file of a worker whose lock is free; return whether it is gone.

        For workers that hold nothing in the ledger. The lock of a file that belongs to another boot may be free only
        because its holder is elsewhere: it loses a proof by that, and nothing else.
        """
        with self._taken(worker) as handle:
            if handle is None:
                return False
            try:
                return self._unlink(worker, handle)
            except OSError:
                return False

    def files(self) -> list[LockFile]:
        """Return the folder's lock files, by name; whatever else lies there is left out."""
        found: list[LockFile] = []
        with contextlib.suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                worker = entry.name.removesuffix(_SUFFIX)
                if entry.name == worker or not _NAME.fullmatch(worker):
                    continue
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        modified_ms = int(status.st_mtime * 1000)
                        found.append(LockFile(worker=worker, size=status.st_size, modified_ms=modified_ms))
        return sorted(found, key=lambda file: file.worker)

    def _acquire(self, worker: str) -> int | None:
        if self._boot_id is None or not _NAME.fullmatch(worker):
            return None
        handle = None
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            handle = os.open(self._path(worker), flags, 0o600)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Only now does the file prove anything: nobody can find it complete and its lock still free.
            os.write(handle, self._mark(handle))
        except OSError:
            if handle is not None:
                with contextlib.suppress(OSError):
                    self._path(worker).unlink()
                os.close(handle)
            return None
        return handle

    @contextlib.contextmanager
    def _taken(self, worker: str) -> Iterator[int | None]:
        """Hold another worker's lock for the length of the block, if it can be had at once; else None."""
        handle = None
        try:
            if _NAME.fullmatch(worker):
                # Without O_NONBLOCK, a pipe in the place of the file would stop whoever looks.
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
                handle = os.open(self._path(worker), flags)
                if not stat.S_ISREG(os.fstat(handle).st_mode):
                    raise OSError(errno.EINVAL, "not a file")
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if handle is not None:
                os.close(handle)
                handle = None
        try:
            yield handle
        finally:
            if handle is not None:
                os.close(handle)

    def _is_proof(self, handle: int) -> bool:
        try:
            return self._boot_id is not None and os.pread(handle, _LONGEST, 0) == self._mark(handle)
        except OSError:
            return False

    def _mark(self, handle: int) -> bytes:
        # The file's own number is in it: a copy (of a home, from a backup) says nothing about the lock of the original.
        return f"{self._boot_id} {os.fstat(handle).st_ino}\n".encode()

    def _unlink(self, worker: str, handle: int) -> bool:
        path = self._path(worker)
        # Whoever had the lock before may have removed the file meanwhile: only the one that is locked may go.
        if path.lstat().st_ino != os.fstat(handle).st_ino:
            return False
        path.unlink()
        return True

    def _path(self, worker: str) -> Path:
        return self._folder / f"{worker}{_SUFFIX}"


def _read_boot_id() -> str | None:
    try:
        return BOOT_ID.read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None
