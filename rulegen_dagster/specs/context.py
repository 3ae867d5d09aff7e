"""Context of a clause: the definitions it uses or speaks about, the clauses it refers to, and telling neighbours.

Everything comes from an index of one parsed specification, so that no other job's text can get in. No model is asked.
The header of a table comes with the clause itself.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rulegen_dagster.domain.clause import Clause, ClauseRole, ContextEntry, ContextRelation, ParsedSpec
from rulegen_dagster.domain.errors import RetrievalError
from rulegen_dagster.specs.neighbours import Neighbours
from rulegen_dagster.specs.shared_terms import SharedTerms

MAX_ENTRIES = 12
"""Most context entries of one clause."""

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

    A clause without context has an empty tuple. Raises `RetrievalError`.
    """
    index = ContextIndex(parsed)
    return {clause.ordinal: index.context_of(clause) for clause in parsed.normative}


class ContextIndex:
    """The index of one specification; `RETRIEVAL_INDEX` is its version."""

    def __init__(self, parsed: ParsedSpec) -> None:
        """Index every clause. Raises `RetrievalError`."""
        definitions = [clause for clause in parsed.clauses if clause.role is ClauseRole.DEFINITION]
        with _as_retrieval_errors("retrieval_index_failed", "the index of the specification could not be built"):
            self._terms = _Terms()
            for clause in definitions:
                if words := _term_of(clause):
                    self._terms.add(words, clause)
            self._places = _Places(parsed.clauses)
            self._shared = SharedTerms([(clause, _words_of(clause)) for clause in parsed.clauses], definitions)
            self._neighbours = Neighbours(parsed)

    def context_of(self, clause: Clause) -> tuple[ContextEntry, ...]:
        """Return at most `MAX_ENTRIES` clauses that a clause needs. Raises `RetrievalError`.

        Definitions that it names come first, in document order, then what it refers to, then the sentences at which it
        points back, then neighbours that speak of the same thing, then definitions with which it shares terms.
        """
        entries: dict[int, ContextEntry] = {}
        with _as_retrieval_errors("retrieval_lookup_failed", f"the context of clause {clause.ordinal} was not found"):
            for relation, other in self._related(clause):
                if len(entries) == MAX_ENTRIES:
                    break
                if other.ordinal != clause.ordinal and other.ordinal not in entries:
                    entries[other.ordinal] = ContextEntry(relation=relation, clause=other)
        return tuple(entries.values())

    def _related(self, clause: Clause) -> Iterator[tuple[ContextRelation, Clause]]:
        words = _words_of(clause)
        yield from ((ContextRelation.DEFINES, other) for other in self._terms.used_by(words))
        yield from ((ContextRelation.REFERENCED, other) for other in self._places.referenced_by(clause))
        yield from ((ContextRelation.ANTECEDENT, other) for other in self._neighbours.antecedents_of(clause))
        yield from self._neighbours.linked_to(clause)
        yield from ((ContextRelation.SHARES_TERMS, other) for other in self._shared.spoken_of(clause, words))


def definition_term(clause: Clause) -> str | None:
    """Return the term that a definition defines, in small letters, or None where it cannot be told."""
    words = _term_of(clause)
    return " ".join(words) if words else None


@contextmanager
def _as_retrieval_errors(code: str, what: str) -> Iterator[None]:
    """Tell whatever goes wrong in here as a retrieval outage; the text of an exception may quote the specification."""
    try:
        yield
    except Exception as error:
        raise RetrievalError(f"{what}: {type(error).__name__}", code=code) from error


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


def _words_of(clause: Clause) -> tuple[str, ...]:
    """Return the words of a clause, its lead and its table header."""
    return _words(f"{clause.lead or ''} {' '.join(clause.table_header)} {clause.text}")


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

    def used_by(self, words: tuple[str, ...]) -> list[Clause]:
        """Return the definitions whose term occurs among the words of a clause, in document order."""
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
            for label in _names_of(clause.label):
                _keep(self._by_label.setdefault(label, []), clause)
                _keep(self._in_section.setdefault((clause.heading_path, label), []), clause)

    def referenced_by(self, clause: Clause) -> Iterator[Clause]:
        """Yield the clauses that a clause refers to, in the order of the references."""
        own_labels = _names_of(clause.label)
        for match in _REFERENCE.finditer(clause.text[:4000]):
            if match["number"]:
                yield from self._numbered(match)
            else:
                label = _bare(match["own"] or match["label"])
                if label not in own_labels:
                    yield from self._in_section.get((clause.heading_path, label), ())

    def _numbered(self, match: re.Match[str]) -> list[Clause]:
        number = match["number"].lower()
        section = self._by_heading.get(number, [])
        part = match["paragraph"] or match["part"]
        if section and part:
            return [other for other in section if _bare(part) in _names_of(other.label)]
        # "4.1.3" may be a heading or the label of one clause; a bare "3" is a heading only.
        return section or (self._by_label.get(number, []) if "." in number else [])


def _bare(label: str) -> str:
    return label.strip("()§. ").lower()


def _names_of(label: str | None) -> frozenset[str]:
    """Return the names by which a text may refer to a label: "3.2 (a)" is also "(a)"."""
    return frozenset((_bare(label), _bare(label.rsplit(maxsplit=1)[-1]))) if label and label.strip() else frozenset()


def _keep(clauses: list[Clause], clause: Clause) -> None:
    # References to a long section are cut: a clause gets at most MAX_ENTRIES in any case.
    if len(clauses) <= MAX_ENTRIES * 4:
        clauses.append(clause)
