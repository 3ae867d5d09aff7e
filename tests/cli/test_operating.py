import sqlite3
import stat
from pathlib import Path

import pytest

from rulegen_dagster.ledger.migrate import HEAD
from tests.cli.conftest import Command, document

CHECKS = (
    *("python", "dagster", "sqlite", "ledger", "quotas", "blobs", "provider", "vocabulary", "evaluators"),
    *("confinement", "tracing", "decisions"),
)


def test_the_doctor_names_each_check(rulegen: Command) -> None:
    result = rulegen("doctor", "--json")

    report = document(result)
    assert (result.exit_code, report["ok"]) == (0, True)
    assert [check["name"] for check in report["checks"]] == list(CHECKS)
    assert all(set(check) == {"name", "passed", "detail"} and check["detail"] for check in report["checks"])


@pytest.mark.parametrize(
    ("variable", "value", "check"),
    [
        ("RULEGEN_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none", "ledger"),
        ("RULEGEN_DATABASE_URL", "mysql://root@localhost/x", "ledger"),
        ("RULEGEN_DATABASE_URL", "not a url", "ledger"),
        ("RULEGEN_PROVIDER", "gpt-nonesuch", "provider"),
        ("RULEGEN_VOCABULARY", "nonesuch", "vocabulary"),
    ],
)
def test_the_doctor_finds_what_is_wrong_and_goes_on(
    rulegen: Command, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, check: str
) -> None:
    monkeypatch.setenv(variable, value)

    result = rulegen("doctor", "--json")

    report = document(result)
    assert (result.exit_code, report["ok"]) == (1, False)
    assert [found["name"] for found in report["checks"] if not found["passed"]] == [check]


def test_the_doctor_finds_a_ledger_that_is_no_database(rulegen: Command, home: Path) -> None:
    (home / "ledger.sqlite3").write_bytes(b"this is no database, whatever its name says\n" * 100)

    result = rulegen("doctor", "--json")

    assert [found["name"] for found in document(result)["checks"] if not found["passed"]] == ["ledger"]


def test_a_home_that_is_a_file_is_a_clear_error(rulegen: Command, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "file").touch()
    monkeypatch.setenv("RULEGEN_HOME", str(home / "file"))

    listed = rulegen("list", "--json")
    examined = rulegen("doctor", "--json")

    assert (listed.exit_code, document(listed)["error"]["code"]) == (1, "ledger_unavailable")
    assert {found["name"] for found in document(examined)["checks"] if not found["passed"]} == {"ledger", "blobs"}


@pytest.mark.parametrize(
    ("variable", "value"),
    [("RULEGEN_SLOTS", "many"), ("RULEGEN_SLOTS", "0"), ("RULEGEN_LEASE_MS", "1"), ("RULEGEN_MAX_ATTEMPTS", "99")],
)
@pytest.mark.parametrize("command", [["list"], ["doctor"], ["migrate"], ["status", "k"]], ids=lambda c: c[0])
def test_a_setting_that_cannot_be_used_is_named(
    rulegen: Command, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, command: list[str]
) -> None:
    monkeypatch.setenv(variable, value)

    result = rulegen(*command, "--json")

    assert (result.exit_code, document(result)["error"]["code"]) == (1, "invalid_settings")
    assert variable in document(result)["error"]["message"]


def test_a_migration_makes_a_ledger_and_has_then_nothing_to_do(rulegen: Command, home: Path) -> None:
    (home / "ledger.sqlite3").unlink()

    first = document(rulegen("migrate", "--json"))
    second = document(rulegen("migrate", "--json"))

    assert first == {"before": None, "after": HEAD, "changed": True}
    assert second == {"before": HEAD, "after": HEAD, "changed": False}


@pytest.mark.parametrize(("revision", "told"), [("0001", "rulegen migrate"), ("9999", "newer release")])
def test_a_ledger_of_another_release_is_refused_with_what_mends_it(
    rulegen: Command, home: Path, revision: str, told: str
) -> None:
    ledger = sqlite3.connect(home / "ledger.sqlite3")
    with ledger:
        ledger.execute("UPDATE rulegen_revision SET version_num = ?", (revision,))
    ledger.close()

    listed = rulegen("list", "--json")

    assert (listed.exit_code, document(listed)["error"]["code"]) == (1, "ledger_revision")
    assert told in document(listed)["error"]["message"]


def test_a_revision_that_this_release_does_not_know_is_not_migrated(rulegen: Command, home: Path) -> None:
    ledger = sqlite3.connect(home / "ledger.sqlite3")
    with ledger:
        ledger.execute("UPDATE rulegen_revision SET version_num = '9999'")
    ledger.close()

    migrated = rulegen("migrate", "--json")

    assert (migrated.exit_code, document(migrated)["error"]["code"]) == (1, "ledger_revision")


def test_a_tenant_is_added_once_with_its_uploads_folder(rulegen: Command, home: Path) -> None:
    first = rulegen("tenant", "add", "acme", "--json")
    second = rulegen("tenant", "add", "acme", "--json")

    assert document(first) == {"tenant": "acme", "added": True}
    assert document(second) == {"tenant": "acme", "added": False}
    assert document(rulegen("tenant", "list", "--json"))["tenants"] == ["acme", "default"]
    assert stat.S_ISDIR((home / "uploads" / "acme").stat().st_mode)


@pytest.mark.parametrize("tenant", ["../up", "Acme", "", "a b", "t" * 33])
def test_a_tenant_whose_name_is_not_well_formed_is_refused(rulegen: Command, home: Path, tenant: str) -> None:
    result = rulegen("tenant", "add", tenant, "--json")

    assert (result.exit_code, document(result)["error"]["code"]) == (1, "invalid_tenant")
    assert not (home / "uploads").exists()


def test_a_tenants_folder_that_cannot_be_made_is_a_clear_error(rulegen: Command, home: Path) -> None:
    (home / "uploads").touch()

    result = rulegen("tenant", "add", "acme", "--json")

    assert (result.exit_code, document(result)["error"]["code"]) == (1, "no_uploads_folder")


def test_everything_is_kept_in_the_home(rulegen: Command, home: Path, policy_file: Path) -> None:
    rulegen("run", str(policy_file), "--confirm")

    assert {path.name for path in Path.cwd().iterdir()} == {"home", "policy.md"}
    assert {"ledger.sqlite3", "blobs", "published"} <= {path.name for path in home.iterdir()}


def test_a_home_that_is_not_named_is_a_hidden_folder_of_the_current_one(
    rulegen: Command, policy_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RULEGEN_HOME")

    rulegen("submit", str(policy_file))

    assert (policy_file.parent / ".rulegen" / "ledger.sqlite3").is_file()


def test_a_relative_home_counts_from_the_current_folder(
    rulegen: Command, policy_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RULEGEN_HOME", "some/where")

    rulegen("submit", str(policy_file))

    assert (policy_file.parent / "some" / "where" / "ledger.sqlite3").is_file()


def test_a_demo_that_was_never_begun_cannot_be_resumed(rulegen: Command, home: Path) -> None:
    result = rulegen("demo", "resume", "--db", str(home / "demo.sqlite3"), "--now", "12000", "--json")

    assert (result.exit_code, document(result)["error"]["code"]) == (1, "wrong_state")


def test_a_tenants_weight_and_limit_are_set_listed_and_taken_away(rulegen: Command, home: Path) -> None:
    rulegen("tenant", "add", "acme")

    changed = rulegen("tenant", "set", "acme", "--weight", "3", "--limit", "20", "--json")
    listed = rulegen("tenant", "list", "--json")
    free = rulegen("tenant", "set", "acme", "--no-limit")

    assert document(changed) == {"tenant": "acme", "weight": 3, "limit": 20, "in_flight": 0}
    assert document(listed)["shares"] == [
        {"tenant": "acme", "weight": 3, "limit": 20, "in_flight": 0},
        {"tenant": "default", "weight": 1, "limit": None, "in_flight": 0},
    ]
    assert (free.exit_code, free.stdout.strip()) == (0, "tenant acme has weight 3 and no limit")
    assert "acme: weight 3, no limit, 0 in flight" in rulegen("tenant", "list").stdout


@pytest.mark.parametrize(
    ("arguments", "exit_code"),
    [
        (["acme"], 2),
        (["acme", "--limit", "3", "--no-limit"], 2),
        (["acme", "--weight", "0"], 2),
        (["acme", "--limit", "-1"], 2),
        (["nobody", "--weight", "2"], 1),
        (["../up", "--weight", "2"], 1),
    ],
)
def test_a_share_that_cannot_be_set_is_refused(
    rulegen: Command, home: Path, arguments: list[str], exit_code: int
) -> None:
    rulegen("tenant", "add", "acme")

    assert rulegen("tenant", "set", *arguments).exit_code == exit_code
