"""The two partition sets. Edges between them use `AllPartitionMapping`: Dagster's page and daemon know no other."""

import dagster as dg

from rulegen_dagster.resources.partition_sets import JOBS_SET, RULES_SET

jobs_partitions = dg.DynamicPartitionsDefinition(name=JOBS_SET)
rules_partitions = dg.DynamicPartitionsDefinition(name=RULES_SET)


def all_of(asset: str) -> dg.AssetDep:
    """Return a dependency on every partition of an asset; completeness itself is a question to the ledger."""
    return dg.AssetDep(asset, partition_mapping=dg.AllPartitionMapping())
