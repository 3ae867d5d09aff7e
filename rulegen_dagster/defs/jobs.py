"""One asset job for each stage. Each works up to its stage within its partition set; what is accepted is reused.

A confirmation is no job: a person gives it through `rulegen confirm`, with the hash of what they saw.
"""

import dagster as dg

_ONE_JOB = " Choose one partition of `jobs`."
_RANGE = (
    " Choose partitions of `rules`; a backfill runs them in ranges of at most 100 keys, one run for each range."
    " To re-execute what failed, re-execute the failed run, or materialize the failed partitions on the asset's page:"
    " the ledger knows what is accepted, so nothing is generated twice. (This Dagster release cannot re-execute a"
    " job's backfill from failure; an asset's backfill it can.)"
)

parse = dg.define_asset_job(
    "parse",
    selection=["specification", "parsed_spec"],
    description="Parse a job's upload into clauses." + _ONE_JOB,
)
retrieve = dg.define_asset_job(
    "retrieve",
    selection=["specification", "parsed_spec", "clause_context"],
    description="Parse a job's upload and retrieve the context of its clauses." + _ONE_JOB,
)
generate_rules = dg.define_asset_job(
    "generate_rules",
    selection=["rule"],
    description="Generate the rules of clauses." + _RANGE,
)
generate_tests = dg.define_asset_job(
    "generate_tests",
    selection=["rule", "test_suite"],
    description="Generate rules and tests of clauses." + _RANGE,
)
validate = dg.define_asset_job(
    "validate",
    selection=["validation_report"],
    description="Execute every test of a job." + _ONE_JOB,
)
publish = dg.define_asset_job(
    "publish",
    selection=["ruleset"],
    description="Publish a job that a person has confirmed; until then the run says so and fails." + _ONE_JOB,
)
