"""Prompts: versioned instructions to a language model, kept with each job that uses them."""

from dataclasses import dataclass

from rulegen_dagster.domain.canonical import sha256_hex


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """The instructions of one task (`rules`, `tests` or `repair`) in one version; `text` is the whole file."""

    task: str
    version: str
    text: str

    @property
    def digest(self) -> str:
        """The SHA-256 of the text; what a behaviour names."""
        return sha256_hex(self.text)
