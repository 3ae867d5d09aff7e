"""The `rulegen` command."""
