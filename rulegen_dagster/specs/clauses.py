"""Blocks to clauses: sentences with offsets, hashes, labels and roles."""

import re
from collections.abc import Iterable, Iterator

from rulegen_dagster.domain.canonical import sha256_hex
from rulegen_dagster.domain.clause import Clause, ClauseKind
from rulegen_dagster.specs.blocks import CUT, Block, masked, normalized, without_link_targets
from rulegen_dagster.specs.normative import role_of
from rulegen_dagster.specs.refusals import Refusal, refused
from rulegen_dagster.specs.sentences import split_sentences

MAX_CLAUSES = 20_000
"""Most clauses of one specification; a text beyond it is not a policy that people review."""

_UNCUT = re.compile(rf"[^{CUT}]+")


def clauses_of(text: str, blocks: Iterable[Block]) -> tuple[Clause, ...]:
    """Return the clauses of a canonical text in order; raise `SpecError` (`too_many_clauses`) beyond `MAX_CLAUSES`."""
    clauses: list[Clause] = []
    context_hashes: dict[tuple[tuple[str, ...], str | None], str] = {}
    for block in blocks:
        context = (block.heading_path, block.lead)
        if context not in context_hashes:
            context_hashes[context] = _context_hash(block)
        spans = list(_spans(text, block))
        if len(clauses) + len(spans) > MAX_CLAUSES:
            raise refused(
                Refusal.TOO_MANY_CLAUSES,
                f"the text has more than {MAX_CLAUSES:,} sentences; split it into several specifications",
            )
        for index, (start, end, shown) in enumerate(spans):
            decision = role_of(
                without_link_targets(shown),
                kind=block.kind,
                lead=without_link_targets(block.lead) if block.lead else None,
                heading_path=block.heading_path,
                table_header=block.table_header,
                introduces_list=block.introduces_list and index == len(spans) - 1,
            )
            clauses.append(
                Clause(
                    ordinal=len(clauses),
                    start=start,
                    end=end,
                    text=text[start:end],
                    kind=block.kind,
                    heading_path=block.heading_path,
                    label=block.label,
                    lead=block.lead,
                    table_header=block.table_header,
                    content_hash=sha256_hex(normalized(shown)),
                    context_hash=context_hashes[context],
                    role=decision.role,
                    role_reason=decision.reason,
                )
            )
    return tuple(clauses)


def _spans(text: str, block: Block) -> Iterator[tuple[int, int, str]]:
    """Yield start, end and masked text of each clause of a block; a cut ends one, and each has a letter or digit."""
    shown = masked(text, block)
    for match in _UNCUT.finditer(shown):
        piece, position = match[0], match.start()
        spans = [(0, len(piece))] if block.kind is ClauseKind.TABLE_ROW else split_sentences(piece)
        for start, end in spans:
            words = piece[start:end]
            left, right = len(words) - len(words.lstrip()), len(words.rstrip())
            if any(character.isalnum() for character in words):
                base = block.start + position + start
                yield base + left, base + right, words[left:right]


def _context_hash(block: Block) -> str:
    return sha256_hex(normalized(" / ".join(block.heading_path) + " :: " + (block.lead or "")))
