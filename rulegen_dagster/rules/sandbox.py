"""The sandbox: rules are executed in a short-lived process of their own, under limits that the kernel enforces.

The rule language is total and bounded, so that no rule should ever meet a limit. What reads drafts of a model and runs
a native engine over them is kept out of the worker all the same: whatever goes wrong there ends that process alone.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from rulegen_dagster.domain.errors import Failure, RuleExecutionError
from rulegen_dagster.domain.policy import ValidationPolicy
from rulegen_dagster.domain.vocabulary import Vocabulary
from rulegen_dagster.rules.clause_entries import ClauseEntry, entry_as_json
from rulegen_dagster.rules.policies import prover_is_installed
from rulegen_dagster.rules.quality import RulesetReport, Waiver
from rulegen_dagster.rules.sandboxed import OUT_OF_MEMORY

_PASSED_ON: Final = ("PATH", "PYTHONPATH", "SYSTEMROOT", "LD_LIBRARY_PATH")
_SET: Final = {"PYDANTIC_DISABLE_PLUGINS": "__all__"}
"""No plugin of the installation has anything to do in there, and looking for some takes a tenth of the start."""
_EXECUTION: Final = "execution_limit"


@dataclass(frozen=True, kw_only=True)
class SandboxLimits:
    """What one execution may use: CPU and wall time in seconds, address space in bytes."""

    cpu_s: int = 60
    wall_s: int = 180
    memory_bytes: int = 2 * 1024**3


def assess_in_sandbox(
    entries: Sequence[ClauseEntry],
    vocabulary: Vocabulary,
    policy: ValidationPolicy,
    waivers: Sequence[Waiver] = (),
    *,
    limits: SandboxLimits = SandboxLimits(),
) -> RulesetReport:
    """Return what `assess_ruleset` finds, from a process that has nothing but the request.

    A ruleset that runs into a limit gets a report that failed with `execution_limit`: it would do so each time. Raises
    `RuleExecutionError` where the process ends in any other way.
    """
    if policy.proofs and not prover_is_installed():
        raise RuleExecutionError(
            f"the policy {policy.label} asks for proofs, and the prover is not installed here; run"
            " pip install -e '.[prove]', the next attempt goes on"
        )
    request = json.dumps(
        {
            "entries": [entry_as_json(entry) for entry in entries],
            "vocabulary": vocabulary.model_dump(mode="json"),
            "policy": policy.model_dump(mode="json"),
            "waivers": [asdict(waiver) for waiver in waivers],
        }
    )
    command = [sys.executable, "-P", "-m", "rulegen_dagster.rules.sandboxed"]
    try:
        ended = subprocess.run(  # noqa: S603 (our own program, with two numbers)
            [*command, str(limits.cpu_s), str(limits.memory_bytes)],
            input=request,
            capture_output=True,
            text=True,
            encoding="utf-8",
            # No secret of the worker's environment is there to be read.
            env={name: os.environ[name] for name in _PASSED_ON if name in os.environ} | _SET,
            timeout=limits.wall_s,
            check=False,
            # A signal to the worker's terminal is for the worker: it decides what becomes of the item.
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        return _over_limit(entries, policy, f"{limits.wall_s} s")
    match ended.returncode:
        case 0:
            return RulesetReport.model_validate_json(ended.stdout)
        case code if code == -signal.SIGXCPU:
            return _over_limit(entries, policy, f"{limits.cpu_s} s of CPU time")
        case code if code == OUT_OF_MEMORY:
            return _over_limit(entries, policy, f"{limits.memory_bytes // 1024**2} MiB of memory")
        case code:
            # What it printed may quote the specification.
            raise RuleExecutionError(
                f"the process that executes the rules ended with {code}; the next attempt repeats it"
            )


def _over_limit(entries: Sequence[ClauseEntry], policy: ValidationPolicy, limit: str) -> RulesetReport:
    message = f"executing the rules and their tests took more than {limit}"
    return RulesetReport.not_executed(
        Failure(code=_EXECUTION, path="$", message=message),
        rules=sum(len(entry.rules.rules) for entry in entries),
        tests=sum(len(entry.suite.tests) for entry in entries),
        clauses=len(entries),
        policy=policy,
    )
