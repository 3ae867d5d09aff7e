"""Durable state. SQL lives here and nowhere else."""
