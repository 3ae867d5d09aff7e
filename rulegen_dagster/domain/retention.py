"""Retention: which content of a job can be removed once the job has long ended."""

from enum import StrEnum


class ContentKind(StrEnum):
    """A kind of content that is removed as a whole: a closed set. Digests, clauses and accepted outputs stay."""

    #: The uploaded file.
    UPLOAD = "upload"
    #: The text that was read from it.
    CANONICAL_TEXT = "canonical_text"
    #: The prompts that the job froze.
    PROMPTS = "prompts"
