"""`python -m rulegen_dagster` is the `rulegen` command."""

from rulegen_dagster.cli.main import main

main()
