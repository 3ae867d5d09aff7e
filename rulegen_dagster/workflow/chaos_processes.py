"""Child processes of chaos: forked from a parent that has imported everything and opened nothing.

A fork copies no other thread and must share no connection, so the parent holds neither: every child opens the ledger
for itself. What a child has to say it leaves in a file; how it ended is its exit status.
"""

import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

PATIENCE_S = 60.0
_POLL_S = 0.001
_CRASHED = 70


class Fate(StrEnum):
    """How a child stands."""

    ENDED = "ended"
    KILLED = "killed"
    STOPPED = "stopped"
    BROKEN = "broken"
    HUNG = "hung"


@dataclass(kw_only=True)
class Child:
    """One forked process; `wait` until it has ended or stands still."""

    pid: int

    def wait(self) -> Fate:
        """Wait until the child has ended, or was stopped; one that does neither is killed and counts as hung."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
            if pid == 0:
                time.sleep(_POLL_S)
            elif os.WIFSTOPPED(status):
                return Fate.STOPPED
            elif os.WIFSIGNALED(status):
                return Fate.KILLED
            else:
                return Fate.ENDED if os.WEXITSTATUS(status) == 0 else Fate.BROKEN
        self.kill()
        return Fate.HUNG

    def ended(self) -> bool:
        """Tell whether the child has ended, without waiting or reaping."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def go_on(self) -> Fate:
        """Let a stopped child go on, and wait again."""
        os.kill(self.pid, signal.SIGCONT)
        return self.wait()

    def kill(self) -> Fate:
        """Kill the child, wherever it is, and reap it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        return Fate.KILLED


def fork(work: Callable[[], None], *, broken: Callable[[str], None]) -> Child:
    """Run `work` in a child process; `broken` is told, in the child, what ended it if that was an error."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return Child(pid=pid)
    code = _CRASHED
    try:
        work()
        code = 0
    # Whatever it is: a child must never return into its parent's code.
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        broken(f"{type(error).__name__} in {where.name}:{where.lineno}: {error}")
    finally:
        os._exit(code)
