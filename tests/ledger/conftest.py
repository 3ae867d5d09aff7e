"""A job with rule items, made without parser or provider."""

from collections.abc import Callable

import pytest

from rulegen_dagster.domain.behaviour import Behaviour
from rulegen_dagster.domain.canonical import sha256_hex
from rulegen_dagster.domain.clause import Clause, ClauseKind, ClauseRole, ParsedSpec
from rulegen_dagster.domain.identity import JobName
from rulegen_dagster.domain.states import Stage
from rulegen_dagster.domain.work import Claim, Landing, Offer
from rulegen_dagster.ledger.claims import Claimant, Scope
from rulegen_dagster.ledger.store import Ledger
from rulegen_dagster.ledger.submissions import Accepted, Submission

ALICE = Claimant(worker="alice", lease_ms=1_000)
BOB = Claimant(worker="bob", lease_ms=1_000)
ALL = 1_000


def behaviour() -> Behaviour:
    return Behaviour(
        application_release="0",
        pipeline_revision="p",
        provider="rulegen-pattern",
        model_id="m",
        output_schema="s",
        vocabulary="expense@1",
        vocabulary_digest="d",
        retrieval_index="r",
        validation_policy="v",
        validation_policy_digest="d",
    )


def submission(key: str = "policy", *, content: str = "text", tenant: str = "default") -> Submission:
    return Submission(
        name=JobName(tenant=tenant, submission_key=key),
        input_digest=sha256_hex(content),
        file_name="policy.md",
        size_bytes=len(content),
        ruleset="policy",
        behaviour=behaviour(),
    )


def parsed_spec(clauses: int, wording: str = "Clause {} must hold.") -> ParsedSpec:
    texts = [wording.format(number) for number in range(clauses)]
    found, start = [], 0
    for ordinal, text in enumerate(texts):
        found.append(
            Clause(
                ordinal=ordinal,
                start=start,
                end=start + len(text),
                text=text,
                kind=ClauseKind.SENTENCE,
                content_hash=sha256_hex(text),
                context_hash=sha256_hex(""),
                role=ClauseRole.NORMATIVE,
                role_reason="must",
            )
        )
        start += len(text) + 1
    return ParsedSpec(format="text", canonical_text=" ".join(texts), clauses=tuple(found))


def tokens(count: int, prefix: str = "t") -> list[str]:
    tokens.serial += count  # type: ignore[attr-defined]
    return [f"{prefix}-{tokens.serial - number}" for number in range(count)]  # type: ignore[attr-defined]


tokens.serial = 0  # type: ignore[attr-defined]


def claim(ledger: Ledger, scope: Scope, count: int = 1, claimant: Claimant = ALICE) -> tuple[Claim, ...]:
    with ledger.turn(claimant) as turn:
        return turn.claim(scope, tokens(count))


def complete(ledger: Ledger, *offers: Offer, claimant: Claimant = ALICE) -> dict[str, Landing]:
    with ledger.turn(claimant) as turn:
        for offer in offers:
            turn.offer(offer)
        return turn.settle()


def stage_scope(stage: Stage, job_id: int | None = None) -> Scope:
    return Scope(stages=(stage,), job_ids=None if job_id is None else (job_id,))


MakeJob = Callable[..., int]


@pytest.fixture
def make_job(ledger: Ledger) -> MakeJob:
    """Make a job whose rule items are open."""

    def make(items: int = 3, *, key: str = "policy", tenant: str = "default") -> int:
        accepted: Accepted = ledger.submissions.submit(submission(key, tenant=tenant), actor="test")
        (parse,) = claim(ledger, stage_scope(Stage.PARSE, accepted.job_id))
        complete(ledger, Offer(claim=parse, output="{}", parsed=parsed_spec(items)))
        (retrieve,) = claim(ledger, stage_scope(Stage.RETRIEVE, accepted.job_id))
        complete(ledger, Offer(claim=retrieve, output='{"context":{}}'))
        return accepted.job_id

    return make
