"""Languages of the patterns: how a clause's language is told, and what a language's table of patterns holds."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from rulegen_dagster.providers.pattern_model import Comparator, Demand
from rulegen_dagster.providers.pattern_quantities import NumberStyle

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
    "PERCENT": "\ue008",
    "PAPER": "\ue009",
    "WHOLE": "\ue00a",
}
"""Private sign of each kind of mark, by the name that patterns use for it."""

_GROUP = re.compile(r"\(\?P<([a-z]+)>")
_WORD = re.compile(r"[^\W\d_]+")


def sentence_pattern(template: str) -> re.Pattern[str]:
    """Compile a sentence pattern: `<NAME>` is a mark of that kind, a space is any white space.

    A group may have the same name as another one; `group_of` finds the one that took part.
    """
    numbers = count()
    template = _GROUP.sub(lambda match: f"(?P<{match[1]}_{next(numbers)}>", template)
    for name, sign in SIGNS.items():
        template = template.replace(f"<{name}>", f"{sign}+")
    return re.compile(rf"(?<!\w)(?:{template.replace(' ', chr(92) + 's+')})(?!\w)", re.IGNORECASE)


def group_of(match: re.Match[str], name: str) -> str | None:
    """Return the key of the first group of this name that took part in a match."""
    return next((key for key, found in match.groupdict().items() if found and key.rpartition("_")[0] == name), None)


def parts_of(match: re.Match[str]) -> list[tuple[int, int]]:
    """Return what a match has read: its groups `part`, or all of it. German verbs stand around what they govern."""
    parts = [match.span(key) for key, found in match.groupdict().items() if found and key.rpartition("_")[0] == "part"]
    return parts or [match.span()]


@dataclass(frozen=True, kw_only=True)
class Language:
    """The patterns of one language.

    Templates take words at run time: `rate` the units, a deadline the action and the words of its event.
    `comparators` makes the comparisons of one kind of number, in the order in which they are tried. A `fillers` word
    never narrows a rule; everything else must be read, or the clause is left to a person.
    """

    own_words: frozenset[str]
    numbers: NumberStyle
    ending: str
    comparators: Callable[[str], tuple[tuple[Comparator, re.Pattern[str]], ...]]
    count_limits: re.Pattern[str]
    stay_below: re.Pattern[str]
    share: re.Pattern[str]
    rate: str
    flat_rate: re.Pattern[str]
    actions: dict[str, str]
    in_time: str
    ahead: str
    too_late: str
    not_ahead: str
    older_than: re.Pattern[str]
    articles: tuple[str, str]
    approval: re.Pattern[str]
    approval_by_nobody_named: re.Pattern[str]
    no_paper: re.Pattern[str]
    demands: tuple[tuple[Demand, re.Pattern[str]], ...]
    without_paper: re.Pattern[str]
    longer_flight: re.Pattern[str]
    inherited_limit: re.Pattern[str]
    exception_word: re.Pattern[str]
    approved: re.Pattern[str]
    ignored_before_value: re.Pattern[str]
    polite: re.Pattern[str]
    should: re.Pattern[str]
    may: re.Pattern[str]
    whole_claim: re.Pattern[str]
    everything: re.Pattern[str]
    connectors: re.Pattern[str]
    joining_words: frozenset[str]
    conditional: re.Pattern[str]
    narrowing: re.Pattern[str]
    fillers: frozenset[str]
    exception_fillers: frozenset[str]


def language_of(text: str, languages: tuple[Language, ...]) -> Language | None:
    """Return the language of a text: the only one of which it has a word that the others never use.

    Each table lists such words, the small ones that hardly a sentence does without ("the", "must"; "der", "muss").
    A text with words of two languages, or of none, has no language, so that nothing of it is read.
    """
    words = {match[0].casefold() for match in _WORD.finditer(text)}
    found = [language for language in languages if not language.own_words.isdisjoint(words)]
    return found[0] if len(found) == 1 else None
