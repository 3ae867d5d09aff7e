"""Pure values and decisions: no input or output, no clock, no randomness, no Dagster."""
