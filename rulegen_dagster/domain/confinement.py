"""Confinement: a process that reads somebody else's file or executes somebody else's rules gives up the network.

Three ways, the strongest that works here is taken, for good and for all that the process does later:

- `SECCOMP` (Linux on x86-64 and ARM64): the kernel refuses to make a socket and to start a program. It holds for native
  code, needs no right and works in containers.
- `NAMESPACE` (Linux elsewhere): a network of its own with nothing in it. A socket can be made and reaches nobody.
- `AUDIT_HOOK`: Python refuses to make a socket or to start a program. Native code is not held; on macOS it is all there
  is.

The hook is set in any case: inside Python it says what happened. `rulegen doctor` tells which way holds.
"""

import ctypes
import errno
import platform
import sys
from enum import StrEnum
from typing import Any, Final


class NetworkBlock(StrEnum):
    """What keeps a process from the network; a closed set."""

    SECCOMP = "seccomp"
    NAMESPACE = "network namespace"
    AUDIT_HOOK = "audit hook"

    @property
    def holds_native_code(self) -> bool:
        """Whether a library that was taken over is held too."""
        return self is not NetworkBlock.AUDIT_HOOK


class NetworkDeniedError(PermissionError):
    """Python code of a confined process wanted a socket or another program."""


# Numbers of the kernel's interface, which never change: socket, socketpair, io_uring_setup, execve, execveat.
_ARCHITECTURES: Final = {
    "x86_64": (0xC000003E, (41, 53, 425, 59, 322)),
    "aarch64": (0xC00000B7, (198, 199, 425, 221, 281)),
}
_FIRST_X32_CALL: Final = 0x4000_0000
_NO_NEW_PRIVILEGES: Final = 38
_SET_SECCOMP: Final = 22
_FILTER_MODE: Final = 2
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW: Final = 0x7FFF_0000
_REFUSE: Final = 0x0005_0000 | errno.EPERM
_NEW_USERS_AND_NETWORK: Final = 0x1000_0000 | 0x4000_0000
_REFUSED_EVENTS: Final = ("socket.", "subprocess.Popen", "os.exec", "os.posix_spawn", "os.system", "os.fork")


def deny_network() -> NetworkBlock:
    """Close the network to this process and return what keeps it closed. Call it before any thread is started."""
    block = _by_kernel()
    sys.addaudithook(_refuse)
    return block


def _by_kernel() -> NetworkBlock:
    if sys.platform != "linux":
        return NetworkBlock.AUDIT_HOOK
    libc = ctypes.CDLL(None, use_errno=True)
    if _filter_calls(libc):
        return NetworkBlock.SECCOMP
    if libc.unshare(_NEW_USERS_AND_NETWORK) == 0:
        return NetworkBlock.NAMESPACE
    return NetworkBlock.AUDIT_HOOK


def _refuse(event: str, _arguments: tuple[Any, ...]) -> None:
    if event.startswith(_REFUSED_EVENTS):
        raise NetworkDeniedError(errno.EPERM, f"{event} is closed to this process")


class _Instruction(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_uint16),
        ("if_true", ctypes.c_uint8),
        ("if_false", ctypes.c_uint8),
        ("operand", ctypes.c_uint32),
    )


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(_Instruction)))


def _filter_calls(libc: ctypes.CDLL) -> bool:
    """Put a filter over the calls to the kernel; return whether it took it."""
    known = _ARCHITECTURES.get(platform.machine())
    if known is None or sys.maxsize < 2**32:
        return False
    architecture, refused = known
    # A call of another architecture has other numbers, and nothing here makes one.
    steps = [(_LOAD, 0, 0, 4), (_IF_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _REFUSE), (_LOAD, 0, 0, 0)]
    steps += [(_IF_AT_LEAST, 0, 1, _FIRST_X32_CALL), (_RETURN, 0, 0, _REFUSE)]
    for number in refused:
        steps += [(_IF_EQUAL, 0, 1, number), (_RETURN, 0, 0, _REFUSE)]
    steps.append((_RETURN, 0, 0, _ALLOW))
    instructions = (_Instruction * len(steps))(*(_Instruction(*step) for step in steps))
    program = _Program(len(steps), instructions)
    # Without the first of the two only root may set a filter: it rules out that a program gains rights by being run.
    if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0:
        return False
    return bool(libc.prctl(_SET_SECCOMP, _FILTER_MODE, ctypes.byref(program), 0, 0) == 0)


def main() -> None:
    """Close the network to this process, and print by what and whether native code can still make a socket."""
    block = deny_network()
    made = ctypes.CDLL(None, use_errno=True).socket(2, 1, 0) >= 0
    sys.stdout.write(f"{block.value}, native code {'can make' if made else 'cannot make'} a socket\n")


if __name__ == "__main__":
    main()
