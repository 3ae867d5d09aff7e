"""A clause as lexical marks: amounts, times, periods, approvers and the vocabulary's phrases, each with its place.

`Marked.working` is the clause's text with every recognised stretch replaced, character for character, by a private
sign, so that the sentence patterns are short and every span is a span of the original.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from rulegen_dagster.domain.clause import Clause, ClauseKind
from rulegen_dagster.domain.vocabulary import BoolFact, EnumFact, Vocabulary
from rulegen_dagster.providers.pattern_language import READ, SIGNS, Language
from rulegen_dagster.providers.pattern_quantities import (
    Duration,
    Money,
    Percentage,
    Unit,
    find_durations,
    find_money,
    find_percentages,
)
from rulegen_dagster.providers.pattern_roles import APPROVAL_PREFIX, is_paper, papers_of, periods_of, wholes_of

_MARKUP = re.compile(r"[*_`\[\]“”\"„|\u00a0\t]|\n[ \t]*>?[ \t]*")


@dataclass(frozen=True, kw_only=True)
class Named:
    """A stretch that names a fact, and the value of it where the fact is an enum."""

    start: int
    end: int
    fact: str
    value: str | bool = True


@dataclass(frozen=True, kw_only=True)
class Period:
    """A stretch that names a span to count over, with the facts that count amounts, days or hours by it."""

    start: int
    end: int
    facts: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Marked:
    """A clause with what it inherits (lead, table header) in front of it, and its marks in order."""

    text: str
    own_start: int
    working: str
    money: tuple[Money, ...]
    durations: tuple[Duration, ...]
    percentages: tuple[Percentage, ...]
    periods: tuple[Period, ...]
    wholes: tuple[Named, ...]
    papers: tuple[Named, ...]
    approvers: tuple[Named, ...]
    values: tuple[Named, ...]


def whole_text(clause: Clause) -> str:
    """Return a clause with the lead or table header that it inherits in front of it."""
    inherited = [clause.lead] if clause.lead else []
    if clause.kind is ClauseKind.TABLE_ROW and clause.table_header:
        inherited.append(" | ".join(clause.table_header))
    return "\n".join([*inherited, clause.text])


def without_markup(text: str) -> str:
    """Return a text with its markup and the targets of its links as spaces, same length."""
    return _MARKUP.sub(lambda match: " " * len(match[0]), _without_link_targets(text)).replace("\u2019", "'")


def mark(clause: Clause, vocabulary: Vocabulary, language: Language) -> Marked:
    """Recognise the marks of a clause and of what it inherits."""
    text = whole_text(clause)
    shown = without_markup(text)
    own_start = len(text) - len(clause.text)
    if clause.label and shown.startswith(clause.label, own_start):
        shown = read(shown, own_start, own_start + len(clause.label))
    money = find_money(shown, language.numbers)
    working = _signed(shown, [(item.start, item.end, "MONEY") for item in money])
    percentages = find_percentages(working)
    working = _signed(working, [(item.start, item.end, "PERCENT") for item in percentages])
    durations = find_durations(working, language.numbers)
    working = _signed(working, [(item.start, item.end, _sign_of(item)) for item in durations])
    wholes = [
        Named(start=start, end=end, fact=fact)
        for start, end, fact in _found(working, wholes_of(vocabulary), language.ending)
    ]
    working = _signed(working, [(item.start, item.end, "WHOLE") for item in wholes])
    periods = [
        Period(start=start, end=end, facts=facts)
        for start, end, facts in _found(working, _period_phrases(vocabulary), language.ending)
    ]
    working = _signed(working, [(item.start, item.end, "PERIOD") for item in periods])
    # One search for all kinds, longest phrase first: "finance training" must not lose its first word to an approver.
    phrases = _value_phrases(vocabulary) | _yes_phrases(vocabulary)
    names = [
        Named(start=start, end=end, fact=fact, value=value)
        for start, end, (fact, value) in _found(working, phrases, language.ending)
    ]
    approvers = [name for name in names if name.fact.startswith(APPROVAL_PREFIX)]
    papers = [name for name in names if is_paper(name.fact)]
    values = [name for name in names if name not in approvers and name not in papers]
    working = _signed(working, [(item.start, item.end, "APPROVER") for item in approvers])
    working = _signed(working, [(item.start, item.end, "PAPER") for item in papers])
    working = _signed(working, [(item.start, item.end, "VALUE") for item in values])
    return Marked(
        text=text,
        own_start=own_start,
        working=working,
        money=tuple(money),
        durations=tuple(durations),
        percentages=tuple(percentages),
        periods=tuple(periods),
        wholes=tuple(wholes),
        papers=tuple(papers),
        approvers=tuple(approvers),
        values=tuple(values),
    )


def names_value(text: str, vocabulary: Vocabulary, language: Language) -> bool:
    """Tell whether a text, such as a heading, names one of the vocabulary's values."""
    return bool(_found(text, _value_phrases(vocabulary), language.ending))


def read(working: str, start: int, end: int) -> str:
    """Return the working text with a stretch marked as read."""
    return working[:start] + READ * (end - start) + working[end:]


def _sign_of(duration: Duration) -> str:
    if duration.is_business or duration.unit not in (Unit.DAYS, Unit.HOURS):
        return "TIME"
    return "HOURS" if duration.unit is Unit.HOURS else "DAYS"


def _signed(text: str, spans: Iterable[tuple[int, int, str]]) -> str:
    for start, end, name in spans:
        text = text[:start] + SIGNS[name] * (end - start) + text[end:]
    return text


_Meaning = tuple[str, str | bool]
_Found = TypeVar("_Found")


def _period_phrases(vocabulary: Vocabulary) -> dict[str, tuple[str, ...]]:
    phrases: dict[str, tuple[str, ...]] = {}
    for phrase, facts in periods_of(vocabulary).items():
        phrases[phrase.lower()] = facts
        if phrase.startswith("per "):
            phrases["/ " + phrase[4:].lower()] = facts
    return phrases


def _yes_phrases(vocabulary: Vocabulary) -> dict[str, _Meaning]:
    """Return the phrases of approvers and papers."""
    papers = {name for name, _ in papers_of(vocabulary)}
    return {
        phrase.lower(): (name, True)
        for name, fact in vocabulary.facts.items()
        if isinstance(fact, BoolFact) and (name.startswith(APPROVAL_PREFIX) or name in papers)
        for phrase in fact.phrases
    }


def _value_phrases(vocabulary: Vocabulary) -> dict[str, _Meaning]:
    phrases: dict[str, _Meaning] = {}
    for name, fact in vocabulary.facts.items():
        if isinstance(fact, EnumFact):
            phrases |= {phrase.lower(): (name, value) for value, words in fact.values.items() for phrase in words}
        elif isinstance(fact, BoolFact) and not name.startswith(APPROVAL_PREFIX) and not is_paper(name):
            phrases |= {phrase.lower(): (name, True) for phrase in fact.phrases}
    return phrases


def _found(text: str, phrases: Mapping[str, _Found], ending: str) -> list[tuple[int, int, _Found]]:
    """Find the phrases in a text, longest first, with the endings of the language, spaces and hyphens alike."""
    if not phrases:
        return []
    pattern, folded = _compiled(tuple(phrases), ending)
    return [(match.start(), match.end(), phrases[_phrase_of(match, folded)]) for match in pattern.finditer(text)]


@lru_cache(maxsize=64)
def _compiled(phrases: tuple[str, ...], ending: str) -> tuple[re.Pattern[str], dict[str, str]]:
    """Return the pattern of some phrases, and each phrase by the form that its words have in a match."""
    alternatives = []
    for phrase in sorted(phrases, key=lambda item: (-len(item), item)):
        words = r"[\s-]+".join(re.escape(word) for word in _words(phrase))
        # "/ day" stands for "$75/day" as well: the sign of the amount is no word character.
        alternatives.append(words.replace(r"/[\s-]+", r"/\s*") if phrase.startswith("/") else rf"(?<!\w){words}")
    pattern = re.compile(rf"(?P<phrase>{'|'.join(alternatives)}){ending}(?![\w-])", re.IGNORECASE)
    return pattern, {"".join(_words(phrase)): phrase for phrase in phrases}


def _phrase_of(match: re.Match[str], folded: Mapping[str, str]) -> str:
    return folded["".join(_words(match["phrase"].lower()))]


def _words(phrase: str) -> list[str]:
    return phrase.replace("-", " ").split()


def _without_link_targets(text: str) -> str:
    """Blank the target of each Markdown link, same length."""
    position = 0
    while (start := text.find("](", position)) >= 0 and (end := text.find(")", start)) >= 0:
        text = text[:start] + " " * (end + 1 - start) + text[end + 1 :]
        position = end
    return text
