"""`rulegen-pattern`: drafts by sentence patterns. Deterministic, needs no account, and is not a language model.

It takes plain one-sentence limits, papers, approvals, refusals, deadlines, shares and rates in English and German, and
abstains with a typed reason from everything else. It never guesses: a clause with a single unread word is left to a
person or to a model.
"""

import re
from functools import lru_cache
from pathlib import Path

from rulegen_dagster.domain.canonical import canonical_json, sha256_hex
from rulegen_dagster.domain.clause import ContextRelation
from rulegen_dagster.domain.errors import ProviderPermanentError
from rulegen_dagster.domain.rule import NoRuleDraft, RulesReply, TestsReply
from rulegen_dagster.domain.states import Stage
from rulegen_dagster.providers.pattern_cases import cases_of
from rulegen_dagster.providers.pattern_model import Abstention, Reading
from rulegen_dagster.providers.pattern_readings import read_clause
from rulegen_dagster.providers.pattern_rules import rule_of
from rulegen_dagster.providers.port import ProviderIdentity, ProviderReply, ProviderRequest

PATTERN_PROVIDER = "rulegen-pattern"
"""Name of this provider in settings, behaviours and labels."""

_NEIGHBOURS = (ContextRelation.SAME_PARAGRAPH, ContextRelation.SAME_SECTION)
_DEVIATES = re.compile(
    r"[\s*_\-–(\d).]*(?:abweichend|in abweichung|ausgenommen|dies gilt nicht|das gilt nicht|davon|hiervon|jedoch"
    r"|however|notwithstanding|except|exceptions?|unless|(?:this|that|the above) (?:does|do|shall) not apply)\b",
    re.IGNORECASE,
)


class PatternProvider:
    """Makes drafts by sentence patterns; a call takes no time, no network and no money."""

    def __init__(self) -> None:
        """Name the patterns by the hash of their own source."""
        self._identity = ProviderIdentity(
            name=PATTERN_PROVIDER, model_id=_model_id(), is_language_model=False, can_repair=False
        )

    @property
    def identity(self) -> ProviderIdentity:
        """Who this is, for behaviour and labels."""
        return self._identity

    async def call(self, request: ProviderRequest) -> ProviderReply:
        """Return the draft for one request; tokens and cost stay None, because there are none.

        A clause that gives no rule gives no tests either: asked for them, this raises `ProviderPermanentError`.
        """
        if request.stage is Stage.GENERATE_RULES:
            draft = self._rules(request)
        elif request.stage is Stage.GENERATE_TESTS:
            draft = self._tests(request)
        else:
            raise ProviderPermanentError(f"the pattern provider drafts rules and tests, not {request.stage.value}")
        return ProviderReply(draft=draft, model_id=self._identity.model_id)

    def _rules(self, request: ProviderRequest) -> str:
        reading = _read(request)
        if isinstance(reading, Abstention):
            reply = RulesReply(no_rule=NoRuleDraft(reason=reading.reason, detail=reading.detail))
        else:
            reply = RulesReply(rules=(rule_of(request.clause, reading, request.vocabulary),))
        return canonical_json(reply.model_dump(mode="json", exclude_none=True))

    def _tests(self, request: ProviderRequest) -> str:
        reading = _read(request)
        if isinstance(reading, Abstention):
            raise ProviderPermanentError(f"the clause gives no tests ({reading.reason})")
        reply = TestsReply(tests=cases_of(reading, request.vocabulary))
        return canonical_json(reply.model_dump(mode="json", exclude_none=True))


def _read(request: ProviderRequest) -> Reading | Abstention:
    """Read the clause, unless a sentence behind it takes some of it back: that is one rule, and not in one clause."""
    reading = read_clause(request.clause, request.vocabulary)
    for entry in request.context:
        if entry.relation in _NEIGHBOURS and entry.ordinal > request.clause.ordinal and _DEVIATES.match(entry.text):
            return Abstention(reason="exception_in_another_clause", detail=f"clause {entry.ordinal} deviates from it")
    return reading


@lru_cache(maxsize=1)
def _model_id() -> str:
    sources = sorted(Path(__file__).parent.glob("pattern*.py"))
    return f"{PATTERN_PROVIDER}/2+sha256:{sha256_hex(b''.join(path.read_bytes() for path in sources))[:12]}"
