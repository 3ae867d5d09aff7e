"""`doctor`, `migrate`, `dev`, `tenant`: running the system."""

from typing import Annotated

import typer
from rich.text import Text

from rulegen_dagster.cli.output import JsonFlag, out, plain, print_json, reports_errors, runtime, settings
from rulegen_dagster.domain.errors import InputError
from rulegen_dagster.domain.identity import check_tenant
from rulegen_dagster.ledger.database import open_database
from rulegen_dagster.ledger.migrate import migrate
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
    """List the tenants.

    \b
    Example:
      rulegen tenant list --json
    """
    with runtime() as opened:
        found = opened.ledger.submissions.tenants()
    if json_output:
        print_json({"tenants": list(found)})
    else:
        for tenant in found:
            out().print(tenant)
