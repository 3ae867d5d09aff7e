"""Extraction: the stored upload becomes clauses, and each normative clause gets the context it needs."""

import json

from rulegen_dagster.domain.behaviour import RETRIEVAL_INDEX
from rulegen_dagster.domain.canonical import canonical_json, sha256_hex
from rulegen_dagster.domain.clause import ContextEntry, ParsedSpec
from rulegen_dagster.domain.states import Stage
from rulegen_dagster.domain.work import Claim, Offer
from rulegen_dagster.specs.context import retrieve_context
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
    }
    return Offer(claim=claim, output=canonical_json(summary), parsed=parsed)


def retrieve(runtime: Runtime, claim: Claim) -> Offer:
    """Find, for each clause, the definitions it uses and the clauses it refers to."""
    job = runtime.ledger.reads.job_by_id(claim.key.job_id)
    text = runtime.blobs.get(str(job.canonical_digest)).decode()
    parsed = ParsedSpec(
        format=str(job.spec_format),
        canonical_text=text,
        clauses=tuple(runtime.ledger.reads.clauses(job.job_id)),
    )
    context = retrieve_context(parsed)
    content = {
        "index": RETRIEVAL_INDEX,
        "context": {
            str(ordinal): [{"ordinal": entry.ordinal, "relation": entry.relation} for entry in entries]
            for ordinal, entries in sorted(context.items())
            if entries
        },
    }
    return Offer(claim=claim, output=canonical_json(content))


def load_context(runtime: Runtime, job_id: int) -> dict[int, tuple[ContextEntry, ...]]:
    """Return the accepted context of each clause; empty where the stage has not been passed."""
    (item, *_) = [*runtime.ledger.reads.items(job_id, Stage.RETRIEVE), None]
    if item is None or item.output is None:
        return {}
    texts = {clause.ordinal: clause.text for clause in runtime.ledger.reads.clauses(job_id)}
    return {
        int(ordinal): tuple(
            ContextEntry(ordinal=entry["ordinal"], relation=entry["relation"], text=texts[entry["ordinal"]])
            for entry in entries
        )
        for ordinal, entries in json.loads(item.output)["context"].items()
    }
