"""Extraction: the stored upload becomes clauses, and each normative clause gets the context it needs."""

import json
from typing import Any

from rulegen_dagster.domain.behaviour import RETRIEVAL_INDEX, ContextPolicy
from rulegen_dagster.domain.canonical import canonical_json, sha256_hex
from rulegen_dagster.domain.clause import ContextEntry, ContextRelation, ParsedSpec
from rulegen_dagster.domain.errors import RetrievalError
from rulegen_dagster.domain.source_map import SourceMap
from rulegen_dagster.domain.states import Stage
from rulegen_dagster.domain.work import Claim, Offer
from rulegen_dagster.specs.document import read_document
from rulegen_dagster.workflow.runtime import Runtime


def parse(runtime: Runtime, claim: Claim) -> Offer:
    """Parse the job's upload. Raises `SpecError` where it cannot become a specification.

    The canonical text is stored as a blob first; clauses and rule items are created when the offer is accepted.
    """
    job = runtime.ledger.reads.job_by_id(claim.key.job_id)
    data = runtime.blobs.get(job.spec_digest)
    parsed = read_document(data, job.file_name, max_bytes=runtime.settings.max_upload_bytes)
    runtime.blobs.put(parsed.canonical_text.encode())
    summary = {
        "format": parsed.format,
        "canonical_digest": sha256_hex(parsed.canonical_text),
        "clauses": len(parsed.clauses),
        "normative": len(parsed.normative),
        "source_map": parsed.source_map.to_json(),
    }
    return Offer(claim=claim, output=canonical_json(summary), parsed=parsed)


def retrieve(runtime: Runtime, claim: Claim) -> Offer:
    """Find, for each clause, the definitions it uses and the clauses it refers to, in the job's own text.

    Where that fails, the job's policy decides: `RetrievalError`, or an entry for each clause that goes on without.
    That the job froze this release's index is found out before the claim.
    """
    job = runtime.ledger.reads.job_by_id(claim.key.job_id)
    text = runtime.blobs.get(str(job.canonical_digest)).decode()
    parsed = ParsedSpec(
        format=str(job.spec_format),
        canonical_text=text,
        clauses=tuple(runtime.ledger.reads.clauses(job.job_id)),
    )
    policy = ContextPolicy(job.behaviour.get("context_policy", ContextPolicy.REQUIRED))
    context, without = _look_up(runtime, parsed, policy)
    content: dict[str, Any] = {
        "index": RETRIEVAL_INDEX,
        "context": {
            str(ordinal): [{"ordinal": entry.ordinal, "relation": entry.relation} for entry in entries]
            for ordinal, entries in sorted(context.items())
            if entries
        },
    }
    if without:
        content["without_context"] = {str(ordinal): code for ordinal, code in sorted(without.items())}
    return Offer(claim=claim, output=canonical_json(content))


def _look_up(
    runtime: Runtime, parsed: ParsedSpec, policy: ContextPolicy
) -> tuple[dict[int, tuple[ContextEntry, ...]], dict[int, str]]:
    """Return the context of each clause, and why some have none; the latter only where the policy allows it."""
    context: dict[int, tuple[ContextEntry, ...]] = {}
    without: dict[int, str] = {}
    try:
        index = runtime.index(parsed)
    except RetrievalError as error:
        if policy is ContextPolicy.REQUIRED:
            raise
        return {}, {clause.ordinal: error.code for clause in parsed.normative}
    for clause in parsed.normative:
        try:
            context[clause.ordinal] = index.context_of(clause)
        except RetrievalError as error:
            if policy is ContextPolicy.REQUIRED:
                raise
            without[clause.ordinal] = error.code
    return context, without


def load_source_map(runtime: Runtime, job_id: int) -> SourceMap:
    """Return where each piece of the job's canonical text stands in its upload, for `ParsedSpec` or to be asked alone.

    Lines of the text for a job that an older release parsed, and before the stage has been passed.
    """
    (item, *_) = [*runtime.ledger.reads.items(job_id, Stage.PARSE), None]
    if item is None or item.output is None:
        return SourceMap()
    return SourceMap.from_json(json.loads(item.output).get("source_map"))


def load_context(runtime: Runtime, job_id: int) -> dict[int, tuple[ContextEntry, ...]]:
    """Return the accepted context of each clause; empty where the stage has not been passed."""
    retrieved = _retrieved(runtime, job_id)
    clauses = {clause.ordinal: clause for clause in runtime.ledger.reads.clauses(job_id)}
    return {
        int(ordinal): tuple(
            ContextEntry(relation=ContextRelation(entry["relation"]), clause=clauses[entry["ordinal"]])
            for entry in entries
        )
        for ordinal, entries in retrieved.get("context", {}).items()
    }


def load_missing_context(runtime: Runtime, job_id: int) -> dict[int, str]:
    """Return the clauses whose context could not be looked up, by ordinal, each with the code of the reason."""
    missing = _retrieved(runtime, job_id).get("without_context", {})
    return {int(ordinal): str(code) for ordinal, code in missing.items()}


def _retrieved(runtime: Runtime, job_id: int) -> dict[str, Any]:
    (item, *_) = [*runtime.ledger.reads.items(job_id, Stage.RETRIEVE), None]
    found: dict[str, Any] = json.loads(item.output) if item is not None and item.output is not None else {}
    return found
