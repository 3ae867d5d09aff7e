"""Clauses: the sentences and table rows of a specification, with their place in the canonical text."""

from dataclasses import dataclass, field
from enum import StrEnum

from rulegen_dagster.domain.source_map import SourceMap


class ClauseKind(StrEnum):
    """What kind of block a clause was cut from."""

    SENTENCE = "sentence"
    LIST_ITEM = "list_item"
    TABLE_ROW = "table_row"


class ClauseRole(StrEnum):
    """What a clause does in the text; only a normative clause becomes a work item."""

    NORMATIVE = "normative"
    DEFINITION = "definition"
    INFORMATIVE = "informative"


@dataclass(frozen=True, kw_only=True)
class Clause:
    """One sentence or table row of the canonical text.

    `text == canonical_text[start:end]`, offsets in Unicode code points. `label` is the clause's own number
    ("(2)", "4.1.3"), `lead` the sentence that introduces its list, `table_header` the header cells of its table.
    `content_hash` survives a move and a renumbering, `context_hash` covers heading path and lead.
    `role_reason` says which mark made it normative, or why it is not.
    """

    ordinal: int
    start: int
    end: int
    text: str
    kind: ClauseKind
    heading_path: tuple[str, ...] = ()
    label: str | None = None
    lead: str | None = None
    table_header: tuple[str, ...] = ()
    content_hash: str
    context_hash: str
    role: ClauseRole
    role_reason: str


@dataclass(frozen=True, kw_only=True)
class ParsedSpec:
    """A specification after parsing: its canonical text and every clause, in document order."""

    format: str
    canonical_text: str
    clauses: tuple[Clause, ...]
    source_map: SourceMap = field(default_factory=SourceMap)

    def location_of(self, offset: int) -> str:
        """Return where an offset of the canonical text stands in the uploaded file, in words for people."""
        return self.source_map.location_of(self.canonical_text, offset)

    @property
    def normative(self) -> tuple[Clause, ...]:
        """The clauses that become work items, in document order."""
        return tuple(clause for clause in self.clauses if clause.role is ClauseRole.NORMATIVE)


class ContextRelation(StrEnum):
    """How a clause that is given as context stands to the one that needs it; a closed set."""

    #: It defines a term that the clause uses.
    DEFINES = "defines"
    #: The clause names it by its number.
    REFERENCED = "referenced"
    #: The sentence of the same paragraph at which the clause points back ("this limit", "sie").
    ANTECEDENT = "antecedent"
    #: A sentence of the same paragraph that speaks of the same thing.
    SAME_PARAGRAPH = "same_paragraph"
    #: A clause near by, under the same heading, that speaks of the same thing.
    SAME_SECTION = "same_section"
    #: A definition with which it shares rare words; it helps to read, and proves nothing.
    SHARES_TERMS = "shares_terms"

    @property
    def may_give_exceptions(self) -> bool:
        """Whether the words of the other clause may be quoted for an exception or a condition of a rule."""
        return self is not ContextRelation.SHARES_TERMS

    @property
    def may_give_numbers(self) -> bool:
        """Whether a parameter may be taken from the other clause: only where this one points at it."""
        return self in (ContextRelation.DEFINES, ContextRelation.REFERENCED, ContextRelation.ANTECEDENT)


@dataclass(frozen=True, kw_only=True)
class ContextEntry:
    """A clause that another one needs to be understood, and why."""

    relation: ContextRelation
    clause: Clause

    @property
    def ordinal(self) -> int:
        """The number of the clause, by which a draft may name it."""
        return self.clause.ordinal

    @property
    def text(self) -> str:
        """The words of the clause."""
        return self.clause.text
