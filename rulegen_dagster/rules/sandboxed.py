"""The program of the sandbox: takes limits off its process, reads a ruleset, executes it, prints the report.

    python -m rulegen_dagster.rules.sandboxed CPU_SECONDS MEMORY_BYTES < request.json > report.json

The limits are set and the network is closed before a byte of the request is read (see `confinement` for what closes
it), and no rule, fact or quote is in an argument or a file.
"""

import json
import resource
import sys

from rulegen_dagster.domain.confinement import deny_network
from rulegen_dagster.domain.policy import ValidationPolicy
from rulegen_dagster.domain.vocabulary import Vocabulary
from rulegen_dagster.rules.clause_entries import entry_from_json
from rulegen_dagster.rules.quality import Waiver, assess_ruleset

OUT_OF_MEMORY = 12
"""Exit code of a process that ran into its memory limit."""

_OPEN_FILES = 32


def main(arguments: list[str]) -> int:
    """Limit this process, then assess the ruleset on standard input; return the exit code."""
    cpu_s, memory_bytes = map(int, arguments)
    limit_process(cpu_s=cpu_s, memory_bytes=memory_bytes)
    deny_network()
    try:
        request = json.load(sys.stdin)
        report = assess_ruleset(
            [entry_from_json(row) for row in request["entries"]],
            Vocabulary.model_validate(request["vocabulary"]),
            ValidationPolicy.model_validate(request["policy"]),
            [Waiver(**waiver) for waiver in request["waivers"]],
        )
        sys.stdout.write(report.model_dump_json())
        sys.stdout.flush()
    except MemoryError:
        return OUT_OF_MEMORY
    return 0


def limit_process(*, cpu_s: int, memory_bytes: int) -> None:
    """Bound CPU time and address space, and forbid files, core dumps and further processes, for good.

    The kernel does not hold root to the limit of processes; what is executed here starts none.
    """
    for kind, limit in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_NPROC, 0),
    ):
        _set_limit(kind, limit, limit)
    # At the first of the two the process dies of SIGXCPU, which nothing else sends; SIGKILL may come from anybody.
    _set_limit(resource.RLIMIT_CPU, cpu_s, cpu_s + 1)


def _set_limit(kind: int, soft: int, hard: int) -> None:
    _, most = resource.getrlimit(kind)
    if most != resource.RLIM_INFINITY:
        soft, hard = min(soft, most), min(hard, most)
    resource.setrlimit(kind, (soft, hard))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
