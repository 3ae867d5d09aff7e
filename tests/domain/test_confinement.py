"""Confinement: after it no socket can be made, by Python or by native code, where the kernel keeps the promise."""

import subprocess
import sys

import pytest

from rulegen_dagster.domain.confinement import NetworkBlock

SOCKET = "import socket; socket.socket()"
PAIR = "import socket; socket.socketpair()"
LOOK_UP = "import socket; socket.getaddrinfo('localhost', 80)"
PROGRAM = "import subprocess; subprocess.run(['true'])"
EXEC = "import os; os.execv('/bin/true', ['true'])"


def confined(program: str) -> subprocess.CompletedProcess[str]:
    closed = "from rulegen_dagster.domain.confinement import deny_network; block = deny_network()"
    return subprocess.run(
        [sys.executable, "-P", "-c", f"{closed}\n{program}"], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("program", [SOCKET, PAIR, LOOK_UP, PROGRAM, EXEC])
def test_python_code_can_make_no_socket_and_start_no_program(program: str) -> None:
    ended = confined(program)

    assert ended.returncode == 1
    # Of a pair of sockets the kernel hears before Python does.
    assert "NetworkDeniedError" in ended.stderr or "PermissionError" in ended.stderr


NATIVE = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
print(block.name, block.holds_native_code)
number = libc.socket(2, 1, 0)
print("refused" if number < 0 else "made", ctypes.get_errno() == errno.EPERM)
os.stat(".")
print(open("/dev/null").read() == "")
"""


def test_native_code_is_held_by_what_the_block_says() -> None:
    ended = confined(NATIVE)

    (block, holds), (socket, by_permission), (reads,) = map(str.split, ended.stdout.splitlines())
    assert (holds == "True") is NetworkBlock[block].holds_native_code
    # What has nothing to do with the network still works.
    assert reads == "True"
    if block == NetworkBlock.SECCOMP.name:
        assert (socket, by_permission) == ("refused", "True")


BODY = """
import io, sys
from rulegen_dagster.{module} import main
sys.stdin = io.TextIOWrapper(io.BytesIO(b"[]"))
try:
    main({arguments})
except Exception:
    pass
import socket
socket.socket()
"""


@pytest.mark.parametrize(
    ("module", "arguments"), [("specs.apart", "'html', 5"), ("rules.sandboxed", "['5', '2147483648']")]
)
def test_the_processes_that_read_files_and_execute_rules_are_confined(module: str, arguments: str) -> None:
    program = BODY.format(module=module, arguments=arguments)

    ended = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=60, check=False
    )

    assert "NetworkDeniedError" in ended.stderr


def test_the_probe_says_what_holds() -> None:
    ended = subprocess.run(
        [sys.executable, "-P", "-m", "rulegen_dagster.domain.confinement"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    block, _, native = ended.stdout.strip().partition(", ")
    assert NetworkBlock(block)
    assert native.startswith("native code can")
