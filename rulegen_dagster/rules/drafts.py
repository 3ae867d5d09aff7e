"""Drafts: what a provider returned becomes a value of the domain, or a list of typed reasons why not.

The order is fixed: size, JSON and schema, then language and types, then grounding. Nothing of a draft is trusted
before all of it has passed.
"""

import re
from collections.abc import Iterator, Sequence
from string import ascii_lowercase
from typing import Final, TypeVar

from rulegen_dagster.domain.clause import Clause
from rulegen_dagster.domain.errors import DraftRejectedError, Failure, RuleLanguageError
from rulegen_dagster.domain.money import CURRENCIES
from rulegen_dagster.domain.rule import (
    Decision,
    ExceptionClause,
    FactProposal,
    IntParam,
    Param,
    Rule,
    RuleDraft,
    RuleOutput,
    RulesReply,
    SuiteOutput,
    TestCase,
    TestsReply,
)
from rulegen_dagster.domain.vocabulary import FactValue, Vocabulary
from rulegen_dagster.rules.dates import dates_in
from rulegen_dagster.rules.engine import parse_checked
from rulegen_dagster.rules.expression import Expr, names_in
from rulegen_dagster.rules.fact_grid import fact_grid
from rulegen_dagster.rules.facts import complete_facts
from rulegen_dagster.rules.formula import Formula
from rulegen_dagster.rules.grounding import (
    PROBLEM_MESSAGES,
    QuoteProblem,
    contradicts_currency,
    ground_fragment,
    ground_parameter_quote,
    ground_sentence,
    names_approver,
    numbers_around,
    states_parameter,
)
from rulegen_dagster.rules.language import UNUSABLE_SEGMENTS, to_cel
from rulegen_dagster.rules.literals import unstated_literals
from rulegen_dagster.rules.replies import failure_at, first_failures, read_reply
from rulegen_dagster.rules.symbols import PARAM_PREFIX, Kind, Symbols

_ACTIVE_TEXT = re.compile(r"[a-z][a-z0-9+.\-]*://|\bwww\.|\b(?:javascript|data|mailto):|[<>]|\]\s*\(", re.IGNORECASE)
_ACTIVE_TEXT_MESSAGE: Final = "links, markup and control characters are not allowed here"
_MAX_WORDS: Final = 120
_MOST_POINTS: Final = 2_000
_Grounded = TypeVar("_Grounded")


def read_rules_draft(
    raw: str,
    *,
    clause: Clause,
    item_key: str,
    vocabulary: Vocabulary,
    tenant: str | None = None,
    depends_on: tuple[int, ...] = (),
) -> RuleOutput:
    """Return the accepted rules of one clause, or its typed reason for having none.

    The first rule takes the item key as its id, the others `<item key>-b`, `-c` and so on; `depends_on` are the
    ordinals of the clauses that the provider was given as context. Raises `DraftRejectedError` with every failure that
    was found (at most 20).
    """
    reply = read_reply(RulesReply, raw)
    failures = [*_foreign(reply, item_key, tenant), *_proposal_failures(reply.proposed_facts, clause, vocabulary)]
    rules: list[Rule] = []
    seen: set[object] = set()
    for index, draft in enumerate(reply.rules):
        reader = _RuleReader(draft, f"$.rules[{index}]", clause, vocabulary)
        rule_id = item_key if index == 0 else f"{item_key}-{ascii_lowercase[index]}"
        rule = reader.read(rule_id)
        failures += reader.failures
        if rule is None:
            continue
        if reader.behaviour in seen:
            failures.append(failure_at("duplicate_rule", f"$.rules[{index}]", "an earlier rule says the same"))
        seen.add(reader.behaviour)
        rules.append(rule.model_copy(update={"depends_on": depends_on}))
    _reject(failures)
    return RuleOutput(rules=tuple(rules), no_rule=reply.no_rule, proposed_facts=reply.proposed_facts)


def read_tests_draft(
    raw: str, *, vocabulary: Vocabulary, item_key: str | None = None, tenant: str | None = None
) -> SuiteOutput:
    """Return the accepted test cases of one clause; raises `DraftRejectedError`."""
    reply = read_reply(TestsReply, raw)
    failures = list(_foreign(reply, item_key, tenant))
    names: set[str] = set()
    expectations: dict[frozenset[tuple[str, FactValue]], list[TestCase]] = {}
    for index, case in enumerate(reply.tests):
        path = f"$.tests[{index}]"
        if case.name in names:
            failures.append(failure_at("duplicate_name", f"{path}.name", "an earlier test has the same name"))
        names.add(case.name)
        if (case.expect == Decision.REIMBURSE_UP_TO) != (case.expect_cap_minor is not None):
            message = "expect_cap_minor belongs to reimburse_up_to and only there"
            failures.append(failure_at("cap_expectation", f"{path}.expect_cap_minor", message))
        try:
            facts = complete_facts(vocabulary, case.facts)
        except RuleLanguageError as error:
            failures.append(failure_at(error.code, f"{path}.facts", error.message))
            continue
        same_facts = expectations.setdefault(frozenset(facts.items()), [])
        if any(_contradict(case, other) for other in same_facts):
            message = "an earlier test has the same facts and another outcome"
            failures.append(failure_at("contradicting_tests", path, message))
        same_facts.append(case)
    _reject(failures)
    return SuiteOutput(tests=reply.tests)


class _RuleReader:
    """Checks one draft rule and gathers every failure on the way."""

    def __init__(self, draft: RuleDraft, path: str, clause: Clause, vocabulary: Vocabulary) -> None:
        self.failures: list[Failure] = []
        self.behaviour: object = None
        self._draft = draft
        self._path = path
        self._clause = clause
        self._vocabulary = vocabulary

    def read(self, rule_id: str) -> Rule | None:
        """Return the rule, or None where `failures` says why not."""
        self._check_words()
        self._check_language()
        source = self._unwrap(ground_sentence(self._draft.quote, self._clause), ".quote")
        if source is not None:
            self._check_stated(source.quote)
        params = self._ground_params()
        exceptions = self._ground_exceptions()
        if self.failures or source is None:
            return None
        draft = self._draft
        return Rule(
            id=rule_id,
            source=source,
            modality=draft.modality,
            subject=draft.subject,
            decision=draft.decision,
            applies_when=draft.applies_when,
            cap=draft.cap,
            params=params,
            unless=exceptions,
            approver=draft.approver,
            priority=draft.priority,
            effective_from=draft.effective_from,
            effective_to=draft.effective_to,
        )

    def _check_words(self) -> None:
        draft = self._draft
        units = (
            (f".params.{name}.unit", param.unit) for name, param in draft.params.items() if isinstance(param, IntParam)
        )
        for path, text in ((".subject", draft.subject), (".approver", draft.approver), *units):
            if text is None:
                continue
            if len(text) > _MAX_WORDS:
                self._fail("too_long", path, f"at most {_MAX_WORDS} characters are allowed here")
            elif _is_active(text):
                self._fail("active_text", path, _ACTIVE_TEXT_MESSAGE)
        if draft.subject not in self._vocabulary.subjects:
            known = ", ".join(self._vocabulary.subjects)
            self._fail("unknown_subject", ".subject", f"the vocabulary's subjects are {known}")
        if draft.effective_from and draft.effective_to and draft.effective_from > draft.effective_to:
            self._fail("effective_range", ".effective_from", "effective_from is after effective_to")

    def _check_stated(self, quote: str) -> None:
        """Hold the dates and the approver against the quote, the lead of its list, and the quotes of the exceptions."""
        draft = self._draft
        around = (quote, self._clause.lead or "", *(item.quote for item in draft.unless))
        stated = dates_in("\n".join(around))
        for name, day in (("effective_from", draft.effective_from), ("effective_to", draft.effective_to)):
            if day is not None and day not in stated:
                self._fail("date_not_in_quote", f".{name}", "this date does not occur in the quote")
        if draft.approver is not None and not any(names_approver(text, draft.approver) for text in around):
            self._fail("approver_not_in_quote", ".approver", "these words do not stand in the quote")

    def _check_language(self) -> None:
        draft = self._draft
        for name in sorted(UNUSABLE_SEGMENTS.intersection(draft.params)):
            self._fail("reserved_word", f".params.{name}", "a reserved word cannot name a parameter")
        try:
            symbols = Symbols(self._vocabulary, draft.params)
        except RuleLanguageError as error:
            self._fail(error.code, ".params", error.message)
            return
        sources = [(".applies_when", draft.applies_when, Kind.BOOL)]
        sources += [
            (f".unless[{index}].condition", item.condition, Kind.BOOL) for index, item in enumerate(draft.unless)
        ]
        if draft.cap is not None:
            sources.append((".cap", draft.cap, Kind.MONEY))
        exprs = [self._expression(path, source, kind, symbols) for path, source, kind in sources]
        read = [expr for expr in exprs if expr is not None]
        if len(read) < len(exprs):
            return
        used = frozenset().union(*map(names_in, read))
        for name in draft.params:
            if PARAM_PREFIX + name not in used:
                self._fail("unused_parameter", f".params.{name}", "no condition and no cap reads this parameter")
        stated = numbers_around(self._clause)
        for (path, _, _), expr in zip(sources, read, strict=True):
            for literal in unstated_literals(expr, stated, symbols):
                message = f"{literal.value} does not occur in the clause; state it as a parameter with its quote"
                self._fail("number_not_in_quote", path, message)
        texts = (to_cel(read[0]), frozenset(map(to_cel, read[1:])))
        values = frozenset(symbols.parameter_values().items())
        if draft.decision is Decision.ALLOW:
            self._check_restraint(read, symbols)
        self.behaviour = (draft.subject, draft.decision, texts, values, draft.effective_from, draft.effective_to)

    def _check_restraint(self, read: Sequence[Expr], symbols: Symbols) -> None:
        """Refuse a permission that holds whatever the facts are: no clause of a policy says that."""
        parameters = symbols.parameter_values()
        formula = Formula(
            decision=Decision.ALLOW, condition=read[0], exceptions=tuple(read[1:]), cap=None, parameters=parameters
        )
        grid = fact_grid([formula], self._vocabulary, max_points=_MOST_POINTS)
        if grid.complete and all(map(formula.holds, grid.points())):
            self._fail("allows_everything", ".applies_when", "the condition holds whatever the facts are")

    def _expression(self, path: str, source: str, kind: Kind, symbols: Symbols) -> Expr | None:
        try:
            return parse_checked(source, kind, symbols)
        except RuleLanguageError as error:
            self._fail(error.code, path, str(error))
            return None

    def _ground_params(self) -> dict[str, Param]:
        grounded: dict[str, Param] = {}
        for name, param in self._draft.params.items():
            quote = self._unwrap(ground_parameter_quote(param.quote, self._clause), f".params.{name}.quote")
            if quote is None:
                continue
            if not states_parameter(quote, param):
                self._fail("number_not_in_quote", f".params.{name}", "its number does not occur in its quote")
            if contradicts_currency(quote, param):
                self._fail("currency_not_in_quote", f".params.{name}.currency", "its quote names another currency")
            if not isinstance(param, IntParam) and param.currency not in CURRENCIES:
                self._fail("unknown_currency", f".params.{name}.currency", "no currency in use has this code")
            grounded[name] = param.model_copy(update={"quote": quote})
        return grounded

    def _ground_exceptions(self) -> tuple[ExceptionClause, ...]:
        grounded = []
        for index, item in enumerate(self._draft.unless):
            source = self._unwrap(ground_fragment(item.quote, self._clause), f".unless[{index}].quote")
            if source is not None:
                grounded.append(ExceptionClause(condition=item.condition, source=source))
        return tuple(grounded)

    def _unwrap(self, found: _Grounded | QuoteProblem, path: str) -> _Grounded | None:
        if isinstance(found, QuoteProblem):
            self._fail(found.value, path, PROBLEM_MESSAGES[found])
            return None
        return found

    def _fail(self, code: str, path: str, message: str) -> None:
        self.failures.append(failure_at(code, self._path + path, message))


def _foreign(reply: RulesReply | TestsReply, item_key: str | None, tenant: str | None) -> Iterator[Failure]:
    """Yield a failure for each name in a reply that is not the one that was asked for."""
    if reply.clause_id is not None and reply.clause_id != item_key:
        yield failure_at("foreign_clause", "$.clause_id", "this is not the clause that was asked for")
    if reply.tenant is not None and reply.tenant != tenant:
        yield failure_at("foreign_tenant", "$.tenant", "this is not the tenant that asked")


def _proposal_failures(proposals: Sequence[FactProposal], clause: Clause, vocabulary: Vocabulary) -> Iterator[Failure]:
    names: set[str] = set()
    for index, proposal in enumerate(proposals):
        path = f"$.proposed_facts[{index}]"
        if proposal.name in vocabulary.facts:
            yield failure_at("fact_already_known", f"{path}.name", "the vocabulary has this fact")
        if proposal.name in names:
            yield failure_at("duplicate_name", f"{path}.name", "an earlier proposal has the same name")
        names.add(proposal.name)
        if _is_active(proposal.description):
            yield failure_at("active_text", f"{path}.description", _ACTIVE_TEXT_MESSAGE)
        grounded = ground_fragment(proposal.quote, clause)
        if isinstance(grounded, QuoteProblem):
            yield failure_at(grounded.value, f"{path}.quote", PROBLEM_MESSAGES[grounded])


def _is_active(text: str) -> bool:
    """Return whether a text holds a link, markup or control characters, and so does more than be read."""
    return bool(_ACTIVE_TEXT.search(text)) or not text.isprintable()


def _contradict(case: TestCase, other: TestCase) -> bool:
    if "no_match" in (case.expect, other.expect):
        return case.expect != other.expect
    return case.expect == other.expect and case.expect_cap_minor != other.expect_cap_minor


def _reject(failures: Sequence[Failure]) -> None:
    if failures:
        raise DraftRejectedError(first_failures(failures))
