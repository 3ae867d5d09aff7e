"""Validation: really execute every test of a job, hold it to its policy, and fix the action set to be confirmed."""

from rulegen_dagster.domain.canonical import canonical_json
from rulegen_dagster.domain.work import Claim, Offer
from rulegen_dagster.rules.quality import Waiver
from rulegen_dagster.rules.sandbox import assess_in_sandbox
from rulegen_dagster.workflow.bundle import action_set_content, build_bundle, clause_entries
from rulegen_dagster.workflow.frozen import frozen_policy, frozen_vocabulary, honoured
from rulegen_dagster.workflow.runtime import Runtime


def validate(runtime: Runtime, claim: Claim) -> Offer:
    """Make the validation report; where it passes, the action set too.

    A report with failures is an accepted output as well: it tells why the job cannot be confirmed. Raises
    `RuleExecutionError` where the rules could not be executed this time, and `IncompatibleError` where this release
    cannot read the vocabulary or the policy that the job froze, which is found out before the claim.
    """
    job = runtime.ledger.reads.job_by_id(claim.key.job_id)
    entries = clause_entries(runtime, job.job_id)
    vocabulary = honoured(job, frozen_vocabulary(runtime, job))
    policy = honoured(job, frozen_policy(runtime, job))
    # None is added while this attempt holds the item, so that the bundle below has the same ones.
    given = runtime.ledger.waivers.of(job.job_id)
    waivers = [Waiver(clause_ordinal=one.clause_ordinal, actor=one.actor, reason=one.reason) for one in given]
    report = assess_in_sandbox(entries, vocabulary, policy, waivers)
    text = canonical_json(report.model_dump(mode="json"))
    if not report.passed:
        return Offer(claim=claim, output=text, passed=False)
    bundle = build_bundle(runtime, job, entries, text)
    content = action_set_content(job, entries, bundle, given)
    return Offer(claim=claim, output=text, passed=True, action_set=canonical_json(content))
