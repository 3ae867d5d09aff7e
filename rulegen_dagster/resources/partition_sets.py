"""Partition sets: tells Dagster the ledger's keys, once and in order."""

from collections.abc import Sequence

import dagster as dg

from rulegen_dagster.workflow.plan import jobs_to_register
from rulegen_dagster.workflow.runtime import Runtime

JOBS_SET = "jobs"
RULES_SET = "rules"
_TRIES = 5


def register_keys(instance: dg.DagsterInstance, set_name: str, keys: Sequence[str]) -> int:
    """Add the keys that are missing, all in one call, in the order given; return how many there were.

    Two processes may add the same keys at once; on SQLite one of the two calls then fails and changes nothing, so a
    failed call is tried again with what is still missing. Keys are never removed: a key that comes back would show
    what was materialized under it before.
    """
    known = set(instance.get_dynamic_partitions(set_name))
    missing = [key for key in keys if key not in known]
    for tries_left in range(_TRIES - 1, -1, -1):
        if not missing:
            break
        try:
            instance.add_dynamic_partitions(set_name, missing)
        except Exception:
            # The storage's own exception types are not part of Dagster's public interface.
            if not tries_left:
                raise
        else:
            return len(keys) - len(known.intersection(keys))
        present = set(instance.get_dynamic_partitions(set_name))
        missing = [key for key in missing if key not in present]
    return len(keys) - len(known.intersection(keys))


def register_job(instance: dg.DagsterInstance, runtime: Runtime, job_id: int) -> None:
    """Register a job's own key, and its rule keys where it has been parsed."""
    register_keys(instance, JOBS_SET, [runtime.ledger.reads.job_by_id(job_id).partition_key])
    register_keys(instance, RULES_SET, runtime.ledger.reads.rule_partition_keys(job_id))


def register_jobs(instance: dg.DagsterInstance, runtime: Runtime) -> None:
    """Register the keys of every job that Dagster may lack; keys that it lost come back here."""
    jobs = jobs_to_register(runtime, set(instance.get_dynamic_partitions(JOBS_SET)))
    register_keys(instance, JOBS_SET, [job.partition_key for job in jobs])
    known = set(instance.get_dynamic_partitions(RULES_SET))
    for job in jobs:
        keys = runtime.ledger.reads.rule_partition_keys(job.job_id)
        if not known.issuperset(keys):
            register_keys(instance, RULES_SET, keys)
