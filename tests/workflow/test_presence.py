"""Locks that prove a worker's death, and everything that proves nothing."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rulegen_dagster.workflow.presence import BOOT_ID, Presence
from rulegen_dagster.workflow.runtime import new_worker_name
from tests.conftest import PROJECT

WORKER = "host-1:4711:0123abcd"
OTHER = "host-1:4712:0123abcd"
BOOT = "11111111-2222-3333-4444-555555555555"
HOSTILE = [
    "",
    ".",
    "..",
    "../../etc/passwd",
    "/etc/passwd",
    "a/../b:1:0123abcd",
    "..:1:0123abcd",
    "-rf:1:0123abcd",
    "host:1:0123abcd\n",
    "host:1:0123abcd\x00",
    "hôst:1:0123abcd",
    "host:1:0123ABCD",
    "host:1:0123abcd.lock/..",
    "h" * 300 + ":1:0123abcd",
    "host:" + "1" * 5_000 + ":0123abcd",
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "workers"


@pytest.fixture
def mine(folder: Path) -> Iterator[Presence]:
    presence = Presence(folder, boot_id=BOOT)
    yield presence
    presence.release(WORKER, remove=False)


@pytest.fixture
def looking(folder: Path) -> Presence:
    """Another process, as far as locks go: they belong to open files, not to processes."""
    return Presence(folder, boot_id=BOOT)


def _die(presence: Presence, worker: str = WORKER) -> Path:
    """Leave what a process leaves that dies: its file, and no lock."""
    assert presence.hold(worker)
    presence.release(worker, remove=False)
    (path,) = presence._folder.glob(f"{worker}*")
    return path


def test_the_names_that_workers_get_can_be_held(folder: Path) -> None:
    presence, worker = Presence(folder), new_worker_name()
    if not BOOT_ID.exists():
        pytest.skip("this system has no boot id")

    held = presence.hold(worker)

    assert held
    assert not Presence(folder).is_lost(worker)
    presence.release(worker, remove=True)
    assert list(folder.iterdir()) == []


def test_a_worker_whose_lock_is_free_is_proven_dead(mine: Presence, looking: Presence) -> None:
    _die(mine)

    assert looking.is_lost(WORKER)
    assert looking.lost([WORKER, OTHER]) == {WORKER}


def test_a_worker_that_holds_its_lock_is_not(mine: Presence, looking: Presence) -> None:
    mine.hold(WORKER)

    assert not looking.is_lost(WORKER)
    assert not mine.is_lost(WORKER)


def test_a_missing_file_proves_nothing(looking: Presence, folder: Path) -> None:
    assert not looking.is_lost(WORKER)
    folder.mkdir()
    assert not looking.is_lost(WORKER)


def test_a_file_of_another_boot_proves_nothing(mine: Presence, folder: Path) -> None:
    _die(mine)

    assert not Presence(folder, boot_id="99999999-2222-3333-4444-555555555555").is_lost(WORKER)
    assert not Presence(folder, boot_id="").is_lost(WORKER)


def test_without_a_boot_id_no_lock_is_held_and_nothing_is_proven(
    mine: Presence, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _die(mine)
    monkeypatch.setattr("rulegen_dagster.workflow.presence.BOOT_ID", folder / "absent")
    blind = Presence(folder)

    assert not blind.is_lost(WORKER)
    assert not blind.hold(OTHER)


@pytest.mark.parametrize("content", [b"", b"x", b"\xff" * 10_000, f"{BOOT} 1\n".encode(), f"{BOOT}\n".encode()])
def test_a_file_that_says_something_else_proves_nothing(looking: Presence, folder: Path, content: bytes) -> None:
    folder.mkdir()
    (folder / f"{WORKER}.lock").write_bytes(content)

    assert not looking.is_lost(WORKER)


def test_a_copy_of_a_file_proves_nothing(mine: Presence, folder: Path, tmp_path: Path) -> None:
    mine.hold(WORKER)
    shutil.copytree(folder, tmp_path / "copy")

    assert not Presence(tmp_path / "copy", boot_id=BOOT).is_lost(WORKER)


def test_a_link_to_a_file_proves_nothing(mine: Presence, looking: Presence, folder: Path) -> None:
    path = _die(mine)
    path.rename(folder / "elsewhere")
    path.symlink_to(folder / "elsewhere")

    assert not looking.is_lost(WORKER)
    assert not looking.discard(WORKER)
    assert path.is_symlink()


def test_a_pipe_or_a_folder_in_the_place_of_a_file_stops_nobody(looking: Presence, folder: Path) -> None:
    folder.mkdir()
    os.mkfifo(folder / f"{WORKER}.lock")
    (folder / f"{OTHER}.lock").mkdir()

    assert looking.lost([WORKER, OTHER]) == frozenset()
    assert looking.files() == []


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_that_no_worker_has_is_neither_held_nor_looked_for(folder: Path, name: str) -> None:
    presence = Presence(folder, boot_id=BOOT)

    assert not presence.hold(name)
    assert not presence.is_lost(name)
    assert not presence.discard(name)
    assert not folder.exists()


def test_a_name_is_held_once_and_a_restart_under_it_gets_no_lock(mine: Presence, looking: Presence) -> None:
    mine.hold(WORKER)

    assert not looking.hold(WORKER)
    mine.release(WORKER, remove=False)
    assert not Presence(mine._folder, boot_id=BOOT).hold(WORKER)


def test_a_folder_that_cannot_be_written_means_no_lock(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    presence = Presence(tmp_path / "file", boot_id=BOOT)

    assert not presence.hold(WORKER)
    assert not presence.is_lost(WORKER)
    assert presence.files() == []


def test_a_file_is_removed_only_while_its_lock_is_free(mine: Presence, looking: Presence, folder: Path) -> None:
    mine.hold(WORKER)
    refused = looking.discard(WORKER)
    mine.release(WORKER, remove=False)
    removed = looking.discard(WORKER)

    assert (refused, removed) == (False, True)
    assert list(folder.iterdir()) == []
    assert not looking.discard(WORKER)


def test_only_lock_files_are_listed(mine: Presence, folder: Path) -> None:
    mine.hold(WORKER)
    (folder / "notes.txt").write_text("x")
    (folder / "no-name.lock").write_text("x")

    (file,) = mine.files()

    assert (file.worker, file.size > 0) == (WORKER, True)


HOLDER = """
import os, sys, time
from pathlib import Path
from rulegen_dagster.workflow.presence import Presence
presence = Presence(Path(sys.argv[1]), boot_id=sys.argv[2])
assert presence.hold(sys.argv[3])
if "fork" in sys.argv:
    child = os.fork()
    if child:
        os.write(1, f"{child}\\n".encode())
os.write(1, b"held\\n")
time.sleep(120)
"""


@pytest.fixture
def holders(folder: Path) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Start processes that hold the worker's lock; none outlives the test."""
    started: list[subprocess.Popen[str]] = []

    def start(*more: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", HOLDER, str(folder), BOOT, WORKER, *more]
        started.append(subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.acceptance
def test_a_killed_process_is_proven_dead_and_one_that_stands_still_is_not(
    holders: Callable[..., "subprocess.Popen[str]"], looking: Presence
) -> None:
    process = holders()
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"

    alive = looking.is_lost(WORKER)
    os.kill(process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    stopped = looking.is_lost(WORKER)
    process.kill()
    process.wait()

    assert (alive, stopped) == (False, False)
    assert looking.is_lost(WORKER)


@pytest.mark.acceptance
def test_a_killed_process_whose_child_lives_is_not_proven_dead(
    holders: Callable[..., "subprocess.Popen[str]"], looking: Presence
) -> None:
    process = holders("fork")
    assert process.stdout is not None
    said = [process.stdout.readline().strip() for _ in range(3)]
    child = int(next(word for word in said if word != "held"))

    process.kill()
    process.wait()
    inherited = looking.is_lost(WORKER)
    os.kill(child, signal.SIGKILL)
    # The pipe ends with its last writer.
    process.stdout.read()

    assert not inherited
    assert looking.is_lost(WORKER)
