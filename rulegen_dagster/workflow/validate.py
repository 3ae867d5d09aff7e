"""Validation: really execute every test of a job, hold it to its policy, and fix the action set to be confirmed."""

from rulegen_dagster.domain.canonical import canonical_json, digest_of
from rulegen_dagster.domain.errors import BehaviourChangedError
from rulegen_dagster.domain.policy import ValidationPolicy
from rulegen_dagster.domain.work import Claim, Offer
from rulegen_dagster.ledger.reads import JobRecord
from rulegen_dagster.rules.packs import load_vocabulary
from rulegen_dagster.rules.policies import load_policy
from rulegen_dagster.rules.quality import Waiver
from rulegen_dagster.rules.sandbox import assess_in_sandbox
from rulegen_dagster.workflow.bundle import action_set_content, build_bundle, clause_entries
from rulegen_dagster.workflow.runtime import Runtime


def validate(runtime: Runtime, claim: Claim) -> Offer:
    """Make the validation report; where it passes, the action set too.

    A report with failures is an accepted output as well: it tells why the job cannot be confirmed. Raises
    `RuleExecutionError` where the rules could not be executed this time, `BehaviourChangedError` or `PolicyError` where
    this release lacks the policy that the job froze.
    """
    job = runtime.ledger.reads.job_by_id(claim.key.job_id)
    entries = clause_entries(runtime, job.job_id)
    vocabulary = load_vocabulary(job.behaviour["vocabulary"].split("@")[0])
    # None is added while this attempt holds the item, so that the bundle below has the same ones.
    given = runtime.ledger.waivers.of(job.job_id)
    waivers = [Waiver(clause_ordinal=one.clause_ordinal, actor=one.actor, reason=one.reason) for one in given]
    report = assess_in_sandbox(entries, vocabulary, frozen_policy(job), waivers)
    text = canonical_json(report.model_dump(mode="json"))
    if not report.passed:
        return Offer(claim=claim, output=text, passed=False)
    bundle = build_bundle(runtime, job, entries, text)
    content = action_set_content(job, entries, bundle, given)
    return Offer(claim=claim, output=text, passed=True, action_set=canonical_json(content))


def frozen_policy(job: JobRecord) -> ValidationPolicy:
    """Return the validation policy that a job froze. Raises `BehaviourChangedError` or `PolicyError`."""
    # Jobs of the first release wrote name/version, and no digest.
    name = job.behaviour["validation_policy"].replace("/", "@").split("@")[0]
    policy = load_policy(name)
    frozen = job.behaviour.get("validation_policy_digest")
    if frozen is not None and frozen != digest_of(policy.model_dump(mode="json")):
        raise BehaviourChangedError(
            f"the job {job.name} froze the validation policy {job.behaviour['validation_policy']}, and this release has"
            f" another {policy.label}; finish the job with the release that began it, or submit the specification under"
            " a new key"
        )
    return policy
