"""One attempt at one rule or test item: ask the provider, validate the draft, offer the output."""

import asyncio
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from rulegen_dagster.domain.canonical import canonical_json
from rulegen_dagster.domain.clause import Clause, ContextEntry
from rulegen_dagster.domain.errors import (
    DraftRejectedError,
    Failure,
    LedgerError,
    ProviderAccountError,
    ProviderAmbiguousError,
    ProviderError,
    ProviderPermanentError,
    ProviderRateLimitedError,
    ProviderRetryableError,
)
from rulegen_dagster.domain.failpoints import Failpoint, reach
from rulegen_dagster.domain.refusal import may_be_repaired, refusals_of
from rulegen_dagster.domain.rule import NoRuleDraft, RuleOutput, SuiteOutput
from rulegen_dagster.domain.states import AttemptOutcome, Stage, WorkState
from rulegen_dagster.domain.text import printable
from rulegen_dagster.domain.vocabulary import Vocabulary
from rulegen_dagster.domain.waiver import waived_output
from rulegen_dagster.domain.work import Claim, FailedAttempt, Offer, Usage
from rulegen_dagster.providers.port import ANSWER_PROBLEMS, Provider, ProviderReply, ProviderRequest
from rulegen_dagster.rules.drafts import read_rules_draft, read_tests_draft
from rulegen_dagster.telemetry.tracing import Tracing
from rulegen_dagster.workflow.behaviours import Checked, ask, check
from rulegen_dagster.workflow.call_spans import traced_call
from rulegen_dagster.workflow.deadlines import budget_of, given_up
from rulegen_dagster.workflow.engine import Outcome
from rulegen_dagster.workflow.extract import load_context
from rulegen_dagster.workflow.frozen import IncompatibleError, frozen_provider, frozen_vocabulary, honoured
from rulegen_dagster.workflow.model_watch import ModelWatch
from rulegen_dagster.workflow.outages import pause_s
from rulegen_dagster.workflow.quotas import tell_estimates
from rulegen_dagster.workflow.runtime import Runtime

NO_RULE_NO_TESTS = "clause_has_no_rule"
_MAX_COUNT = 2**31 - 1

_R = TypeVar("_R")


@dataclass(frozen=True, kw_only=True)
class JobMaterial:
    """What every attempt of one job needs: clauses by ordinal, their context, the vocabulary, the provider."""

    clauses: dict[int, Clause]
    context: dict[int, tuple[ContextEntry, ...]]
    vocabulary: Vocabulary
    provider: Provider


class Generation:
    """Runs attempts of the generating stages; keeps each job's material while it lives."""

    def __init__(self, runtime: Runtime) -> None:
        """Read jobs through the runtime's ledger."""
        self._runtime = runtime
        self._material: dict[int, JobMaterial] = {}
        self._without_rules: dict[int, frozenset[str]] = {}
        self._watch = ModelWatch(runtime)
        # The first attempts of a job start together; one of them reads for all.
        self._loading = asyncio.Lock()

    def load(self, job_ids: Iterable[int]) -> dict[int, Checked]:
        """Read the jobs' material before any claim; return whether this release may go on with each.

        One that froze what this release cannot honour needs a decision from now on: that is no fault of an attempt, and
        uses none up. Raises `ProviderConfigError` where this process is not set up for what a job froze.
        """
        checked = {}
        for job_id in job_ids:
            checked[job_id] = check(self._runtime, job_id)
            if not checked[job_id].may_go_on:
                continue
            try:
                material = load_material(self._runtime, job_id)
            except IncompatibleError as error:
                checked[job_id] = ask(self._runtime, job_id, error.found)
                continue
            self._watch.add(checked[job_id].job)
            # Before that stage the context is still empty.
            if self._runtime.ledger.reads.stage_counts(job_id)[Stage.RETRIEVE][WorkState.SUCCEEDED]:
                self._material[job_id] = material
                tell_estimates(self._runtime, job_id, material.provider.identity, material.clauses, material.context)
        return checked

    def watched(self, observe: Callable[[Outcome], None]) -> Callable[[Outcome], None]:
        """Return `observe`, which also stops a job for a decision where its provider reports another model."""
        return self._watch.watched(observe)

    async def attempt(self, claim: Claim) -> Offer | FailedAttempt:
        """Make one attempt. Whatever the provider does becomes a result; only a defect of ours raises."""
        material = await self._of_job(claim.key.job_id)
        stage = claim.key.stage
        if claim.waived is not None:
            return Offer(claim=claim, output=waived_output(stage, claim.waived))
        if stage is Stage.GENERATE_TESTS and claim.key.item_key in await self._ruleless(claim.key.job_id):
            nothing = SuiteOutput(no_tests=NoRuleDraft(reason=NO_RULE_NO_TESTS))
            return Offer(claim=claim, output=canonical_json(nothing.model_dump(mode="json")))
        timeout_ms = budget_of(self._runtime, claim)
        if timeout_ms is None:
            return given_up(claim)
        clause = material.clauses[_clause_of(claim)]
        request = ProviderRequest(
            stage=stage,
            job=claim.job,
            item_key=claim.key.item_key,
            attempt=claim.attempt,
            operation_key=claim.operation_key,
            timeout_ms=timeout_ms,
            clause=clause,
            context=material.context.get(clause.ordinal, ()),
            vocabulary=material.vocabulary,
            repair=claim.repair,
            longer_answer=claim.longer_answer,
        )
        return await _call(self._runtime.tracing, material.provider, request, claim)

    async def _of_job(self, job_id: int) -> JobMaterial:
        async with self._loading:
            if job_id not in self._material:
                self._material[job_id] = await _outlasting_outages(load_material, self._runtime, job_id)
        return self._material[job_id]

    async def _ruleless(self, job_id: int) -> frozenset[str]:
        async with self._loading:
            if job_id not in self._without_rules:
                items = await _outlasting_outages(self._runtime.ledger.reads.items, job_id, Stage.GENERATE_RULES)
                given = await _outlasting_outages(self._runtime.ledger.waivers.of, job_id)
                waived = {waiver.clause_ordinal for waiver in given}
                self._without_rules[job_id] = frozenset(
                    item.key.item_key
                    for item in items
                    if item.clause_ordinal in waived
                    or (item.output is not None and not RuleOutput.model_validate_json(item.output).rules)
                )
        return self._without_rules[job_id]


async def _outlasting_outages(read: Callable[..., _R], *arguments: Any) -> _R:
    """Read from the ledger in a thread, again and again while it is out of reach.

    The engine renews the claim meanwhile, or ends this attempt once the lease has passed: how long to wait is its
    decision.
    """
    for failures in itertools.count(1):
        try:
            return await asyncio.to_thread(read, *arguments)
        except LedgerError as error:
            if not error.is_transient:
                raise
            await asyncio.sleep(pause_s(failures))
    raise AssertionError("the loop returns or raises")


def load_material(runtime: Runtime, job_id: int) -> JobMaterial:
    """Read what a job's attempts need, as the job froze it.

    Raises `IncompatibleError` where this release cannot honour what the job froze, and `ProviderConfigError` where this
    process is not set up for it.
    """
    job = runtime.ledger.reads.job_by_id(job_id)
    vocabulary = honoured(job, frozen_vocabulary(runtime, job))
    provider = honoured(job, frozen_provider(runtime, job))
    return JobMaterial(
        clauses={clause.ordinal: clause for clause in runtime.ledger.reads.clauses(job_id)},
        context=load_context(runtime, job_id),
        vocabulary=vocabulary,
        provider=provider,
    )


async def _call(tracing: Tracing, provider: Provider, request: ProviderRequest, claim: Claim) -> Offer | FailedAttempt:
    name = provider.identity.name

    def failed(outcome: AttemptOutcome, code: str, message: str, *, usage: Usage | None = None) -> FailedAttempt:
        return FailedAttempt(
            claim=claim,
            outcome=outcome,
            error_code=code,
            # A client's words go into the ledger and logs as one line; PostgreSQL cannot store a NUL at all.
            message=printable(message)[:300],
            provider=name,
            provider_called=True,
            usage=usage or Usage(model_id=provider.identity.model_id),
        )

    def refused_call(outcome: AttemptOutcome, error: ProviderError) -> FailedAttempt:
        told = Usage(model_id=provider.identity.model_id, request_id=error.request_id, remaining=error.remaining)
        return replace(failed(outcome, error.code, error.message, usage=told), retry_after_ms=error.retry_after_ms)

    try:
        reach(Failpoint.PROVIDER_BEFORE_CALL)
        reply = await asyncio.wait_for(traced_call(tracing, provider, request), request.timeout_ms / 1000)
        reach(Failpoint.PROVIDER_AFTER_ANSWER)
    except ProviderRateLimitedError as error:
        return refused_call(AttemptOutcome.RATE_LIMITED, error)
    except ProviderRetryableError as error:
        return refused_call(AttemptOutcome.RETRYABLE, error)
    except ProviderAccountError as error:
        # Nothing was done, and nothing is wrong with the item: it waits until the account is taken again.
        return replace(refused_call(AttemptOutcome.RETRYABLE, error), account_refused=True)
    except ProviderPermanentError as error:
        return refused_call(AttemptOutcome.PERMANENT, error)
    except ProviderAmbiguousError as error:
        return refused_call(AttemptOutcome.AMBIGUOUS, error)
    except TimeoutError:
        return failed(
            AttemptOutcome.AMBIGUOUS, "provider_timeout", f"no answer within {request.timeout_ms} ms; it may be billed"
        )
    except Exception as error:
        # The text of a client's exception may quote the prompt; its type is enough to find it.
        return failed(AttemptOutcome.AMBIGUOUS, "provider_unknown_error", f"the call ended in {type(error).__name__}")
    usage = _usage(reply)
    try:
        if reply.problem is not None:
            raise DraftRejectedError(
                (Failure(code=reply.problem.value, path="$", message=ANSWER_PROBLEMS[reply.problem]),)
            )
        output = _validated(reply.draft, request)
    except DraftRejectedError as error:
        rejected = error
    except Exception as error:
        # A draft that our own checks cannot digest is refused like any other: it must not take its siblings down.
        message = f"the draft could not be checked: {type(error).__name__}"
        rejected = DraftRejectedError((Failure(code="draft_unreadable", path="$", message=message),))
    else:
        return Offer(claim=claim, output=output, provider=name, provider_called=True, usage=usage)
    refused = failed(AttemptOutcome.INVALID_OUTPUT, rejected.code, rejected.message, usage=usage)
    return replace(
        refused,
        refusals=refusals_of(rejected.failures),
        may_repair=provider.identity.can_repair and may_be_repaired(rejected.failures),
    )


def _validated(draft: str, request: ProviderRequest) -> str:
    accepted: RuleOutput | SuiteOutput
    if request.stage is Stage.GENERATE_RULES:
        accepted = read_rules_draft(
            draft,
            clause=request.clause,
            item_key=request.item_key,
            vocabulary=request.vocabulary,
            tenant=request.tenant,
            context=request.context,
        )
    else:
        accepted = read_tests_draft(
            draft, vocabulary=request.vocabulary, item_key=request.item_key, tenant=request.tenant
        )
    return canonical_json(accepted.model_dump(mode="json"))


def _usage(reply: ProviderReply) -> Usage:
    return Usage(
        model_id=reply.model_id,
        request_id=reply.request_id,
        tokens_in=_counted(reply.tokens_in),
        tokens_out=_counted(reply.tokens_out),
        cost_micros=_counted(reply.cost_micros),
        remaining=reply.remaining,
        report=reply.report,
    )


def _counted(number: int | None) -> int | None:
    # A provider's word about itself; what cannot be a count is kept as unknown.
    return number if number is not None and 0 <= number <= _MAX_COUNT else None


def _clause_of(claim: Claim) -> int:
    if claim.clause_ordinal is None:
        raise ValueError(f"the item {claim.key.item_key} of stage {claim.key.stage} names no clause")
    return claim.clause_ordinal
