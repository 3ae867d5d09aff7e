"""`rule` and `test_suite`: one accepted output for each key, many keys in one run."""

import dagster as dg

from rulegen_dagster.defs.partitions import all_of, rules_partitions
from rulegen_dagster.resources.asset_factory import rule_key_assets

generation = rule_key_assets(
    name="generation",
    partitions_def=rules_partitions,
    specs=[
        dg.AssetSpec(
            "rule",
            deps=[all_of("clause_context")],
            partitions_def=rules_partitions,
            group_name="generation",
            kinds={"python"},
            code_version="1",
            description="The accepted rules of one normative clause, or the reason why it has none.",
        ),
        dg.AssetSpec(
            "test_suite",
            deps=["rule"],
            partitions_def=rules_partitions,
            group_name="generation",
            kinds={"python"},
            code_version="1",
            description="The accepted test cases of one clause, made from the clause without a look at its rules.",
        ),
    ],
)
