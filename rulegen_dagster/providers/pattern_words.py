"""A clause as lexical marks: amounts, times, periods, approvers and the vocabulary's phrases, each with its place.

`Marked.working` is the clause's text with every recognised stretch replaced, character for character, by a private
sign, so that the sentence patterns are short and every span is a span of the original.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from rulegen_dagster.domain.clause import Clause, ClauseKind
from rulegen_dagster.domain.vocabulary import BoolFact, EnumFact, MoneyFact, Vocabulary
from rulegen_dagster.providers.pattern_quantities import Duration, Money, Unit, find_durations, find_money

READ = "\ue0ff"
"""Stands for words whose part in the sentence is known."""

SIGNS = {
    "MONEY": "\ue001",
    "DAYS": "\ue002",
    "HOURS": "\ue003",
    "TIME": "\ue004",
    "PERIOD": "\ue005",
    "APPROVER": "\ue006",
    "VALUE": "\ue007",
}
"""Private sign of each kind of mark, by the name that patterns use for it."""

APPROVAL_PREFIX = "approval."
"""Facts that say who has approved; their phrases are recognised as approvers only."""

_MARKUP = re.compile(r"[*_`\[\]“”\"„|\u00a0\t]|\n[ \t]*>?[ \t]*")
_PLURAL = r"(?:es|s)?(?:'s?)?"


@dataclass(frozen=True, kw_only=True)
class Named:
    """A stretch that names a fact, and the value of it where the fact is an enum."""

    start: int
    end: int
    fact: str
    value: str | bool = True


@dataclass(frozen=True, kw_only=True)
class Marked:
    """A clause with what it inherits (lead, table header) in front of it, and its marks in order."""

    text: str
    own_start: int
    working: str
    money: tuple[Money, ...]
    durations: tuple[Duration, ...]
    periods: tuple[Named, ...]
    approvers: tuple[Named, ...]
    values: tuple[Named, ...]


def sentence_pattern(template: str) -> re.Pattern[str]:
    """Compile a sentence pattern: `<NAME>` is a mark of that kind, a space is any white space."""
    for name, sign in SIGNS.items():
        template = template.replace(f"<{name}>", f"{sign}+")
    return re.compile(rf"(?<!\w)(?:{template.replace(' ', chr(92) + 's+')})(?!\w)", re.IGNORECASE)


def mark(clause: Clause, vocabulary: Vocabulary) -> Marked:
    """Recognise the marks of a clause and of the lead or table header that it inherits."""
    inherited = [clause.lead] if clause.lead else []
    if clause.kind is ClauseKind.TABLE_ROW and clause.table_header:
        inherited.append(" | ".join(clause.table_header))
    text = "\n".join([*inherited, clause.text])
    shown = _MARKUP.sub(lambda match: " " * len(match[0]), _without_link_targets(text)).replace("\u2019", "'")
    money = find_money(shown)
    working = _signed(shown, [(item.start, item.end, "MONEY") for item in money])
    durations = find_durations(working)
    working = _signed(working, [(item.start, item.end, _sign_of(item)) for item in durations])
    periods = _named(working, _period_phrases(vocabulary))
    working = _signed(working, [(item.start, item.end, "PERIOD") for item in periods])
    # One search for both kinds, longest phrase first: "finance training" must not lose its first word to an approver.
    names = _named(working, _value_phrases(vocabulary) | _approver_phrases(vocabulary))
    approvers = [name for name in names if name.fact.startswith(APPROVAL_PREFIX)]
    values = [name for name in names if not name.fact.startswith(APPROVAL_PREFIX)]
    working = _signed(working, [(item.start, item.end, "APPROVER") for item in approvers])
    working = _signed(working, [(item.start, item.end, "VALUE") for item in values])
    return Marked(
        text=text,
        own_start=len(text) - len(clause.text),
        working=working,
        money=tuple(money),
        durations=tuple(durations),
        periods=tuple(periods),
        approvers=tuple(approvers),
        values=tuple(values),
    )


def values_in(text: str, vocabulary: Vocabulary) -> list[Named]:
    """Return the vocabulary's values that a text, such as a heading, names."""
    return _named(text, _value_phrases(vocabulary))


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


def _period_phrases(vocabulary: Vocabulary) -> dict[str, _Meaning]:
    phrases: dict[str, _Meaning] = {}
    for name, fact in vocabulary.facts.items():
        if isinstance(fact, MoneyFact):
            for phrase in fact.phrases:
                phrases[phrase.lower()] = (name, True)
                if phrase.startswith("per "):
                    phrases["/ " + phrase[4:].lower()] = (name, True)
    return phrases


def _approver_phrases(vocabulary: Vocabulary) -> dict[str, _Meaning]:
    return {
        phrase.lower(): (name, True)
        for name, fact in vocabulary.facts.items()
        if isinstance(fact, BoolFact) and name.startswith(APPROVAL_PREFIX)
        for phrase in fact.phrases
    }


def _value_phrases(vocabulary: Vocabulary) -> dict[str, _Meaning]:
    phrases: dict[str, _Meaning] = {}
    for name, fact in vocabulary.facts.items():
        if isinstance(fact, EnumFact):
            phrases |= {phrase.lower(): (name, value) for value, words in fact.values.items() for phrase in words}
        elif isinstance(fact, BoolFact) and not name.startswith(APPROVAL_PREFIX):
            phrases |= {phrase.lower(): (name, True) for phrase in fact.phrases}
    return phrases


def _named(text: str, phrases: dict[str, _Meaning]) -> list[Named]:
    """Find the phrases in a text, longest first, in singular and plural, with spaces and hyphens alike."""
    if not phrases:
        return []
    found: list[Named] = []
    for match in _compiled(tuple(phrases)).finditer(text):
        fact, value = phrases[_phrase_of(match[0], phrases)]
        found.append(Named(start=match.start(), end=match.end(), fact=fact, value=value))
    return found


@lru_cache(maxsize=64)
def _compiled(phrases: tuple[str, ...]) -> re.Pattern[str]:
    alternatives = []
    for phrase in sorted(phrases, key=lambda item: (-len(item), item)):
        words = r"[\s-]+".join(re.escape(word) for word in _words(phrase))
        # "/ day" stands for "$75/day" as well: the sign of the amount is no word character.
        alternatives.append(words.replace(r"/[\s-]+", r"/\s*") if phrase.startswith("/") else rf"(?<!\w){words}")
    return re.compile(rf"(?:{'|'.join(alternatives)}){_PLURAL}(?![\w-])", re.IGNORECASE)


def _phrase_of(words: str, phrases: dict[str, _Meaning]) -> str:
    """Return the phrase that a match stands for: the match without its plural ending."""
    shown = "/ " + words[1:].strip() if words.startswith("/") else words
    folded = {" ".join(_words(phrase)): phrase for phrase in phrases}
    plain = " ".join(_words(shown.lower()))
    endings = ("'s", "s'", "'")
    for candidate in (plain, *(plain.removesuffix(ending) for ending in endings)):
        for ending in ("", "s", "es"):
            if (phrase := folded.get(candidate.removesuffix(ending))) is not None:
                return phrase
    raise AssertionError("a match stands for one of the phrases")  # pragma: no cover


def _words(phrase: str) -> list[str]:
    return phrase.replace("-", " ").split()


def _without_link_targets(text: str) -> str:
    """Blank the target of each Markdown link, same length."""
    position = 0
    while (start := text.find("](", position)) >= 0 and (end := text.find(")", start)) >= 0:
        text = text[:start] + " " * (end + 1 - start) + text[end + 1 :]
        position = end
    return text
