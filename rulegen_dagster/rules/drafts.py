"""Drafts: what a provider returned becomes a value of the domain, or a list of typed reasons why not.

The order is fixed: size, JSON and schema, then language and types, then grounding. Nothing of a draft is trusted
before all of it has passed.
"""

import re
from collections.abc import Sequence
from string import ascii_lowercase
from typing import Final, TypeVar

from pydantic import BaseModel, ValidationError

from rulegen_dagster.domain.clause import Clause
from rulegen_dagster.domain.errors import DraftRejectedError, Failure, RuleLanguageError
from rulegen_dagster.domain.rule import (
    Decision,
    ExceptionClause,
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
from rulegen_dagster.rules.engine import parse_checked
from rulegen_dagster.rules.expression import Expr, names_in
from rulegen_dagster.rules.facts import complete_facts
from rulegen_dagster.rules.grounding import (
    PROBLEM_MESSAGES,
    QuoteProblem,
    contradicts_currency,
    ground_fragment,
    ground_parameter_quote,
    ground_sentence,
    numbers_around,
    states_parameter,
)
from rulegen_dagster.rules.language import UNUSABLE_SEGMENTS, to_cel
from rulegen_dagster.rules.literals import unstated_literals
from rulegen_dagster.rules.symbols import PARAM_PREFIX, Kind, Symbols

MAX_DRAFT_BYTES: Final = 64 * 1024
MAX_FAILURES: Final = 20

_ACTIVE_TEXT = re.compile(r"[a-z][a-z0-9+.\-]*://|\bwww\.|\b(?:javascript|data|mailto):|[<>]|\]\s*\(", re.IGNORECASE)
_MAX_WORDS: Final = 120
_PARAM_TAGS: Final = ("money", "int", "rate")
_UNION_MEMBER = re.compile(r"(?:str-enum|literal)\[.*\]|\[key\]", re.DOTALL)

_Reply = TypeVar("_Reply", bound=BaseModel)
_Grounded = TypeVar("_Grounded")


def read_rules_draft(raw: str, *, clause: Clause, item_key: str, vocabulary: Vocabulary) -> RuleOutput:
    """Return the accepted rules of one clause, or its typed reason for having none.

    The first rule takes the item key as its id, the others `<item key>-b`, `-c` and so on. Raises
    `DraftRejectedError` with every failure that was found (at most 20).
    """
    reply = _read(RulesReply, raw)
    if reply.no_rule is not None:
        return RuleOutput(no_rule=reply.no_rule)
    failures: list[Failure] = []
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
            failures.append(_failure("duplicate_rule", f"$.rules[{index}]", "an earlier rule says the same"))
        seen.add(reader.behaviour)
        rules.append(rule)
    _reject(failures)
    return RuleOutput(rules=tuple(rules))


def read_tests_draft(raw: str, *, vocabulary: Vocabulary) -> SuiteOutput:
    """Return the accepted test cases of one clause; raises `DraftRejectedError`."""
    reply = _read(TestsReply, raw)
    failures: list[Failure] = []
    names: set[str] = set()
    expectations: dict[frozenset[tuple[str, FactValue]], list[TestCase]] = {}
    for index, case in enumerate(reply.tests):
        path = f"$.tests[{index}]"
        if case.name in names:
            failures.append(_failure("duplicate_name", f"{path}.name", "an earlier test has the same name"))
        names.add(case.name)
        if (case.expect == Decision.REIMBURSE_UP_TO) != (case.expect_cap_minor is not None):
            message = "expect_cap_minor belongs to reimburse_up_to and only there"
            failures.append(_failure("cap_expectation", f"{path}.expect_cap_minor", message))
        try:
            facts = complete_facts(vocabulary, case.facts)
        except RuleLanguageError as error:
            failures.append(_failure(error.code, f"{path}.facts", error.message))
            continue
        same_facts = expectations.setdefault(frozenset(facts.items()), [])
        if any(_contradict(case, other) for other in same_facts):
            message = "an earlier test has the same facts and another outcome"
            failures.append(_failure("contradicting_tests", path, message))
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
            elif _ACTIVE_TEXT.search(text) or not text.isprintable():
                self._fail("active_text", path, "links, markup and control characters are not allowed here")
        if draft.subject not in self._vocabulary.subjects:
            known = ", ".join(self._vocabulary.subjects)
            self._fail("unknown_subject", ".subject", f"the vocabulary's subjects are {known}")
        if draft.effective_from and draft.effective_to and draft.effective_from > draft.effective_to:
            self._fail("effective_range", ".effective_from", "effective_from is after effective_to")

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
        self.behaviour = (draft.subject, draft.decision, texts, values, draft.effective_from, draft.effective_to)

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
        self.failures.append(_failure(code, self._path + path, message))


def _contradict(case: TestCase, other: TestCase) -> bool:
    if "no_match" in (case.expect, other.expect):
        return case.expect != other.expect
    return case.expect == other.expect and case.expect_cap_minor != other.expect_cap_minor


def _read(model: type[_Reply], raw: str) -> _Reply:
    # Code points bound the bytes from below, so that a huge text is refused before it is encoded.
    if len(raw) > MAX_DRAFT_BYTES or len(raw.encode("utf-8", "replace")) > MAX_DRAFT_BYTES:
        raise DraftRejectedError((_failure("draft_too_large", "$", f"more than {MAX_DRAFT_BYTES:,} bytes"),))
    # No store keeps this character, and no word of a policy needs it.
    if "\\u0000" in raw:
        raise DraftRejectedError((_failure("nul_character", "$", "the escape for the character NUL is not allowed"),))
    try:
        return model.model_validate_json(raw)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        unique = {_path(item["loc"]): item for item in reversed(found)}
        failures = [_schema_failure(path, item["type"], item["msg"]) for path, item in reversed(unique.items())]
        raise DraftRejectedError(tuple(failures[:MAX_FAILURES])) from None


def _schema_failure(path: str, kind: str, message: str) -> Failure:
    code = "invalid_json" if kind == "json_invalid" else "invalid_schema"
    return _failure(code, path, message.removeprefix("Value error, "))


def _path(location: Sequence[int | str]) -> str:
    """Return a JSON path; the tags that pydantic adds for the members of a union are left out."""
    parts = ["$"]
    for index, step in enumerate(location):
        behind_key = location[index - 2] if index >= 2 else None
        if behind_key == "facts" or (behind_key == "params" and step in _PARAM_TAGS):
            continue
        if isinstance(step, str) and _UNION_MEMBER.fullmatch(step):
            continue
        if isinstance(step, int):
            parts.append(f"[{step}]")
        elif step.isidentifier():
            parts.append(f".{step[:60]}")
        else:
            parts.append(f"[{step[:60]!a}]")
    return "".join(parts)


def _failure(code: str, path: str, message: str) -> Failure:
    return Failure(code=code, path=path, message=message)


def _reject(failures: Sequence[Failure]) -> None:
    if failures:
        raise DraftRejectedError(tuple(failures[:MAX_FAILURES]))
