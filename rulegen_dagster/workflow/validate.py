"""Validation: really execute every test of a job, and fix the action set that a person may confirm."""

from rulegen_dagster.domain.canonical import canonical_json
from rulegen_dagster.domain.work import Claim, Offer
from rulegen_dagster.rules.packs import load_vocabulary
from rulegen_dagster.rules.validation import validate_ruleset
from rulegen_dagster.workflow.bundle import action_set_content, build_bundle, clause_entries
from rulegen_dagster.workflow.runtime import Runtime


def validate(runtime: Runtime, claim: Claim) -> Offer:
    """Make the validation report; where it passes, the action set too.

    A report with failures is an accepted output as well: it tells why the job cannot be confirmed.
    """
    job = runtime.ledger.reads.job_by_id(claim.key.job_id)
    entries = clause_entries(runtime, job.job_id)
    report = validate_ruleset(entries, load_vocabulary(job.behaviour["vocabulary"].split("@")[0]))
    text = canonical_json(report.model_dump(mode="json"))
    if not report.passed:
        return Offer(claim=claim, output=text, passed=False)
    bundle = build_bundle(runtime, job, entries, text)
    return Offer(
        claim=claim, output=text, passed=True, action_set=canonical_json(action_set_content(job, entries, bundle))
    )
