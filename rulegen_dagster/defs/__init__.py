"""Dagster definitions only; each body is a few lines into the workflow."""
