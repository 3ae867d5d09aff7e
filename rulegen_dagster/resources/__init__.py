"""What Dagster needs to reach the workflow: resources, the accepting IO manager, asset factories, launches.

No module here says `from __future__ import annotations`: Dagster reads the annotations of what it decorates.
"""
