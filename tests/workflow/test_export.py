"""Exports: the whole ruleset for machines, and a text for people in which nothing of others is markup."""

import json
import os
import socket
import stat
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from rulegen_dagster.domain.errors import InputError
from rulegen_dagster.domain.states import Stage
from rulegen_dagster.domain.text import printable
from rulegen_dagster.workflow.decide import confirm, waive
from rulegen_dagster.workflow.export import code, export_json, export_markdown, prose, write_new
from rulegen_dagster.workflow.publish import publish
from rulegen_dagster.workflow.runtime import Runtime
from tests.workflow.conftest import finish, open_rules, policy, scripted, submit

READER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
HOSTILE = [
    "<script>alert(1)</script>",
    "<!-- gone --> <img src=x onerror=alert(1)>",
    "[click](http://evil.example)",
    "![x](http://evil.example/x.png)",
    "https://evil.example/x?a=b",
    "www.evil.example",
    "<http://evil.example>",
    "someone@evil.example",
    "[ref]: http://evil.example",
    "&lt;b&gt; &#60;b&#62;",
    "# heading",
    "1. item",
    "2) item",
    "- item",
    "+ item",
    "> quote",
    "***",
    "---",
    "===",
    "~~gone~~ **bold** _slanted_ `code`",
    "| a | b |",
    "a | b \\| c",
    "a|b@c.example|d",
    "```",
    "    indented",
    "back\\slash\\",
    "\\`",
    "` `` ```",
    "line\nbreak\r\n# heading",
    "red \x1b[31m and \u202e turned",
]
PLAIN = {"paragraph", "inline", "text", "code_inline", "softbreak"}


def _tokens(markdown: str) -> list[Token]:
    return [inner for token in READER.parse(markdown) for inner in (token, *(token.children or ()))]


def _kinds(markdown: str) -> set[str]:
    return {token.type.removesuffix("_open").removesuffix("_close") for token in _tokens(markdown)}


def _shown(markdown: str) -> str:
    return "".join(token.content for token in _tokens(markdown) if token.type in ("text", "code_inline"))


@pytest.mark.parametrize("text", HOSTILE)
def test_somebodys_text_is_shown_as_it_is_and_is_no_markup(text: str) -> None:
    as_prose, as_code = prose(text), code(text)

    assert _kinds(as_prose) <= PLAIN
    assert _kinds(as_code) <= PLAIN
    assert "".join(_shown(as_code).split()) == "".join(_shown(as_prose).split())
    assert all(character.isprintable() for character in as_prose + as_code)
    # What a reader of another flavour would make a link of stands in code.
    for token in _tokens(as_prose):
        if token.type == "text":
            assert "://" not in token.content
            assert "@" not in token.content
            assert not token.content.lower().startswith("www.")


@pytest.mark.parametrize("text", HOSTILE)
def test_a_table_keeps_its_cells_whatever_stands_in_them(runtime: Runtime, text: str) -> None:
    test = {"name": text[:120], "kind": "boundary", "facts": {}, "expect": "deny"}
    runtime = scripted(runtime, {"generate_tests/rule-01": [{"do": "ok", "draft": {"tests": [test]}}]})
    job = finish(runtime, submit(runtime, policy(1)))

    markdown = export_markdown(runtime, job)

    tokens, kinds = READER.parse(markdown), _kinds(markdown)
    cells = [follows for token, follows in pairwise(tokens) if token.type == "td_open"]
    shown = "".join(child.content for child in cells[0].children or ())
    assert len(cells) == 4
    assert "".join(shown.split()) == "".join(printable(text).split())
    assert not kinds & {"html_block", "html_inline", "link", "image", "code_block", "fence", "hr"}


def test_a_policy_cannot_bring_markup_into_the_text(runtime: Runtime) -> None:
    data = "\n\n".join(f"Meals, {text.strip()} , must be approved." for text in HOSTILE).encode()
    job = finish(runtime, submit(runtime, data, file_name="policy.txt"))

    markdown = export_markdown(runtime, job)

    allowed = PLAIN | {"heading", "bullet_list", "list_item", "blockquote", "strong"}
    assert _kinds(markdown) - {"table", "thead", "tbody", "tr", "th", "td"} <= allowed
    assert "\x1b" not in markdown


def test_the_text_goes_clause_by_clause_with_rule_condition_and_tests(runtime: Runtime) -> None:
    job = finish(runtime, submit(runtime, policy(1) + b"\n\nCoffee must stay hot.\n"))

    markdown = export_markdown(runtime, job)

    assert "**not published**" in markdown
    assert "(not a language model)" in markdown
    assert "## rule-01 (line 1)" in markdown
    assert "> Meals are limited to \\$50 per day." in markdown
    assert "` p.limit ` = USD 50.00" in markdown
    assert "| Test | Kind | Facts | Expected |" in markdown
    assert "No rule: no\\_pattern" in markdown


def test_a_published_ruleset_and_a_waiver_say_so(runtime: Runtime) -> None:
    runtime = scripted(runtime, {"generate_rules/rule-02": [{"do": "error", "kind": "permanent"}]})
    job = finish(runtime, submit(runtime, policy(2)))
    waive(runtime, job, "rule-02", actor="ann", reason="<b>guidance</b>")
    job = finish(runtime, job)
    confirm(runtime, job, str(job.action_set_digest), actor="ann")
    publish(runtime, runtime.ledger.reads.job_by_id(job.job_id))
    job = runtime.ledger.reads.job_by_id(job.job_id)

    markdown, content = export_markdown(runtime, job), export_json(runtime, job)

    assert "published as" in markdown
    assert "**Waived** by ann: \\<b\\>guidance\\</b\\>" in markdown
    assert content["is_published"]
    assert content["published"].endswith(str(job.action_set_digest))
    assert content["clauses"][1]["waiver"]["actor"] == "ann"


def test_the_json_holds_every_accepted_output_and_the_whole_report(runtime: Runtime) -> None:
    job = finish(runtime, submit(runtime, policy(2)))

    content = export_json(runtime, job)

    rules = runtime.ledger.reads.items(job.job_id, Stage.GENERATE_RULES)
    tests = runtime.ledger.reads.items(job.job_id, Stage.GENERATE_TESTS)
    (report,) = runtime.ledger.reads.items(job.job_id, Stage.VALIDATE)
    assert [clause["generated"]["rules"] for clause in content["clauses"]] == [json.loads(str(i.output)) for i in rules]
    assert [clause["generated"]["tests"] for clause in content["clauses"]] == [json.loads(str(i.output)) for i in tests]
    assert content["validation_report"] == json.loads(str(report.output))
    assert (content["is_published"], content["published"]) == (False, None)
    assert content["action_set"] == job.action_set_digest
    assert [clause["location"] for clause in content["clauses"]] == ["line 1", "line 2"]


def test_a_job_that_has_no_output_yet_is_exported_as_far_as_it_is(runtime: Runtime) -> None:
    new = submit(runtime, policy(1), key="new")
    parsed = open_rules(runtime, policy(1), key="parsed")

    assert "Not validated yet." in export_markdown(runtime, new)
    assert "No output yet: pending" in export_markdown(runtime, parsed)
    assert export_json(runtime, new)["clauses"] == []
    assert export_json(runtime, parsed)["validation_report"] is None


def test_a_clause_without_a_rule_is_no_coverage_in_the_text(runtime: Runtime) -> None:
    job = finish(runtime, submit(runtime, policy(1) + b"\n\nCoffee must stay hot.\n"))

    markdown = export_markdown(runtime, job)

    assert "- every clause has an accepted end: 2 of 2 (1 with rules, 1 without, 0 of them waived)" in markdown
    assert "Coverage" not in markdown


@pytest.fixture
def umask() -> Iterator[None]:
    """A umask that takes the group's right to write, and others' to do anything."""
    before = os.umask(0o027)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
def test_a_file_is_written_whole_and_never_over_another(tmp_path: Path) -> None:
    path = tmp_path / "ruleset.md"

    write_new(path, "ü\n", replace=False)
    with pytest.raises(InputError) as caught:
        write_new(path, "other", replace=False)
    kept = path.read_bytes()
    write_new(path, "other", replace=True)

    assert (kept, path.read_bytes()) == ("ü\n".encode(), b"other")
    assert caught.value.code == "file_exists"
    assert [found.name for found in tmp_path.iterdir()] == ["ruleset.md"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize("mode", [0o600, 0o666])
@pytest.mark.usefixtures("umask")
def test_a_file_that_is_replaced_keeps_who_may_read_it(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "ruleset.md"
    path.touch()
    path.chmod(mode)

    write_new(path, "other", replace=True)

    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"other", mode)


@pytest.mark.parametrize("where", ["absent/ruleset.md", "file/ruleset.md"])
def test_a_place_that_cannot_be_written_is_a_clear_error(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(InputError) as caught:
        write_new(tmp_path / where, "x", replace=True)

    assert caught.value.code == "not_writable"
    assert [found.name for found in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("kind", ["folder", "symbolic link", "pipe", "socket"])
def test_what_is_no_regular_file_is_refused_by_its_kind_and_stays(tmp_path: Path, kind: str, replace: bool) -> None:
    path, other = tmp_path / "x", tmp_path / "other"
    other.write_text("kept", encoding="utf-8")
    if kind == "folder":
        path.mkdir()
    elif kind == "symbolic link":
        path.symlink_to(other)
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
    before = path.lstat()

    with pytest.raises(InputError, match=f"is a {kind}") as caught:
        write_new(path, "text", replace=replace)

    after = path.lstat()
    assert caught.value.code == "not_a_file"
    assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)
    assert other.read_text(encoding="utf-8") == "kept"
    assert {found.name for found in tmp_path.iterdir()} == {"x", "other"}


def test_a_link_that_leads_nowhere_is_refused_as_a_link(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.symlink_to(tmp_path / "absent")

    with pytest.raises(InputError, match="is a symbolic link"):
        write_new(path, "text", replace=False)
