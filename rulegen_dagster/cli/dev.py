"""`rulegen dev`: code server, web page and daemon as three children of one process that owns their end."""

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from rulegen_dagster.cli.output import err, plain, print_json
from rulegen_dagster.domain.errors import InputError
from rulegen_dagster.domain.identity import DEFAULT_TENANT
from rulegen_dagster.resources.lost_runs import end_lost_runs
from rulegen_dagster.settings import Settings

LOCATION: Final = "rulegen_dagster"
MODULE: Final = "rulegen_dagster.definitions"
HOST: Final = "127.0.0.1"
GRACE_S: Final = 15.0
CHILD_GRACE_MS: Final = 3_000
_POLL_S: Final = 0.2


def serve(settings: Settings, port: int, *, json_output: bool = False) -> int:
    """Run until a signal, or until a child ends; return the exit code. With `json_output`, tell where as JSON.

    Each child leads a process group of its own, so that what it starts ends with it. The code server starts first:
    a daemon that finds none gives up retrying the runs that the last stop interrupted. It owns the run workers, and
    both the web page and the daemon read its definitions.
    """
    if not _is_free(port):
        raise InputError(
            f"port {port} on {HOST} is in use; choose another with --port, or end what listens there",
            code="port_in_use",
        )
    environment = _prepare(settings)
    with _only_one(settings) as lock:
        return _serve(settings, port, environment, lock, json_output=json_output)


def _serve(settings: Settings, port: int, environment: dict[str, str], lock: int, *, json_output: bool) -> int:
    code_port = _free_port()
    workspace = settings.dagster_home / "workspace.yaml"
    workspace.write_text(
        "# Written by 'rulegen dev' at each start.\n"
        f"load_from:\n  - grpc_server: {{host: {HOST}, port: {code_port}, location_name: {LOCATION}}}\n",
        encoding="utf-8",
    )
    commands = {
        "code server": [
            *("dagster", "code-server", "start", "-m", MODULE, "--location-name", LOCATION),
            *("-h", HOST, "-p", str(code_port)),
        ],
        "web page": ["dagster-webserver", "-h", HOST, "-p", str(port), "-w", str(workspace)],
        "daemon": ["dagster-daemon", "run", "-w", str(workspace)],
    }
    stopping: list[int] = []
    previous = {
        number: signal.signal(number, lambda signum, _frame: stopping.append(signum))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    children: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name, command in commands.items():
            children[name] = _start(command, environment, lock)
            if name == "code server":
                _wait_until_served(code_port, children[name], stopping)
                end_lost_runs(settings.dagster_home)
            if stopping:
                return 0
        url, uploads = f"http://{HOST}:{port}", settings.uploads_path / DEFAULT_TENANT
        if json_output:
            print_json({"url": url, "home": str(settings.home_path), "uploads": str(uploads)})
        err().print(plain(f"Dagster: {url}  (home: {settings.home_path})"))
        err().print(plain(f"drop specifications into {uploads}; Ctrl-C ends"))
        while not stopping:
            ended = [name for name, child in children.items() if child.poll() is not None]
            if ended:
                err().print(plain(f"the {ended[0]} ended by itself; see its output above", "red"))
                return 1
            time.sleep(_POLL_S)
        return 0
    finally:
        _stop(list(children.values()))
        for number, handler in previous.items():
            signal.signal(number, handler)


def _prepare(settings: Settings) -> dict[str, str]:
    """Make the folders, put `dagster.yaml` in place, and return the children's environment."""
    settings.dagster_home.mkdir(parents=True, exist_ok=True)
    (settings.uploads_path / DEFAULT_TENANT).mkdir(parents=True, exist_ok=True)
    instance_file = settings.dagster_home / "dagster.yaml"
    if not instance_file.exists():
        shutil.copyfile(_instance_template(), instance_file)
    return {
        **os.environ,
        # Children run in the folder of this process; the home must not depend on it.
        "RULEGEN_HOME": str(settings.home_path),
        "DAGSTER_HOME": str(settings.dagster_home),
        # Run workers have to be done before this process runs out of patience, and Ctrl-C should not take long.
        "RULEGEN_GRACE_MS": str(min(settings.grace_ms, CHILD_GRACE_MS)),
        "PYTHONUNBUFFERED": "1",
    }


def _instance_template() -> Path:
    package = Path(__file__).parent.parent
    for candidate in (package.parent / "dagster.yaml", package / "dagster.yaml"):
        if candidate.is_file():
            return candidate
    raise InputError("dagster.yaml is not beside the package; run from a checkout of the project", code="no_template")


def _start(command: list[str], environment: dict[str, str], lock: int) -> subprocess.Popen[bytes]:
    program, *arguments = command
    return subprocess.Popen(  # noqa: S603 (our own programs, arguments of our own)
        [str(Path(sys.executable).with_name(program)), *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        # A child that outlives a killed parent keeps the home's lock, so that no second daemon joins it.
        pass_fds=(lock,),
    )


def _stop(children: list[subprocess.Popen[bytes]]) -> None:
    # The whole group of each: a code server that is told alone waits for its run workers, and a worker that is told
    # books its run as interrupted. The daemon first, so that nothing new is launched.
    for child in reversed(children):
        _signal_group(child, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    for child in children:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(max(deadline - time.monotonic(), 0.1))
    for child in children:
        _signal_group(child, signal.SIGKILL)
        child.wait()


def _signal_group(child: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, number)


def _wait_until_served(port: int, server: subprocess.Popen[bytes], stopping: list[int]) -> None:
    """Wait until the code server answers that it has loaded the definitions, has ended, or a signal came."""
    with grpc.insecure_channel(f"{HOST}:{port}") as channel:
        health = health_pb2_grpc.HealthStub(channel)
        while server.poll() is None and not stopping:
            with contextlib.suppress(grpc.RpcError):
                answer = health.Check(health_pb2.HealthCheckRequest(service="DagsterApi"), timeout=2)
                if answer.status == health_pb2.HealthCheckResponse.SERVING:
                    return
            time.sleep(_POLL_S)


@contextlib.contextmanager
def _only_one(settings: Settings) -> Iterator[int]:
    """Hold the home's lock, which the kernel gives back when this process and its children have ended."""
    with (settings.dagster_home / "dev.lock").open("w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"another 'rulegen dev' serves {settings.home_path}, or what it started still runs; end that, or set"
                " RULEGEN_HOME to another folder",
                code="home_in_use",
            ) from None
        yield lock.fileno()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
