"""One asset job for each stage. Each works up to its stage within its partition set; what is accepted is reused.

A confirmation is no job: a person gives it through `rulegen confirm`, with the hash of what they saw.
"""

import dagster as dg

from rulegen_dagster.defs.partitions import jobs_partitions, rules_partitions

_ONE_JOB = " Choose one partition of `jobs`."
_RANGE = (
    " Choose partitions of `rules`: launched as a backfill, the keys run in ranges of at most 100 in one run each."
    " To re-execute what failed, use the backfill of the assets or the failed run itself; the ledger knows what is"
    " accepted, so nothing is generated twice."
)

parse = dg.define_asset_job(
    "parse",
    selection=["specification", "parsed_spec"],
    partitions_def=jobs_partitions,
    description="Parse a job's upload into clauses." + _ONE_JOB,
)
retrieve = dg.define_asset_job(
    "retrieve",
    selection=["specification", "parsed_spec", "clause_context"],
    partitions_def=jobs_partitions,
    description="Parse a job's upload and retrieve the context of its clauses." + _ONE_JOB,
)
generate_rules = dg.define_asset_job(
    "generate_rules",
    selection=["rule"],
    partitions_def=rules_partitions,
    description="Generate the rules of clauses." + _RANGE,
)
generate_tests = dg.define_asset_job(
    "generate_tests",
    selection=["rule", "test_suite"],
    partitions_def=rules_partitions,
    description="Generate rules and tests of clauses." + _RANGE,
)
validate = dg.define_asset_job(
    "validate",
    selection=["validation_report"],
    partitions_def=jobs_partitions,
    description="Execute every test of a job." + _ONE_JOB,
)
publish = dg.define_asset_job(
    "publish",
    selection=["ruleset"],
    partitions_def=jobs_partitions,
    description="Publish a job that a person has confirmed; until then the run says so and fails." + _ONE_JOB,
)
