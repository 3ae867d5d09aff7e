"""The reader of one draft rule: words, language and types, grounding; every failure on the way is gathered."""

import re
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

from rulegen_dagster.domain.clause import Clause, ContextEntry
from rulegen_dagster.domain.errors import Failure, RuleLanguageError
from rulegen_dagster.domain.money import CURRENCIES
from rulegen_dagster.domain.rule import (
    Decision,
    ExceptionClause,
    ExceptionDraft,
    IntParam,
    Param,
    Rule,
    RuleDraft,
    Source,
)
from rulegen_dagster.domain.vocabulary import Vocabulary
from rulegen_dagster.rules.context_quotes import ground_exception_in_context, ground_parameter_in_context
from rulegen_dagster.rules.dates import dates_in
from rulegen_dagster.rules.engine import parse_checked
from rulegen_dagster.rules.expression import Expr, names_in
from rulegen_dagster.rules.fact_grid import fact_grid
from rulegen_dagster.rules.formula import Formula
from rulegen_dagster.rules.grounding import (
    PROBLEM_MESSAGES,
    QuoteProblem,
    contradicts_currency,
    ground_fragment,
    ground_parameter_quote,
    ground_sentence,
    names_approver,
    states_parameter,
    words_around,
)
from rulegen_dagster.rules.language import UNUSABLE_SEGMENTS, to_cel
from rulegen_dagster.rules.literals import unstated_literals
from rulegen_dagster.rules.replies import failure_at
from rulegen_dagster.rules.symbols import PARAM_PREFIX, Kind, Symbols

ACTIVE_TEXT_MESSAGE: Final = "links, markup and control characters are not allowed here"

_ACTIVE_TEXT = re.compile(r"[a-z][a-z0-9+.\-]*://|\bwww\.|\b(?:javascript|data|mailto):|[<>]|\]\s*\(", re.IGNORECASE)
_MAX_WORDS: Final = 120
_MOST_POINTS: Final = 2_000
_Grounded = TypeVar("_Grounded")


class RuleReader:
    """Checks one draft rule and gathers every failure on the way."""

    def __init__(
        self,
        draft: RuleDraft,
        path: str,
        clause: Clause,
        vocabulary: Vocabulary,
        context: Mapping[int, ContextEntry],
    ) -> None:
        """Take the draft at its place in the reply, and what its provider was given beside the clause."""
        self.failures: list[Failure] = []
        self.behaviour: object = None
        self._draft = draft
        self._path = path
        self._clause = clause
        self._vocabulary = vocabulary
        self._context = context

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
            elif is_active(text):
                self._fail("active_text", path, ACTIVE_TEXT_MESSAGE)
        if draft.subject not in self._vocabulary.subjects:
            known = ", ".join(self._vocabulary.subjects)
            self._fail("unknown_subject", ".subject", f"the vocabulary's subjects are {known}")
        if draft.effective_from and draft.effective_to and draft.effective_from > draft.effective_to:
            self._fail("effective_range", ".effective_from", "effective_from is after effective_to")

    def _check_stated(self, quote: str) -> None:
        """Hold the dates and the approver against the quote, the lead of its list, and the quotes of the exceptions."""
        draft = self._draft
        own = (item.quote for item in draft.unless if self._elsewhere(item.clause_ordinal) is None)
        around = (quote, self._clause.lead or "", *own)
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
        for (path, _, _), expr, words in zip(sources, read, self._words_of_each(len(sources)), strict=True):
            for literal in unstated_literals(expr, words, symbols):
                message = f"{literal.value} does not occur in the clause; state it as a parameter with its quote"
                self._fail("number_not_in_quote", path, message)
        texts = (to_cel(read[0]), frozenset(map(to_cel, read[1:])))
        values = frozenset(symbols.parameter_values().items())
        self._check_restraint(read, symbols)
        self.behaviour = (draft.subject, draft.decision, texts, values, draft.effective_from, draft.effective_to)

    def _words_of_each(self, count: int) -> list[str]:
        """Return the words in which the numbers of the condition, each exception and the cap are looked for.

        The quote of an exception gives numbers to that exception alone: in another clause it stands for nothing else.
        """
        around = words_around(self._clause)
        words = [around] * count
        for index, item in enumerate(self._draft.unless, start=1):
            if self._elsewhere(item.clause_ordinal) is not None:
                words[index] = f"{around}\n{item.quote}"
        return words

    def _check_restraint(self, read: Sequence[Expr], symbols: Symbols) -> None:
        """Refuse a permission without a limit, and exceptions that leave nothing of their rule: no clause says that."""
        draft = self._draft
        if draft.decision is not Decision.ALLOW and not draft.unless:
            return
        formula = Formula(
            decision=draft.decision,
            condition=read[0],
            exceptions=tuple(read[1 : 1 + len(draft.unless)]),
            cap=None,
            parameters=symbols.parameter_values(),
        )
        grid = fact_grid([formula], self._vocabulary, max_points=_MOST_POINTS)
        if not grid.complete:
            return
        holds = {formula.holds(point) for point in grid.points()}
        if draft.decision is Decision.ALLOW and holds == {True}:
            self._fail("allows_everything", ".applies_when", "the condition holds whatever the facts are")
        if draft.unless and holds == {False}:
            self._fail("exceptions_leave_nothing", ".unless", "the rule holds for no facts: its exceptions cover it")

    def _expression(self, path: str, source: str, kind: Kind, symbols: Symbols) -> Expr | None:
        try:
            return parse_checked(source, kind, symbols)
        except RuleLanguageError as error:
            self._fail(error.code, path, str(error))
            return None

    def _ground_params(self) -> dict[str, Param]:
        grounded: dict[str, Param] = {}
        for name, param in self._draft.params.items():
            quote = self._unwrap(self._parameter_quote(param), f".params.{name}.quote")
            if quote is None:
                continue
            if not states_parameter(quote, param):
                self._fail("number_not_in_quote", f".params.{name}", "its number does not occur in its quote")
            if contradicts_currency(quote, param):
                self._fail("currency_not_in_quote", f".params.{name}.currency", "its quote names another currency")
            if not isinstance(param, IntParam) and param.currency not in CURRENCIES:
                self._fail("unknown_currency", f".params.{name}.currency", "no currency in use has this code")
            grounded[name] = param.model_copy(
                update={"quote": quote, "clause_ordinal": self._elsewhere(param.clause_ordinal)}
            )
        return grounded

    def _parameter_quote(self, param: Param) -> str | QuoteProblem:
        elsewhere = self._elsewhere(param.clause_ordinal)
        if elsewhere is None:
            return ground_parameter_quote(param.quote, self._clause)
        return ground_parameter_in_context(param, elsewhere, self._clause, self._context)

    def _ground_exceptions(self) -> tuple[ExceptionClause, ...]:
        grounded = []
        for index, item in enumerate(self._draft.unless):
            source = self._unwrap(self._exception_source(item), f".unless[{index}].quote")
            if source is not None:
                grounded.append(ExceptionClause(condition=item.condition, source=source))
        return tuple(grounded)

    def _exception_source(self, item: ExceptionDraft) -> Source | QuoteProblem:
        elsewhere = self._elsewhere(item.clause_ordinal)
        if elsewhere is None:
            return ground_fragment(item.quote, self._clause)
        return ground_exception_in_context(item.quote, elsewhere, self._context)

    def _elsewhere(self, clause_ordinal: int | None) -> int | None:
        """Return the number of another clause that a quote names; None where it stands in this one."""
        return None if clause_ordinal == self._clause.ordinal else clause_ordinal

    def _unwrap(self, found: _Grounded | QuoteProblem, path: str) -> _Grounded | None:
        if isinstance(found, QuoteProblem):
            self._fail(found.value, path, PROBLEM_MESSAGES[found])
            return None
        return found

    def _fail(self, code: str, path: str, message: str) -> None:
        self.failures.append(failure_at(code, self._path + path, message))


def is_active(text: str) -> bool:
    """Return whether a text holds a link, markup or control characters, and so does more than be read."""
    return bool(_ACTIVE_TEXT.search(text)) or not text.isprintable()
