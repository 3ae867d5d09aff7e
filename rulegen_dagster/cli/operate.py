"""`doctor`, `migrate`, `dev`, `tenant`: running the system."""

from typing import Annotated

import typer
from rich.text import Text

from rulegen_dagster.cli.output import JsonFlag, out, plain, print_json, reports_errors, runtime, settings
from rulegen_dagster.domain.errors import InputError
from rulegen_dagster.domain.identity import check_tenant
from rulegen_dagster.ledger.database import open_database
from rulegen_dagster.ledger.migrate import migrate
from rulegen_dagster.ledger.tenants import MAX_LIMIT, MAX_WEIGHT
from rulegen_dagster.workflow.doctor import examine

tenants = typer.Typer(help="The tenants that may own jobs.", no_args_is_help=True)


@reports_errors
def doctor(json_output: JsonFlag = False) -> None:
    """Check this installation: versions, ledger, blobs, provider, vocabulary, both rule evaluators.

    Exit code 1 where a check fails; each failed check says what to do.

    \b
    Examples:
      rulegen doctor
      RULEGEN_DATABASE_URL=postgresql://localhost/rulegen rulegen doctor --json
    """
    checks = examine(settings())
    passed = all(check.passed for check in checks)
    if json_output:
        print_json({"ok": passed, "checks": [vars(check) for check in checks]})
    else:
        for check in checks:
            mark = Text("ok    ", style="green") if check.passed else Text("FAILED", style="bold red")
            out().print(mark, plain(f" {check.name}: {check.detail}"), sep="")
    if not passed:
        raise typer.Exit(1)


@reports_errors
def migrate_ledger(json_output: JsonFlag = False) -> None:
    """Bring the ledger's schema to this release, in one transaction. Safe to repeat.

    \b
    Examples:
      rulegen migrate
      RULEGEN_DATABASE_URL=postgresql://localhost/rulegen rulegen migrate
    """
    database = open_database(settings().ledger_url)
    try:
        before, after = migrate(database)
    finally:
        database.close()
    if json_output:
        print_json({"before": before, "after": after, "changed": before != after})
    elif before == after:
        out().print(f"the ledger is at revision {after}; nothing to do")
    else:
        out().print(f"the ledger went from {before or 'nothing'} to revision {after}")


@reports_errors
def dev(
    port: Annotated[int, typer.Option("--port", help="Port of the web page, on 127.0.0.1.", min=1, max=65535)] = 3000,
    json_output: JsonFlag = False,
) -> None:
    """Start Dagster's web page and daemon for this project; Ctrl-C ends both.

    Dagster keeps its own files in $RULEGEN_HOME/dagster. Drop a specification into
    $RULEGEN_HOME/uploads/default/ and watch it become a job; confirm it with 'rulegen confirm'.

    \b
    Examples:
      rulegen dev
      RULEGEN_HOME=/srv/rulegen rulegen dev --port 3333
    """
    from rulegen_dagster.cli.dev import serve  # noqa: PLC0415 (Dagster takes a second to import)

    raise typer.Exit(serve(settings(), port, json_output=json_output))


@tenants.command("add")
@reports_errors
def add_tenant(
    tenant: Annotated[str, typer.Argument(help="Lower-case letters, digits, '-' and '_'.")],
    json_output: JsonFlag = False,
) -> None:
    """Add a tenant, and its uploads folder.

    \b
    Example:
      rulegen tenant add acme
    """
    check_tenant(tenant)
    with runtime() as opened:
        added = opened.ledger.submissions.add_tenant(tenant)
        folder = opened.settings.uploads_path / tenant
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"the folder {folder} cannot be made: {error.strerror}", code="no_uploads_folder"
            ) from error
    if json_output:
        print_json({"tenant": tenant, "added": added})
    else:
        out().print(f"tenant {tenant} {'is added' if added else 'was there before'}")


@tenants.command("list")
@reports_errors
def list_tenants(json_output: JsonFlag = False) -> None:
    """List the tenants, with their weights, their limits, and how many of their calls are in flight.

    \b
    Example:
      rulegen tenant list --json
    """
    with runtime() as opened:
        found = opened.ledger.tenants.shares()
    if json_output:
        print_json({"tenants": [share.tenant for share in found], "shares": [vars(share) for share in found]})
    else:
        for share in found:
            limit = "no limit" if share.limit is None else f"limit {share.limit}"
            out().print(plain(f"{share.tenant}: weight {share.weight}, {limit}, {share.in_flight} in flight"))


@tenants.command("set")
@reports_errors
def set_tenant(
    tenant: Annotated[str, typer.Argument(help="A tenant that was added before.")],
    weight: Annotated[
        int | None,
        typer.Option("--weight", help="Its share of the slots beside other tenants.", min=1, max=MAX_WEIGHT),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", help="How many of its calls may be in flight at once; 0 stops it.", min=0, max=MAX_LIMIT
        ),
    ] = None,
    no_limit: Annotated[bool, typer.Option("--no-limit", help="Take its limit away.")] = False,
    json_output: JsonFlag = False,
) -> None:
    """Set a tenant's weight and limit, over all processes; the next claim goes by them.

    Free slots go to the tenant with the fewest calls in flight for its weight. What is in flight beyond a new limit
    is finished.

    \b
    Examples:
      rulegen tenant set acme --weight 3 --limit 20
      rulegen tenant set acme --no-limit
    """
    if weight is None and limit is None and not no_limit:
        raise typer.BadParameter("give --weight, --limit or --no-limit")
    if limit is not None and no_limit:
        raise typer.BadParameter("--limit and --no-limit exclude each other")
    check_tenant(tenant)
    with runtime() as opened:
        opened.ledger.tenants.set(tenant, weight=weight, limit=limit, no_limit=no_limit)
        (share,) = (one for one in opened.ledger.tenants.shares() if one.tenant == tenant)
    if json_output:
        print_json(vars(share))
    else:
        shown = "no limit" if share.limit is None else f"limit {share.limit}"
        out().print(plain(f"tenant {tenant} has weight {share.weight} and {shown}"))
