import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy.engine import make_url

from rulegen_dagster.domain.states import Stage
from tests.cli.conftest import Command, document
from tests.conftest import PostgresPool

STATUS_FIELDS: dict[str, type | tuple[type, ...]] = {
    "job": str,
    "state": str,
    "reason": str,
    "stages": dict,
    "provider_calls": int,
    "calls_this_run": int,
    "action_set": (str, type(None)),
    "published": (str, type(None)),
}
ITEM_STATES = {"pending", "running", "waiting", "succeeded", "failed"}


def _assert_is_a_status(report: dict[str, Any]) -> None:
    assert {name: isinstance(report[name], kind) for name, kind in STATUS_FIELDS.items()} == dict.fromkeys(
        STATUS_FIELDS, True
    )
    assert list(report["stages"]) == [stage.value for stage in Stage]
    assert {frozenset(counts) for counts in report["stages"].values()} == {frozenset(ITEM_STATES)}


def _succeeded(report: dict[str, Any]) -> dict[str, int]:
    return {stage: counts["succeeded"] for stage, counts in report["stages"].items()}


def _script(home: Path, monkeypatch: pytest.MonkeyPatch, items: dict[str, Any]) -> Path:
    path = home / "script.yaml"
    path.write_text(yaml.safe_dump({"items": items, "journal": str(home / "calls.log")}), encoding="utf-8")
    monkeypatch.setenv("RULEGEN_PROVIDER", "rulegen-scripted")
    monkeypatch.setenv("RULEGEN_SCRIPT", str(path))
    return path


def test_a_run_of_the_example_stops_where_a_person_has_to_confirm(
    rulegen: Command, example_policy: Path, ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RULEGEN_DATABASE_URL", ledger_url)

    result = rulegen("run", str(example_policy), "--json")

    report = document(result)
    _assert_is_a_status(report)
    assert result.exit_code == 0
    assert report["job"].startswith("default/expense-policy-")
    assert report["state"] == "awaiting_confirmation"
    assert (report["provider_calls"], report["calls_this_run"]) == (40, 40)
    assert len(report["action_set"]) == 64
    assert report["published"] is None
    assert _succeeded(report)["generate_rules"] == _succeeded(report)["generate_tests"] == 20
    assert "existing" not in report


def test_a_second_run_of_the_same_file_calls_nothing_and_says_so(rulegen: Command, example_policy: Path) -> None:
    first = document(rulegen("run", str(example_policy), "--json"))

    result = rulegen("run", str(example_policy), "--json")

    again = document(result)
    assert result.exit_code == 0
    assert again["existing"] is True
    assert (again["provider_calls"], again["calls_this_run"]) == (40, 0)
    assert (again["job"], again["action_set"]) == (first["job"], first["action_set"])


def test_a_run_that_confirms_publishes_and_a_second_one_finds_it_done(
    rulegen: Command, example_policy: Path, home: Path
) -> None:
    result = rulegen("run", str(example_policy), "--confirm", "--json")
    again = rulegen("run", str(example_policy), "--confirm", "--json")

    report = document(result)
    folder = Path(report["published"])
    assert (result.exit_code, report["state"]) == (0, "completed")
    assert folder == home / "published" / "default" / "expense-policy" / report["action_set"]
    assert json.loads((folder / "manifest.json").read_bytes())["action_set"] == report["action_set"]
    assert again.exit_code == 0
    assert (document(again)["published"], document(again)["calls_this_run"]) == (report["published"], 0)


def test_a_run_for_people_tells_the_same_in_words(rulegen: Command, policy_file: Path) -> None:
    result = rulegen("run", str(policy_file), "--key", "k")

    assert result.exit_code == 0
    assert "default/k  awaiting_confirmation" in result.stdout
    assert "by rulegen-pattern (not a language model)" in result.stdout
    assert "rulegen confirm default/k --action-set" in result.stdout
    assert "review it: rulegen review default/k" in result.stdout


def test_a_run_that_is_blocked_ends_with_exit_code_1_and_the_reason(
    rulegen: Command, policy_file: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _script(home, monkeypatch, {"rule-01": [{"do": "error"}]})

    result = rulegen("run", str(policy_file), "--key", "k", "--json")

    report = document(result)
    assert result.exit_code == 1
    assert report["state"] == "generating_rules"
    assert report["reason"].startswith("blocked: 1 item of generate_rules failed: rule-01 (provider_rejected)")
    assert report["stages"]["generate_rules"]["failed"] == 1


def test_a_blocked_job_goes_on_after_a_redrive_with_one_call_for_the_failed_item(
    rulegen: Command, policy_file: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _script(home, monkeypatch, {"generate_rules/rule-01": [{"do": "error"}]})
    rulegen("run", str(policy_file), "--key", "k")
    _script(home, monkeypatch, {})

    redriven = rulegen("redrive", "k", "--reason", "mended", "--json")
    nothing = rulegen("redrive", "k", "--reason", "again", "--json")
    result = rulegen("run", str(policy_file), "--key", "k", "--json")

    calls = [" ".join(line.split()[1:4]) for line in (home / "calls.log").read_text(encoding="utf-8").splitlines()]
    assert document(redriven)["redriven"] == {"generate_rules": ["rule-01"]}
    assert (nothing.exit_code, document(nothing)["redriven"]) == (0, {})
    assert document(result)["state"] == "awaiting_confirmation"
    assert calls.count("generate_rules rule-01 2") == 1


def test_a_submission_returns_at_once_and_calls_nothing(rulegen: Command, policy_file: Path) -> None:
    result = rulegen("submit", str(policy_file), "--key", "k", "--json")
    again = rulegen("submit", str(policy_file), "--key", "k", "--json")

    report = document(result)
    _assert_is_a_status(report)
    assert (result.exit_code, report["job"], report["state"]) == (0, "default/k", "extracting")
    assert (report["provider_calls"], report["action_set"]) == (0, None)
    assert "existing" not in report
    assert document(again)["existing"] is True


@pytest.mark.parametrize("verb", ["submit", "run"])
def test_a_key_that_is_taken_by_another_input_is_a_conflict(rulegen: Command, policy_file: Path, verb: str) -> None:
    rulegen("submit", str(policy_file), "--key", "k")
    policy_file.write_text("Meals are limited to $60 per day.\n", encoding="utf-8")

    result = rulegen(verb, str(policy_file), "--key", "k", "--json")

    assert result.exit_code == 1
    assert list(document(result)) == ["error"]
    assert document(result)["error"]["code"] == "submission_conflict"
    assert "'k'" in document(result)["error"]["message"]


BAD = {
    "no such file": (["gone.md"], "file_not_found"),
    "a folder": (["."], "not_a_file"),
    "empty": (["empty.md"], "empty_file"),
    "only headings": (["headings.md"], "no_clauses"),
    "binary": (["binary.md"], "not_text"),
    "wrong encoding": (["latin.md"], "wrong_encoding"),
    "too large": (["large.md"], "too_large"),
    "a text called a document": (["policy.docx"], "type_mismatch"),
    "a key of 300 characters": (["policy.md", "--key", "k" * 300], "invalid_submission_key"),
    "a key with a slash": (["policy.md", "--key", "a/b"], "invalid_submission_key"),
    "a key that climbs": (["policy.md", "--key", ".."], "invalid_submission_key"),
    "a key with a newline": (["policy.md", "--key", "a\nb"], "invalid_submission_key"),
    "no such tenant": (["policy.md", "--tenant", "nobody"], "tenant_not_found"),
    "no such tenant at all": (["policy.md", "--tenant", "../etc"], "invalid_tenant"),
}


@pytest.mark.parametrize("verb", ["submit", "run"])
@pytest.mark.parametrize(("arguments", "code"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_refused_with_a_typed_error_and_leaves_nothing(
    rulegen: Command, policy_file: Path, home: Path, verb: str, arguments: list[str], code: str
) -> None:
    folder = policy_file.parent
    (folder / "empty.md").touch()
    (folder / "headings.md").write_bytes(b"# One\n\n## Two\n")
    (folder / "binary.md").write_bytes(b"\x89PNG\r\n\x1a\n\x00\x01")
    (folder / "latin.md").write_bytes("Verpflegung für Gäste ist verboten.".encode("latin-1"))
    (folder / "policy.docx").write_bytes(policy_file.read_bytes())
    with (folder / "large.md").open("wb") as file:
        file.truncate(30_000_000)

    result = rulegen(verb, *arguments, "--json")

    assert (result.exit_code, document(result)["error"]["code"]) == (1, code)
    assert document(rulegen("list", "--json")) == {"jobs": []}
    assert not (home / "blobs").exists()


def test_an_error_for_people_is_one_line_on_standard_error(rulegen: Command) -> None:
    result = rulegen("run", "gone.md")

    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "error: there is no file gone.md [file_not_found]\n"


def test_a_status_is_found_by_both_names_of_a_job(rulegen: Command, policy_file: Path) -> None:
    rulegen("tenant", "add", "acme")
    rulegen("submit", str(policy_file), "--tenant", "acme", "--key", "k")

    whole = rulegen("status", "acme/k", "--json")
    beside = rulegen("status", "k", "--tenant", "acme", "--json")
    other = rulegen("status", "k", "--json")

    assert document(whole) == document(beside)
    assert document(whole)["job"] == "acme/k"
    _assert_is_a_status(document(whole))
    assert (other.exit_code, document(other)["error"]["code"]) == (1, "job_not_found")


@pytest.mark.parametrize("name", ["a/b/c", "..", "/k", "k/", "K/x", "a\nb"])
def test_a_job_name_that_is_not_well_formed_is_refused(rulegen: Command, name: str) -> None:
    result = rulegen("status", name, "--json")

    assert result.exit_code == 1
    assert document(result)["error"]["code"] in {"invalid_tenant", "invalid_submission_key"}


def test_a_list_has_every_job_with_its_reason(rulegen: Command, policy_file: Path) -> None:
    rulegen("tenant", "add", "acme")
    rulegen("run", str(policy_file), "--key", "one")
    rulegen("submit", str(policy_file), "--key", "two", "--tenant", "acme")

    every = document(rulegen("list", "--json"))["jobs"]
    acmes = document(rulegen("list", "--tenant", "acme", "--json"))["jobs"]
    shown = rulegen("list").stdout

    assert [job["job"] for job in every] == ["default/one", "acme/two"]
    assert [job["job"] for job in acmes] == ["acme/two"]
    assert set(every[0]) == {"job", "state", "reason", "rules", "provider_calls", "action_set"}
    assert "default/one" in shown
    assert "acme/two" in shown


def test_a_list_of_an_unknown_tenant_is_an_error_and_an_empty_one_says_what_to_do(rulegen: Command, home: Path) -> None:
    unknown = rulegen("list", "--tenant", "nobody", "--json")
    empty = rulegen("list")

    assert (unknown.exit_code, document(unknown)["error"]["code"]) == (1, "tenant_not_found")
    assert empty.exit_code == 0
    assert f"no jobs yet in {home}" in empty.stdout


def test_an_empty_list_names_the_ledger_that_is_elsewhere_and_no_password(
    rulegen: Command, home: Path, postgres_pool: PostgresPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with postgres_pool.database() as url:
        parsed = make_url(url)
        secret = parsed.set(password=parsed.password or "s3cret/", query={**parsed.query, "application_name": "s3cret"})
        monkeypatch.setenv("RULEGEN_DATABASE_URL", secret.render_as_string(hide_password=False))

        shown = rulegen("list").stdout

    assert f"no jobs yet in the ledger {parsed.database}" in shown
    assert str(home) not in shown
    assert "s3cret" not in shown
