"""`provider`: which providers there are, and whether the configured one answers."""

import time
from dataclasses import asdict
from typing import Annotated, Any

import typer

from rulegen_dagster.cli.output import JsonFlag, out, plain, print_json, reports_errors, settings
from rulegen_dagster.providers.registry import PROVIDER_NAMES, is_language_model, label_of, open_provider
from rulegen_dagster.settings import Settings

app = typer.Typer(help="Look at the providers, and try the configured one.", no_args_is_help=True)


@app.command("list")
@reports_errors
def list_providers(json_output: JsonFlag = False) -> None:
    """List the providers of this release, and which one is configured.

    \b
    Examples:
      rulegen provider list
      RULEGEN_PROVIDER=anthropic rulegen provider list --json
    """
    configured = settings().provider
    listed = [
        {
            "name": name,
            "is_language_model": is_language_model(name),
            "label": label_of(name),
            "is_configured": name == configured,
        }
        for name in PROVIDER_NAMES
    ]
    if json_output:
        print_json({"providers": listed})
        return
    for each in listed:
        mark = "*" if each["is_configured"] else " "
        out().print(plain(f"{mark} {each['name']}  {each['label'] or 'language model'}"))


@app.command("check")
@reports_errors
def check(
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.1, max=600, metavar="SECONDS", help="How long one request may take.")
    ] = 30.0,
    json_output: JsonFlag = False,
) -> None:
    """Send the configured model one tiny request for each output mode, and print what came back and what it cost.

    Each request is paid for like any other. Exit code 0 means that jobs would get answers. The model is the one that
    RULEGEN_PROVIDER, RULEGEN_MODEL, RULEGEN_BASE_URL and RULEGEN_API_KEY (or RULEGEN_API_KEY_FILE) name.

    \b
    Examples:
      RULEGEN_PROVIDER=anthropic RULEGEN_MODEL=claude-sonnet-4-6 RULEGEN_API_KEY_FILE=key.txt rulegen provider check
      RULEGEN_BASE_URL=http://127.0.0.1:8000/v1 rulegen provider check --timeout 5 --json
    """
    report = _checked(settings(), timeout)
    if json_output:
        print_json(report)
    else:
        _print(report)
    if not report["works"]:
        raise typer.Exit(1)


def _checked(configured: Settings, timeout_s: float) -> dict[str, Any]:
    if not is_language_model(configured.provider):
        identity = open_provider(configured.provider, configured.provider_settings).identity
        return {
            "provider": identity.name,
            "model": identity.model_id,
            "label": identity.label,
            "works": True,
            "requests": 0,
            "rungs": [],
        }
    if configured.provider not in PROVIDER_NAMES:
        open_provider(configured.provider, configured.provider_settings)
    # The client of models takes seconds to import; no other command needs it.
    from rulegen_dagster.providers.probe import probe  # noqa: PLC0415

    found = probe(configured.provider, configured.provider_settings, timeout_s=timeout_s, clock=time.perf_counter)
    told = asdict(found)
    costs = [rung.cost_micros for rung in found.rungs if rung.accepted]
    return {
        **told,
        "label": None,
        "works": found.works,
        "requests": sum(rung.code != "provider_unreachable" for rung in found.rungs),
        "cost_micros": None if None in costs else sum(cost or 0 for cost in costs),
        "model_reported": next((rung.model_id for rung in found.rungs if rung.model_id), None),
    }


def _print(report: dict[str, Any]) -> None:
    if report["label"]:
        out().print(plain(f"{report['provider']} is {report['label']}; nothing is sent anywhere"))
        return
    out().print(plain(f"{report['provider']} at {report['base_url']}, model {report['model']}"))
    if report["model_reported"]:
        out().print(plain(f"  says it is {report['model_reported']}"))
    for rung in report["rungs"]:
        mark = "*" if rung["mode"] == report["mode"] else " "
        out().print(plain(f"{mark} {rung['mode']:<11} {rung['latency_ms']} ms  {_told(rung)}"))
    temperature = "not sent" if report["temperature"] is None else f"{report['temperature']:g}"
    price = report["price"]
    per_million = (
        f"{_dollars(price['micros_in'])} in, {_dollars(price['micros_out'])} out for a million tokens"
        if price
        else "unknown; set RULEGEN_PRICE_IN and RULEGEN_PRICE_OUT"
    )
    cost = "unknown" if report["cost_micros"] is None else _dollars(report["cost_micros"])
    out().print(plain(f"  temperature {temperature}; price {per_million}"))
    out().print(plain(f"  {report['requests']} requests were sent, which cost {cost}"))
    if not report["works"]:
        out().print(plain(f"jobs use the output mode {report['mode']} (*), and would get no answer"))


def _dollars(micros: int) -> str:
    return f"{micros // 1_000_000}.{micros % 1_000_000:06d} USD"


def _told(rung: dict[str, Any]) -> str:
    if not rung["accepted"]:
        return f"no: {rung['message']} [{rung['code']}]"
    tokens = "tokens unknown" if rung["tokens_in"] is None else f"{rung['tokens_in']} + {rung['tokens_out']} tokens"
    return f"{'yes' if rung['obeyed'] else 'accepted, but the answer is not the JSON that was asked for'}, {tokens}"
