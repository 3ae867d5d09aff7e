"""What a clause does in the text: demands something, defines a word, or informs. The reason names the mark.

The marks are words of obligation, permission and limit in English and German, and the basic ones in French and
Japanese. An amount alone is no mark: statistics and history are full of amounts.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

from rulegen_dagster.domain.clause import ClauseKind, ClauseRole


@dataclass(frozen=True, kw_only=True)
class RoleDecision:
    """A role and the mark that decided it."""

    role: ClauseRole
    reason: str


_PAID = r"(?:reimburs(?:ed|able)|paid|covered|claimable|eligible|allowed|permitted|refunded|accepted)"
_USED = (
    r"(?:reimburs(?:ed|able)|paid|covered|claimed|expensed|refunded|accepted|booked|used|purchased|charged|approved"
    r"|waived)"
)
_ACTION = r"(?:submit|file|claim|book|reserve|request|return|report|send|hand|turn|attach|provide|purchase|buy)"
_DEADLINE = r"(?:within|no later than|not later than|at least)\s+(?:\w+\s+){0,2}(?:\(\d+\)\s+)?"

# All patterns are in small letters and meet only text in small letters: ignoring case would take twice the time.
# Each name is a reason that is shown to people. The order decides which one is named, never the role.
_STRONG = {
    "must": r"\bmust\b|\bshall\b|\b(?:has|have) to\b|\bneeds? to be\b|\b(?:is|are) to be\b",
    "may_not": r"\b(?:may|can|should) ?not\b|\bcannot\b|\bcan't\b|\bwill not be\b|\bwon't be\b"
    r"|\b(?:do(?:es)? not|don't|doesn't) (?:reimburse|pay|cover|allow|accept|claim|expense|charge|book|buy|purchase)\b"
    r"|\b(?:will|must|shall) not\b|\bunder no circumstances\b|\bno reimbursement\b|\bown expense\b",
    "need_not": r"\bneeds? not\b|\bdo(?:es)? not (?:need|require|have to)\b",
    "prohibited": rf"\bprohibited\b|\bforbidden\b|\bineligible\b|\bnon-?reimbursable\b"
    rf"|\b(?:is|are) (?:not|never) (?:{_PAID}|{_USED})|\b(?:is|are|will be) (?:excluded|rejected|denied|refused)\b",
    "required": r"\b(?:is|are) (?:\w+ )?required\b|\brequires?\b|\bmandatory\b|\bobliged\b|\bneeds? "
    r"(?:[a-z]+ ){0,3}(?:receipts?|(?:pre-?)?approval)\b|\b(?:obtain|get|seek) (?:[a-z]+ ){0,3}approval\b",
    "limit": r"\blimited to\b|\bcapped at\b|\bnot? (?:to )?exceed\b|\bno more than\b|\bnot more than\b"
    r"|\bup to (?:an? |the )?(?:\w+ ){0,2}[$€£¥]?\d|\bat most\b",
    "reimbursed": rf"\b(?:is|are|will be) (?:\w+ )?{_PAID}\b|\b(?:may|can)(?: only)? be (?:\w+ )?(?:{_USED}|{_PAID})\b"
    r"|\b(?:we|company) (?:will )?(?:reimburses?|pays?|covers?)\b|\bentitled to\b",
    "should": r"\bshould\b|\bought to\b",
    "permission": r"\b(?:employees|travell?ers|staff|you|members|managers|directors) (?:may|can) (?:only )?"
    r"(?:claim|book|spend|use|expense|charge|approve|receive up)\b|\bonly if\b",
    "reimbursable": r"\b(?:valid|eligible|reimbursable|allowable) (?:\w+ ){0,2}(?:expenses|costs|expenditures?)\b",
    "deadline": rf"\b{_ACTION}\w{{0,4}}\b[^.]{{0,80}}?\b{_DEADLINE}(?:\w+ )?(?:days?|weeks?|months?)\b",
    "muss": r"\b(?:muss|müssen|musst|haben? .{0,60}\bzu \w+en|verpflichtet|(?:ist|sind) .{0,80}\bzu \w+en)\b"
    r"|\b(?:vor|ein|bei|nach|ab|an|aus|auf|mit|frei)zu\w{3,20}n\b"
    r"|\b(?:bedarf|bedürfen|erforderlich|genehmigungspflichtig)\b",
    "darf": r"\b(?:darf|dürfen|unzulässig|untersagt|verboten|ausgeschlossen"
    r"|nicht (?:gestattet|erlaubt|zulässig|erstattungsfähig|erstattbar|übernommen))\b",
    "erstattet": r"\b(?:erstattet|vergütet|gewährt|übernommen|erlischt|erhalten|keine erstattung|steht .{0,40} zu)\b",
    "hoechstens": r"\b(?:höchstens|mindestens|bis zu|beträgt|betragen|begrenzt|nicht überschreiten)\b",
    "kann": r"\b(?:kann|können|soll|sollen|sollte|sollten)\b",
    "doit": r"\b(?:doit|doivent|ne peut|ne peuvent|n'est pas possible|interdit\w?|obligatoires?|pris\w? en charge"
    r"|dans la limite|plafonnée?s?|forfait de|remboursée?s?)\b",
}
_WEAK = {
    "maximum": r"\bmaximum\b|\bminimum\b|\blimits? (?:is|of|are)\b"
    r"|\blimits? (?:for|on) .{1,60}? (?:is|are)\b|\ballowance\b|\bcap (?:is|of)\b"
    r"|\brate (?:is|of)\b",
    "deadline_word": r"\bdeadline (?:is|for)\b",
}
_JAPANESE = {
    "ja_obligation": r"なければなりません|なければならない|必要があります|必要です|必須|ものとします|ものとする|義務",
    "ja_prohibition": r"てはいけません|てはなりません|ではなりません|できません|禁止|対象外|認められません"
    r"|許可されません",
    "ja_limit": r"上限|以内|までとします|を超え(?:ない|る場合)",
    "ja_request": r"してください|べきです",
}
# The beginning of a word in front of all: most positions of a text are rejected by it alone.
_MARKS = re.compile(
    r"\b(?=[^\W\d_])(?:" + "|".join(f"(?P<{name}>{pattern})" for name, pattern in {**_STRONG, **_WEAK}.items()) + ")"
)
_JAPANESE_MARKS = re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in _JAPANESE.items()))
_HISTORY = re.compile(r"\b(?:was|were|had been|ranged|amounted|wurde|wurden|betrug)\b")
_CONDITION = re.compile(r"\W{0,4}(?:\(\w{1,4}\)\s*|\d{1,4}[.)]\s*)?wurden?\b")
"""German puts the verb first for a condition: "Wurde ein Taxi benutzt, …" tells no history."""
_BINDING = re.compile(r"\b(?:must|shall|muss|müssen|darf|dürfen|may not|cannot|required)\b")
_EXAMPLE = re.compile(r"\s*(?:for example|for instance|e\.g\.|example:|zum beispiel|par exemple)")
_DEFINITION = re.compile(
    r"\b(?:(?<!by )(?<!any )means (?!of\b|that\b|to\b)|(?:is defined as|are defined as|refers to|bezeichnet|gilt als"
    r"|im sinne (?:dieses|dieser|des)|gelten als|désigne|désignent|on entend par)\b)|とは、"
)
_DEFINING_WORDS = (
    *("means ", "defined as", "refers to", "bezeichnet", "gilt als", "gelten als", "im sinne ", "désigne", "on entend"),
    "とは、",
)
_DEFINITIONS_HEADING = re.compile(
    r"\b(?:definitions?|glossary|defined terms|begriffsbestimmung\w{0,3}|definitionen|définitions?)\b|定義|用語"
)
_LIMIT_HEADER = re.compile(
    r"\b(?:limit|maximum|max|cap|ceiling|allowance|rate|up to|per (?:day|night|person|month|mile)|reimburse\w*"
    r"|höchst\w*|betrag|satz|plafond|forfait)\b|上限"
)
_CLOSED_HEADING = re.compile(
    r"\b(?:not? (?:be )?reimburs\w{1,8}|non-?reimbursable|prohibited|not covered|not allowed)\b"
)
_NUMBER = re.compile(r"\d")
_MAX_READ = 4000
_FIRST_KANA = "\u3040"
_CLOSERS = ")*_\"'\u201d "


def role_of(
    text: str,
    *,
    kind: ClauseKind,
    lead: str | None,
    heading_path: tuple[str, ...],
    table_header: tuple[str, ...],
    introduces_list: bool,
) -> RoleDecision:
    """Decide the role of a clause from its own words, then from what it inherits.

    Only the first 4,000 characters are read: no clause of a policy is longer, and time stays bounded.
    """
    shown = text[:_MAX_READ].lower()
    heading = heading_path[-1][:_MAX_READ].lower() if heading_path else ""
    if introduces_list:
        return RoleDecision(role=ClauseRole.INFORMATIVE, reason="introduces_list")
    return (
        _by_form(shown)
        or _by_definition(shown, heading)
        or _by_own_marks(shown)
        or _by_inheritance(shown, kind, (lead or "")[-_MAX_READ:].lower(), heading, table_header)
        or RoleDecision(role=ClauseRole.INFORMATIVE, reason="no_mark")
    )


def _by_form(text: str) -> RoleDecision | None:
    if text.rstrip(_CLOSERS).endswith(("?", "\uff1f")):
        return RoleDecision(role=ClauseRole.INFORMATIVE, reason="question")
    if _EXAMPLE.match(text):
        return RoleDecision(role=ClauseRole.INFORMATIVE, reason="example")
    return None


def _by_definition(text: str, heading: str) -> RoleDecision | None:
    # Most sentences hold none of the words; looking for those first takes a tenth of the time.
    match = _DEFINITION.search(text) if any(word in text for word in _DEFINING_WORDS) else None
    under_heading = bool(heading) and _speaks_of_definitions(heading)
    if match is None and not under_heading:
        return None
    binding = _BINDING.search(text)
    # "Employees must use the cheapest means …" demands; "“Manager” means whoever must approve" defines.
    if match and not (binding and binding.start() < match.start()):
        return RoleDecision(role=ClauseRole.DEFINITION, reason=f"definition:{_key(match[0])}")
    if under_heading and not binding:
        return RoleDecision(role=ClauseRole.DEFINITION, reason="definitions_heading")
    return None


def _by_own_marks(text: str) -> RoleDecision | None:
    mark = _mark_in(text)
    if mark is None:
        return None
    if _HISTORY.search(text) and not _BINDING.search(text) and not _CONDITION.match(text):
        return RoleDecision(role=ClauseRole.INFORMATIVE, reason="history")
    return RoleDecision(role=ClauseRole.NORMATIVE, reason=f"{mark.lastgroup}:{_key(mark[0])}")


def _by_inheritance(
    text: str, kind: ClauseKind, lead: str, heading: str, table_header: tuple[str, ...]
) -> RoleDecision | None:
    if kind is ClauseKind.TABLE_ROW:
        # A row is a demand where its header or lead calls its number a limit; its other words rarely do.
        header = " | ".join(table_header)[:_MAX_READ].lower()
        for place, words in (("table_header", header), ("lead", lead)):
            if (limit := _LIMIT_HEADER.search(words)) and _NUMBER.search(text):
                return RoleDecision(role=ClauseRole.NORMATIVE, reason=f"{place}:{_key(limit[0])}")
        return None
    if lead and (mark := _mark_in_lead(lead)):
        return RoleDecision(role=ClauseRole.NORMATIVE, reason=f"lead:{_key(mark[0])}")
    if kind is ClauseKind.LIST_ITEM and (closed := _CLOSED_HEADING.search(heading)):
        return RoleDecision(role=ClauseRole.NORMATIVE, reason=f"heading:{_key(closed[0])}")
    return None


# Headings and leads are shared by many clauses.
@lru_cache(maxsize=256)
def _speaks_of_definitions(heading: str) -> bool:
    return _DEFINITIONS_HEADING.search(heading) is not None


@lru_cache(maxsize=256)
def _mark_in_lead(lead: str) -> re.Match[str] | None:
    return _mark_in(lead)


def _mark_in(text: str) -> re.Match[str] | None:
    # A dash or a typographic quote is no Japanese.
    return _MARKS.search(text) or (_JAPANESE_MARKS.search(text) if text and max(text) >= _FIRST_KANA else None)


def _key(words: str) -> str:
    return " ".join(words.casefold().split())[:60]
