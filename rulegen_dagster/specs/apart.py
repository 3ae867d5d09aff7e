"""Formats read in a process of their own: a file that crashes, stalls or bloats the parser harms nobody else.

The parent hands the bytes over a pipe and gets one JSON value back. The child has no environment and no network (see
`confinement` for what closes it), may write no file, start no process and use only so much memory and processor time;
it ends with its one file.
"""

import json
import resource
import signal
import subprocess
import sys
from typing import Any

from rulegen_dagster.domain.clause import ClauseKind
from rulegen_dagster.domain.confinement import deny_network
from rulegen_dagster.domain.errors import ParserProcessError, SpecError
from rulegen_dagster.domain.source_map import SourceMap
from rulegen_dagster.specs.assembly import Reading
from rulegen_dagster.specs.blocks import Block
from rulegen_dagster.specs.detection import Format
from rulegen_dagster.specs.refusals import Refusal, refused

CPU_SECONDS = 10
"""Processor time of one file; a PDF of 500 full pages takes four."""

WALL_SECONDS = 120
"""Time by the clock; a machine that takes longer has too much to do, and the file is not to blame."""

MEMORY_BYTES = 1_500_000_000

_CRASHES = frozenset((signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP))
_OPEN_FILES = 64


def read_apart(data: bytes, spec_format: Format, *, cpu_seconds: int = CPU_SECONDS) -> Reading:
    """Read an upload of a format with a native or unpacking parser.

    Raises `SpecError` as the format's reader does, also `too_complex` (time or memory ran out) and `broken_file`
    (the parser crashed), and `ParserProcessError`, after which the same file may be tried again.
    """
    program = f"from rulegen_dagster.specs.apart import main; main({spec_format.value!r}, {cpu_seconds})"
    with _started(program) as child:
        try:
            answer, _ = child.communicate(data, timeout=WALL_SECONDS)
        except subprocess.TimeoutExpired:
            raise ParserProcessError(f"the file was not read within {WALL_SECONDS} s; try again later") from None
        finally:
            child.kill()
    if child.returncode != 0:
        raise failure_of(child.returncode)
    return _reading_of(json.loads(answer))


def failure_of(returncode: int) -> SpecError | ParserProcessError:
    """Return what an end of the child process means: the file's fault, or that of whoever ended it."""
    if returncode == -signal.SIGXCPU:
        return _too_complex()
    if -returncode in _CRASHES:
        return refused(Refusal.BROKEN_FILE, "the parser broke off on this file; export it anew")
    return ParserProcessError(f"the process that reads the file ended with {returncode}; try again")


def _started(program: str) -> "subprocess.Popen[bytes]":
    try:
        return subprocess.Popen(  # noqa: S603 - the interpreter itself, with a program of ours
            [sys.executable, "-I", "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
        )
    except OSError as error:
        raise ParserProcessError(f"no process could be started to read the file: {error.strerror}") from error


def main(spec_format: str, cpu_seconds: int) -> None:
    """Read standard input as one file and write what it holds; the body of the child process."""
    _confine(cpu_seconds)
    deny_network()
    data = sys.stdin.buffer.read()
    try:
        answer = _json_of(_read(data, Format(spec_format)))
    except SpecError as error:
        answer = {"refusal": error.code, "message": error.message}
    except (MemoryError, RecursionError):
        stopped = _too_complex()
        answer = {"refusal": stopped.code, "message": stopped.message}
    sys.stdout.write(json.dumps(answer))


def _read(data: bytes, spec_format: Format) -> Reading:
    # Imported here: neither the parent nor a file of another format needs the library.
    if spec_format is Format.HTML:
        from rulegen_dagster.specs.hypertext import read_html  # noqa: PLC0415

        return read_html(data)
    if spec_format is Format.DOCX:
        from rulegen_dagster.specs.word import read_docx  # noqa: PLC0415

        return read_docx(data)
    from rulegen_dagster.specs.pdf import read_pdf  # noqa: PLC0415

    return read_pdf(data)


def _confine(cpu_seconds: int) -> None:
    limits = {
        resource.RLIMIT_CPU: (cpu_seconds, cpu_seconds + 1),
        resource.RLIMIT_AS: (MEMORY_BYTES, MEMORY_BYTES),
        resource.RLIMIT_FSIZE: (0, 0),
        resource.RLIMIT_NOFILE: (_OPEN_FILES, _OPEN_FILES),
        resource.RLIMIT_CORE: (0, 0),
        resource.RLIMIT_NPROC: (0, 0),
    }
    for limit, (soft, hard) in limits.items():
        highest = resource.getrlimit(limit)[1]
        bounded = hard if highest == resource.RLIM_INFINITY else min(hard, highest)
        try:
            resource.setrlimit(limit, (min(soft, bounded), bounded))
        except (ValueError, OSError):
            # macOS has no working limit of address space; the other limits still hold.
            continue


def _too_complex() -> SpecError:
    return refused(
        Refusal.TOO_COMPLEX, "reading the file takes more time or memory than a document may; split or export it anew"
    )


def _json_of(reading: Reading) -> dict[str, Any]:
    # Thousands of blocks share a few headings and leads; each is sent once.
    contexts: dict[tuple[tuple[str, ...], str | None, tuple[str, ...]], int] = {}
    blocks = [
        [
            block.lines,
            block.kind.value,
            contexts.setdefault((block.heading_path, block.lead, block.table_header), len(contexts)),
            block.label,
            block.introduces_list,
        ]
        for block in reading.blocks
    ]
    return {
        "text": reading.text,
        "contexts": list(contexts),
        "blocks": blocks,
        "source_map": reading.source_map.to_json(),
    }


def _reading_of(answer: dict[str, Any]) -> Reading:
    if "refusal" in answer:
        raise SpecError(str(answer["message"]), code=Refusal(answer["refusal"]).value)
    contexts = [(tuple(path), lead, tuple(header)) for path, lead, header in answer["contexts"]]
    blocks = []
    for lines, kind, context, label, introduces_list in answer["blocks"]:
        path, lead, header = contexts[context]
        blocks.append(
            Block(
                lines=tuple((start, end) for start, end in lines),
                kind=ClauseKind(kind),
                heading_path=path,
                lead=lead,
                label=label,
                table_header=header,
                introduces_list=introduces_list,
            )
        )
    return Reading(text=answer["text"], blocks=tuple(blocks), source_map=SourceMap.from_json(answer["source_map"]))
