"""Export: a job's ruleset as one file, for machines (JSON) and for people (Markdown), before its publication and after.

What a policy or a provider wrote stands in the Markdown as plain text: no markup, raw HTML, link or image of theirs.
"""

import contextlib
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from rulegen_dagster.domain.errors import InputError
from rulegen_dagster.domain.states import JobState, Stage
from rulegen_dagster.domain.text import printable
from rulegen_dagster.ledger.reads import JobRecord
from rulegen_dagster.workflow.bundle import accepted_report, report_of
from rulegen_dagster.workflow.review import coverage_line, review_report
from rulegen_dagster.workflow.runtime import Runtime

EXPORT_FORMAT: Final = "rulegen-export/1"

_MARKUP = re.compile(r"([\\`*_{}\[\]<>#!|~&$^])")
# What begins a list, a heading's underline or a definition where it stands first.
_FIRST = re.compile(r"^(\d*)([-+=:.)])")
_ADDRESS = re.compile(r"@|://|^\W*www\.", re.IGNORECASE)
_BACKTICKS = re.compile(r"`+")
_KINDS: Final = {
    stat.S_IFDIR: "folder",
    stat.S_IFLNK: "symbolic link",
    stat.S_IFIFO: "pipe",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}


def export_json(runtime: Runtime, job: JobRecord) -> dict[str, Any]:
    """Return the accepted outputs as they are, each beside its clause, and the whole validation report.

    Where a waiver leaves generated rules out of the ruleset, they stand under `generated` all the same.
    """
    review = review_report(runtime, job)
    outputs = {
        stage: {
            item.key.item_key: json.loads(item.output) if item.output else None
            for item in runtime.ledger.reads.items(job.job_id, stage)
        }
        for stage in (Stage.GENERATE_RULES, Stage.GENERATE_TESTS)
    }
    report = accepted_report(runtime, job.job_id)
    kept = ("item", "ordinal", "state", "location", "heading_path", "lead", "text", "start", "end", "waiver", "no_rule")
    return {
        "format": EXPORT_FORMAT,
        **{name: review[name] for name in ("job", "state", "reason", "file", "provider", "provider_label")},
        "ruleset": job.ruleset,
        "is_published": review["state"] == JobState.COMPLETED,
        "published": review["published"],
        "action_set": review["action_set"],
        "behaviour": review["behaviour"],
        "clauses": [
            {
                **{name: clause[name] for name in kept},
                "rule_ids": [rule["id"] for rule in clause["rules"]],
                "generated": {
                    "rules": outputs[Stage.GENERATE_RULES].get(clause["item"]),
                    "tests": outputs[Stage.GENERATE_TESTS].get(clause["item"]),
                },
            }
            for clause in review["clauses"]
        ],
        "waivers": review["waivers"],
        "validation_report": report_of(report) if report else None,
    }


def export_markdown(runtime: Runtime, job: JobRecord) -> str:
    """Return the ruleset for people, clause by clause."""
    return "\n".join(_document(review_report(runtime, job))) + "\n"


def write_new(path: Path, text: str, *, replace: bool) -> None:
    """Write a file at once or not at all.

    A new file is made as the umask says; one that takes the place of another may be read and written by the same.
    Raises `InputError` where there is one already and `replace` is not set, where something else than a regular file
    is there, and where it cannot be written.
    """
    data = text.encode()
    beside = path.parent / f".rulegen-{secrets.token_hex(8)}.partial"
    try:
        mode = _mode_of(path)
        # Until it has its mode, nobody else reads what replaces a private file.
        number = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else 0o600)
        try:
            with os.fdopen(number, "wb") as file:
                if mode is not None:
                    os.fchmod(file.fileno(), mode)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if replace:
                beside.replace(path)
            else:
                # Unlike a rename, a link never takes the place of a file that somebody made meanwhile.
                os.link(beside, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                beside.unlink()
    except FileExistsError:
        raise InputError(
            f"there is a file at {path} already; name another, or give --force to replace it", code="file_exists"
        ) from None
    except OSError as error:
        raise InputError(f"the file {path} cannot be written: {error.strerror}", code="not_writable") from error


def _mode_of(path: Path) -> int | None:
    """Return who may use the file that is there, None without one. Raises `InputError` for anything but a file."""
    try:
        found = path.lstat().st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found):
        kind = _KINDS.get(stat.S_IFMT(found), "special file")
        raise InputError(
            f"{path} is a {kind}, and only a regular file is replaced; name a file, or - for standard output",
            code="not_a_file",
        )
    return found & 0o777


def _document(report: dict[str, Any]) -> Iterator[str]:
    yield f"# Ruleset of {prose(report['job'])}"
    yield ""
    published = f"published as {code(report['published'])}" if report["published"] else "**not published**"
    label = f" ({prose(report['provider_label'])})" if report["provider_label"] else ""
    yield f"- State: {prose(report['state'])}, {published}"
    yield f"- Specification: {prose(report['file'])}"
    yield f"- Generated by {prose(report['provider'])}{label}"
    yield f"- {report['rules']} rules, {report['tests']} tests"
    if report["action_set"]:
        yield f"- Action set: {code(report['action_set'])}"
    yield f"- {prose(report['reason'])}"
    yield from _quality(report)
    for clause in report["clauses"]:
        yield from _clause(clause)


def _quality(report: dict[str, Any]) -> Iterator[str]:
    yield ""
    yield "## Validation"
    yield ""
    if report["passed"] is None:
        yield "Not validated yet."
        return
    yield f"The ruleset {'passed' if report['passed'] else '**did not pass**'}."
    if report["mutation"] and report["coverage"]:
        mutation = report["mutation"]
        yield ""
        yield f"- Policy: {prose(report['policy'])}"
        yield (
            f"- Mutation score: {mutation['percent']} % ({mutation['killed']} of"
            f" {mutation['mutants'] - mutation['equivalent']} wrong copies noticed)"
        )
        yield f"- {coverage_line(report['coverage'])}"
    if report["proof"]:
        proof = report["proof"]
        yield f"- Decided for all facts by {prose(proof['engine'])} ({proof['open_questions']} questions left open)"
    for failure in [*report["failures"], *report["missing"]]:
        yield f"- **{prose(failure['code'])}**: {prose(failure['message'])}"
    for finding in report["findings"]:
        yield ""
        kind = "Conflict" if finding["is_conflict"] else "Finding"
        yield f"### {kind}: {prose(finding['kind'])} ({', '.join(map(code, finding['rule_ids']))})"
        yield ""
        yield prose(finding["message"])
        for quote in finding["quotes"]:
            yield ""
            yield f"> {prose(quote)}"
        yield ""
        yield f"For example: {code(_facts(finding['witness']))} → {prose(', '.join(finding['decided']))}"


def _clause(clause: dict[str, Any]) -> Iterator[str]:
    yield ""
    yield f"## {prose(clause['item'])} ({prose(clause['location'])})"
    yield ""
    if clause["heading_path"]:
        yield f"{prose(' › '.join(clause['heading_path']))}"
        yield ""
    yield f"> {prose(clause['text'])}"
    if clause["waiver"]:
        yield ""
        yield f"**Waived** by {prose(clause['waiver']['actor'])}: {prose(clause['waiver']['reason'])}"
    elif clause["no_rule"]:
        detail = f" ({prose(clause['no_rule']['detail'])})" if clause["no_rule"]["detail"] else ""
        yield ""
        yield f"No rule: {prose(clause['no_rule']['reason'])}{detail}"
    elif not clause["rules"]:
        yield ""
        yield f"No output yet: {prose(clause['state'])}"
    for rule in clause["rules"]:
        yield from _rule(rule)
    if clause["tests"]:
        yield ""
        rows = [
            (prose(case["name"]), prose(case["kind"]), code(_facts(case["facts"])), _expected(case))
            for case in clause["tests"]
        ]
        yield from _table(("Test", "Kind", "Facts", "Expected"), rows)
    for survivor in clause["survivors"]:
        yield ""
        yield (
            f"**Not noticed**: {prose(survivor['change'])}, for example at {code(_facts(survivor['witness']))}:"
            f" {prose(survivor['found'])} for {prose(survivor['expected'])}"
        )
    for failure in clause["failures"]:
        yield ""
        yield f"**{prose(failure['code'])}** at {code(failure['path'])}: {prose(failure['message'])}"


def _rule(rule: dict[str, Any]) -> Iterator[str]:
    yield ""
    yield f"### {prose(rule['id'])}"
    yield ""
    yield prose(rule["in_words"])
    yield ""
    yield f"- When: {code(rule['applies_when'])}"
    for exception in rule["unless"]:
        yield f"- Unless: {code(exception)}"
    if rule["cap"]:
        yield f"- Cap: {code(rule['cap'])}"
    for name, value in rule["params"].items():
        yield f"- {code(f'p.{name}')} = {prose(value)}"
    for quoted in rule["quotes_elsewhere"]:
        yield f"- {code(quoted['for'])} from clause {quoted['clause_ordinal']}: “{prose(quoted['quote'])}”"


def _expected(case: dict[str, Any]) -> str:
    cap = case["expect_cap_minor"]
    return prose(case["expect"] if cap is None else f"{case['expect']} {cap}")


def _facts(facts: dict[str, Any]) -> str:
    return ", ".join(f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in facts.items()) or "-"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{' --- |' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(_cell(cell) for cell in row)} |"


def _cell(text: str) -> str:
    # A table is cut into cells before anything else is read, code included.
    return re.sub(r"(?<!\\)\|", r"\\|", text)


def prose(text: str) -> str:
    """Return somebody's text as one line of Markdown that shows exactly it; an address is shown as code, no link."""
    words = [code(word) if _ADDRESS.search(word) else _MARKUP.sub(r"\\\1", word) for word in printable(text).split(" ")]
    return _FIRST.sub(r"\1\\\2", " ".join(words).strip())


def code(text: str) -> str:
    """Return somebody's text as Markdown code, whatever is in it."""
    line = printable(text)
    fence = "`" * (max(map(len, _BACKTICKS.findall(line)), default=0) + 1)
    # A blank on either side is taken away again, and keeps the text's own backticks from the fence.
    return f"{fence} {line} {fence}" if line.strip() else ""
