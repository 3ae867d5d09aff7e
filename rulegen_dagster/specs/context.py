"""Context of a clause: the definitions it uses and the clauses it refers to. Pure look-up, no model, no ranking."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from rulegen_dagster.domain.clause import Clause, ClauseRole, ContextEntry, ParsedSpec

DEFINES = "defines"
REFERENCED = "referenced"
MAX_ENTRIES = 12
"""Most context entries of one clause, definitions first."""

_MAX_TERM_WORDS = 6
_WORD = re.compile(r"\w+")
_TERM = re.compile(
    r"(?P<term>[^\n.;]{1,80}?)\s*(?:\s(?:means|is defined as|are defined as|refers to|bezeichnet|désigne)\b"
    r"|\s?[:\u2013\u2014]\s|\s(?:is|are|ist|sind)\s)",
    re.IGNORECASE,
)
_ARTICLES = frozenset(("a", "an", "the", "der", "die", "das", "ein", "eine", "le", "la", "les", "un", "une", "term"))
_MARKUP = re.compile(r"[*_`\"'\u201c\u201d\u201e\u2018\u2019\u00ab\u00bb()\[\]]+")
_REFERENCE = re.compile(
    r"(?:\b(?:sections?|sec\.|chapter|clause|article|art\.|artikel|abschnitt|kapitel|ziffer|nummer|nr\.)\s*|§+\s?)"
    r"(?P<number>\d{1,4}[a-z]?(?:\.\d{1,4})*)(?:\s?(?:abs\.|absatz)\s?\(?(?P<paragraph>\d{1,3}[a-z]?)\)?)?"
    r"(?P<part>\([a-z0-9]{1,3}\))?"
    r"|\b(?:paragraph|subsection|absatz|abs\.|satz)\s?\(?(?P<own>\d{1,3}[a-z]?|[a-z])\b\)?"
    r"|(?<![\w§])(?P<label>\((?:\d{1,3}[a-z]?|[a-z])\))(?=\s\S)",
    re.IGNORECASE,
)
_HEADING_NUMBER = re.compile(
    r"(?:§+\s?|section\s|artikel\s|article\s)?(?P<number>\d{1,4}[a-z]?(?:\.\d{1,4})*)\b", re.IGNORECASE
)


def retrieve_context(parsed: ParsedSpec) -> dict[int, tuple[ContextEntry, ...]]:
    """Return for each normative clause, by its ordinal, the clauses that it needs to be understood.

    Definitions come first, in document order, then references; at most `MAX_ENTRIES` each clause. A clause without
    context has an empty tuple.
    """
    terms = _Terms()
    for clause in parsed.clauses:
        if clause.role is ClauseRole.DEFINITION and (words := _term_of(clause)):
            terms.add(words, clause)
    places = _Places(parsed.clauses)
    return {clause.ordinal: _context_of(clause, terms, places) for clause in parsed.normative}


def definition_term(clause: Clause) -> str | None:
    """Return the term that a definition defines, in small letters, or None where it cannot be told."""
    words = _term_of(clause)
    return " ".join(words) if words else None


def _context_of(clause: Clause, terms: "_Terms", places: "_Places") -> tuple[ContextEntry, ...]:
    entries: dict[int, ContextEntry] = {}
    found = [(DEFINES, other) for other in terms.used_by(clause)]
    for relation, other in [*found, *((REFERENCED, other) for other in places.referenced_by(clause))]:
        if len(entries) == MAX_ENTRIES:
            break
        if other.ordinal != clause.ordinal and other.ordinal not in entries:
            entries[other.ordinal] = ContextEntry(ordinal=other.ordinal, relation=relation, text=other.text)
    return tuple(entries.values())


def _term_of(clause: Clause) -> tuple[str, ...]:
    match = _TERM.match(clause.text[:400])
    if match is None:
        return ()
    words = _words(_MARKUP.sub(" ", match["term"]))
    while words and words[0] in _ARTICLES:
        words = words[1:]
    return words if len(words) <= _MAX_TERM_WORDS else ()


def _words(text: str) -> tuple[str, ...]:
    """Return the words of a text for comparison: small letters, English plurals as singulars."""
    return tuple(_singular(word.casefold()) for word in _WORD.findall(text))


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


@dataclass
class _Terms:
    """Defined terms by their first word, so that a clause is read once whatever their number."""

    by_first_word: dict[str, list[tuple[tuple[str, ...], Clause]]] = field(default_factory=dict)

    def add(self, words: tuple[str, ...], clause: Clause) -> None:
        """Add a term; later definitions of the same term are kept too."""
        known = self.by_first_word.setdefault(words[0], [])
        if len(known) < MAX_ENTRIES:
            known.append((words, clause))

    def used_by(self, clause: Clause) -> list[Clause]:
        """Return the definitions whose term occurs in a clause or in its lead, in document order."""
        words = _words(f"{clause.lead or ''} {' '.join(clause.table_header)} {clause.text}")
        found: dict[int, Clause] = {}
        for position, word in enumerate(words):
            for term, definition in self.by_first_word.get(word, ()):
                if words[position : position + len(term)] == term:
                    found[definition.ordinal] = definition
        return [found[ordinal] for ordinal in sorted(found)]


class _Places:
    """Clauses by the number of their heading and by their own label."""

    def __init__(self, clauses: Iterable[Clause]) -> None:
        self._by_heading: dict[str, list[Clause]] = {}
        self._by_label: dict[str, list[Clause]] = {}
        self._in_section: dict[tuple[tuple[str, ...], str], list[Clause]] = {}
        for clause in clauses:
            for heading in clause.heading_path:
                if number := _HEADING_NUMBER.match(heading):
                    _keep(self._by_heading.setdefault(number["number"].lower(), []), clause)
            if clause.label:
                label = _bare(clause.label)
                _keep(self._by_label.setdefault(label, []), clause)
                _keep(self._in_section.setdefault((clause.heading_path, label), []), clause)

    def referenced_by(self, clause: Clause) -> Iterator[Clause]:
        """Yield the clauses that a clause refers to, in the order of the references."""
        own_label = _bare(clause.label) if clause.label else None
        for match in _REFERENCE.finditer(clause.text[:4000]):
            if match["number"]:
                yield from self._numbered(match)
            else:
                label = _bare(match["own"] or match["label"])
                if label != own_label:
                    yield from self._in_section.get((clause.heading_path, label), ())

    def _numbered(self, match: re.Match[str]) -> list[Clause]:
        number = match["number"].lower()
        section = self._by_heading.get(number, [])
        part = match["paragraph"] or match["part"]
        if section and part:
            return [other for other in section if other.label and _bare(other.label) == _bare(part)]
        # "4.1.3" may be a heading or the label of one clause; a bare "3" is a heading only.
        return section or (self._by_label.get(number, []) if "." in number else [])


def _bare(label: str) -> str:
    return label.strip("()§. ").lower()


def _keep(clauses: list[Clause], clause: Clause) -> None:
    # References to a long section are cut: a clause gets at most MAX_ENTRIES in any case.
    if len(clauses) <= MAX_ENTRIES * 4:
        clauses.append(clause)
