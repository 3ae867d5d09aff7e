"""`rulegen quota`: set, listed and reset, in words and as JSON; a refused account is told by the doctor too."""

from pathlib import Path

import pytest
import sqlalchemy as sa
import yaml

from rulegen_dagster.domain.quota_scope import QuotaScope
from rulegen_dagster.domain.retry import RetryPolicy
from rulegen_dagster.ledger.database import open_database
from rulegen_dagster.ledger.quota_schema import quota
from rulegen_dagster.ledger.store import open_ledger
from rulegen_dagster.providers.registry import PROVIDER_NAMES
from tests.cli.conftest import Command, document
from tests.conftest import LENIENT

SCOPE = "provider:openai-compatible/gpt-5-mini"


def test_a_quota_is_set_listed_and_taken_away(rulegen: Command) -> None:
    made = document(rulegen("quota", "set", SCOPE, "--rpm", "120", "--tpm", "9000", "--json"))
    rulegen("quota", "set", "tenant:default", "--budget", "12.50", "--concurrency", "2")
    rulegen("quota", "set", SCOPE, "--no-tpm")

    listed = document(rulegen("quota", "list", "--json"))["quotas"]

    assert (made["scope"], made["requests_per_minute"], made["requests_left"]) == (SCOPE, 120, 120)
    assert [one["scope"] for one in listed] == [SCOPE, "tenant:default"]
    assert (listed[0]["requests_per_minute"], listed[0]["tokens_per_minute"]) == (120, None)
    assert (listed[1]["budget_micros"], listed[1]["concurrency"], listed[1]["breaker"]) == (12_500_000, 2, "closed")
    shown = rulegen("quota", "list").stdout
    assert f"{SCOPE}: 120 of 120 requests a minute left" in shown
    assert "tenant:default: 0 of 2 calls in flight, USD 0.00 of USD 12.50 spent" in shown


def test_without_a_quota_the_list_says_how_to_set_one(rulegen: Command) -> None:
    assert "rulegen quota set" in rulegen("quota", "list").stdout
    assert document(rulegen("quota", "list", "--json")) == {"quotas": []}


@pytest.mark.parametrize(
    "arguments",
    [
        ["set", SCOPE],
        ["set", SCOPE, "--rpm", "0"],
        ["set", SCOPE, "--rpm", "5", "--no-rpm"],
        ["set", SCOPE, "--budget", "-1"],
        ["set", SCOPE, "--budget", "nan"],
        ["set", SCOPE, "--budget", "0.0000001"],
    ],
)
def test_a_wrong_limit_is_wrong_usage(rulegen: Command, arguments: list[str]) -> None:
    assert rulegen("quota", *arguments).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["set", "account:x", "--rpm", "5"], "invalid_scope"),
        (["set", "tenant:nobody", "--rpm", "5"], "tenant_not_found"),
        (["set", "job:default/none", "--budget", "5"], "job_not_found"),
        (["reset", SCOPE], "no_quota"),
    ],
)
def test_a_scope_that_is_not_there_is_told(rulegen: Command, arguments: list[str], code: str) -> None:
    result = rulegen("quota", *arguments, "--json")

    assert (result.exit_code, document(result)["error"]["code"]) == (1, code)


def test_a_limit_of_a_provider_that_this_release_does_not_have_is_refused_with_those_that_it_has(
    rulegen: Command,
) -> None:
    refused = rulegen("quota", "set", "provider:openai/gpt-5-mini", "--rpm", "120", "--json")

    error = document(refused)["error"]
    assert (refused.exit_code, error["code"]) == (1, "invalid_provider")
    assert all(name in error["message"] for name in PROVIDER_NAMES)
    assert document(rulegen("quota", "list", "--json")) == {"quotas": []}


def test_a_limit_of_a_provider_that_is_no_more_can_be_taken_away(rulegen: Command, home: Path) -> None:
    scope = QuotaScope.of_provider("openai", "gpt-5-mini")
    ledger = open_ledger(f"sqlite:///{home / 'ledger.sqlite3'}", RetryPolicy())
    ledger.quotas.set(scope, {"requests_per_minute": 5})
    ledger.close()

    changed = rulegen("quota", "set", str(scope), "--no-rpm", "--json")

    assert (changed.exit_code, document(changed)["requests_per_minute"]) == (0, None)


def test_a_job_whose_tenant_has_spent_its_budget_waits_and_goes_on_with_more(
    rulegen: Command, home: Path, policy_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ok = {"do": "ok", "tokens_in": 300, "tokens_out": 50, "cost_micros": 175}
    cost = {"overhead_tokens": 100, "max_tokens": 400, "price_in": 250_000, "price_out": 2_000_000}
    script = home / "script.yaml"
    script.write_text(yaml.safe_dump({"default": [ok], "call_cost": cost}), encoding="utf-8")
    monkeypatch.setenv("RULEGEN_PROVIDER", "rulegen-scripted")
    monkeypatch.setenv("RULEGEN_SCRIPT", str(script))
    monkeypatch.setenv("RULEGEN_POLICY", LENIENT)
    monkeypatch.setenv("RULEGEN_SLOTS", "1")
    rulegen("quota", "set", "tenant:default", "--budget", "0.001")

    held = rulegen("run", str(policy_file), "--key", "policy", "--json")
    why = document(rulegen("why", "policy", "--json"))
    rulegen("quota", "set", "tenant:default", "--budget", "1")
    ended = rulegen("run", str(policy_file), "--key", "policy", "--json")

    assert (held.exit_code, document(held)["reason_code"]) == (1, "quota_budget")
    assert (why["evidence"]["scope"], why["evidence"]["budget_micros"]) == ("tenant:default", 1_000)
    assert "'rulegen quota set tenant:default --budget USD' raises it" in why["reason"]
    assert (ended.exit_code, document(ended)["state"]) == (0, "awaiting_confirmation")
    assert document(ended)["charges"]["settled"]["cost_micros"] == 175 * document(ended)["charges"]["settled"]["calls"]


def test_a_refused_account_is_told_until_a_person_resets_it(rulegen: Command, home: Path) -> None:
    rulegen("quota", "set", SCOPE, "--rpm", "120")
    database = open_database(f"sqlite:///{home / 'ledger.sqlite3'}")
    with database.write() as connection:
        refused = {"refused_code": "provider_account", "refused_at": 1, "probe_at": 60_001, "refusals": 1}
        connection.execute(sa.update(quota).values(**refused, blocked_until=4_000_000_000_000))
    database.close()

    listed = rulegen("quota", "list").stdout
    checks = {check["name"]: check for check in document(rulegen("doctor", "--json"))["checks"]}

    assert "the account is refused (provider_account)" in listed
    assert "the provider asked to wait until" in listed
    assert not checks["quotas"]["passed"]
    assert f"'rulegen quota reset {SCOPE}'" in checks["quotas"]["detail"]
    reset = document(rulegen("quota", "reset", SCOPE, "--json"))
    assert (reset["breaker"], reset["blocked_until_ms"]) == ("closed", None)
    assert rulegen("doctor").exit_code == 0
