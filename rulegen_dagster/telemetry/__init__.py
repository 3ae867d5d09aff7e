"""Telemetry: traces of the work, and the text in which metrics are told; nothing of it decides anything."""
