"""`rulegen quota`: what a provider's account, a tenant or a job may use, and what is left of it."""

from decimal import Decimal, InvalidOperation
from typing import Annotated, Any

import typer

from rulegen_dagster.cli.output import JsonFlag, out, plain, print_json, reports_errors, runtime
from rulegen_dagster.domain.errors import InputError
from rulegen_dagster.domain.quota_scope import QuotaScope
from rulegen_dagster.domain.text import moment
from rulegen_dagster.ledger.quotas import QuotaState
from rulegen_dagster.workflow.quotas import bucket_report, check_provider, dollars

app = typer.Typer(
    help="Requests, tokens and money that a provider's account, a tenant or a job may use.", no_args_is_help=True
)

ScopeArgument = Annotated[str, typer.Argument(help="provider:NAME/MODEL, tenant:T or job:T/KEY.")]

_MOST_REQUESTS = 10**9
_MOST_TOKENS = 10**12
_MOST_CALLS = 10**6
_MOST_DOLLARS = Decimal(10**9)


def _micros(text: str) -> int:
    """Read an amount of US dollars as micro-USD. Raises `BadParameter`, which is wrong usage (exit code 2)."""
    try:
        amount = Decimal(text)
    except InvalidOperation:
        amount = Decimal(-1)
    # A NaN compares to nothing.
    if not (amount.is_finite() and 0 <= amount <= _MOST_DOLLARS):
        raise typer.BadParameter("give an amount of US dollars, such as 12.50")
    micros = amount * 1_000_000
    if micros != micros.to_integral_value():
        raise typer.BadParameter("an amount has six decimal places at most")
    return int(micros)


@app.command("set")
@reports_errors
def set_quota(
    scope: ScopeArgument,
    *,
    rpm: Annotated[
        int | None, typer.Option("--rpm", help="Requests a minute.", min=1, max=_MOST_REQUESTS, metavar="N")
    ] = None,
    tpm: Annotated[
        int | None, typer.Option("--tpm", help="Tokens a minute.", min=1, max=_MOST_TOKENS, metavar="N")
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", help="Calls at once; 0 stops them.", min=0, max=_MOST_CALLS, metavar="N"),
    ] = None,
    budget: Annotated[
        int | None, typer.Option("--budget", parser=_micros, help="US dollars in all.", metavar="USD")
    ] = None,
    no_rpm: Annotated[bool, typer.Option("--no-rpm", help="Take the limit of requests away.")] = False,
    no_tpm: Annotated[bool, typer.Option("--no-tpm", help="Take the limit of tokens away.")] = False,
    no_concurrency: Annotated[bool, typer.Option("--no-concurrency", help="Take that limit away.")] = False,
    no_budget: Annotated[bool, typer.Option("--no-budget", help="Take the budget away.")] = False,
    json_output: JsonFlag = False,
) -> None:
    """Set what a scope may use, over all processes of the ledger; what is not named stays as it is.

    A call is made only where the provider's account, its tenant and its job all have room for the most that it may use,
    and is charged with what it did use. Items without room wait; they use no attempt up. A budget counts what the
    scope's calls have cost before, too; a job whose budget is spent waits, or ends with RULEGEN_BUDGET_POLICY=stop.

    Set a provider's own limits, as its account page tells them. Engines at work see a first quota within a second.

    \b
    Examples:
      rulegen quota set provider:openai-compatible/gpt-5-mini --rpm 120 --tpm 9000
      rulegen quota set tenant:acme --budget 25 --concurrency 4
      rulegen quota set job:acme/travel-2027 --budget 1.50 --json
      rulegen quota set tenant:acme --no-budget
    """
    changes = {
        **_changed("requests_per_minute", "rpm", rpm, is_taken_away=no_rpm),
        **_changed("tokens_per_minute", "tpm", tpm, is_taken_away=no_tpm),
        **_changed("concurrency", "concurrency", concurrency, is_taken_away=no_concurrency),
        **_changed("budget_micros", "budget", budget, is_taken_away=no_budget),
    }
    if not changes:
        raise typer.BadParameter("give --rpm, --tpm, --concurrency or --budget, or one of them with 'no-' before it")
    parsed = QuotaScope.parse(scope)
    # What a provider of another release left behind can still be taken away.
    if any(value is not None for value in changes.values()):
        check_provider(parsed)
    with runtime() as opened:
        state = opened.ledger.quotas.set(parsed, changes)
    _show([state], json_output=json_output, one=True)


@app.command("list")
@reports_errors
def list_quotas(json_output: JsonFlag = False) -> None:
    """List the scopes that have a quota, with what is left of it, and the accounts that are refused.

    \b
    Examples:
      rulegen quota list
      rulegen quota list --json
    """
    with runtime() as opened:
        found = opened.ledger.quotas.list()
    _show(found, json_output=json_output)


@app.command("reset")
@reports_errors
def reset_quota(scope: ScopeArgument, json_output: JsonFlag = False) -> None:
    """Let calls go on at once, after an account was mended or a provider asked to wait; what was spent stays spent.

    \b
    Examples:
      rulegen quota reset provider:openai-compatible/gpt-5-mini
    """
    parsed = QuotaScope.parse(scope)
    with runtime() as opened:
        if not opened.ledger.quotas.reset(parsed):
            raise InputError(
                f"{parsed} has no quota and no breaker; 'rulegen quota list' shows those that have", code="no_quota"
            )
        (state,) = (state for state in opened.ledger.quotas.list() if state.scope == str(parsed))
    _show([state], json_output=json_output, one=True)


def _changed(limit: str, option: str, value: int | None, *, is_taken_away: bool) -> dict[str, int | None]:
    """Return what a limit is changed to; empty where it stays as it is."""
    if value is not None and is_taken_away:
        raise typer.BadParameter(f"--{option} and --no-{option} exclude each other")
    return {limit: value} if is_taken_away or value is not None else {}


def _show(states: tuple[QuotaState, ...] | list[QuotaState], *, json_output: bool, one: bool = False) -> None:
    reports = [bucket_report(state) for state in states]
    if json_output:
        print_json(reports[0] if one else {"quotas": reports})
        return
    if not reports:
        out().print("no quota is set; 'rulegen quota set provider:NAME/MODEL --rpm N' sets one")
    for state, report in zip(states, reports, strict=True):
        out().print(plain(f"{report['scope']}: {_line(report)}", "bold" if report["breaker"] != "closed" else ""))
        if report["breaker"] != "closed":
            out().print(
                plain(
                    f"  the account is refused ({report['refused_code']}); the next try is"
                    f" {moment(report['next_probe_ms'], state.now)}, or after 'rulegen quota reset {report['scope']}'"
                )
            )
        if report["blocked_until_ms"] is not None:
            out().print(plain(f"  the provider asked to wait until {moment(report['blocked_until_ms'], state.now)}"))


def _line(report: dict[str, Any]) -> str:
    parts = []
    if report["requests_per_minute"] is not None:
        parts.append(f"{report['requests_left']} of {report['requests_per_minute']} requests a minute left")
    if report["tokens_per_minute"] is not None:
        parts.append(f"{report['tokens_left']} of {report['tokens_per_minute']} tokens a minute left")
    if report["concurrency"] is not None:
        parts.append(f"{report['in_flight']} of {report['concurrency']} calls in flight")
    if report["budget_micros"] is not None:
        parts.append(f"{dollars(report['charged_micros'])} of {dollars(report['budget_micros'])} spent")
    return ", ".join(parts) or "no limit"
