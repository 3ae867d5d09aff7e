"""Drafts: what a provider returned becomes a value of the domain, or a list of typed reasons why not.

The order is fixed: size, JSON and schema, then language and types, then grounding. Nothing of a draft is trusted
before all of it has passed.
"""

from collections.abc import Iterator, Sequence
from string import ascii_lowercase

from rulegen_dagster.domain.clause import Clause, ContextEntry
from rulegen_dagster.domain.errors import DraftRejectedError, Failure, RuleLanguageError
from rulegen_dagster.domain.rule import (
    Decision,
    FactProposal,
    Rule,
    RuleOutput,
    RulesReply,
    SuiteOutput,
    TestCase,
    TestsReply,
)
from rulegen_dagster.domain.vocabulary import FactValue, Vocabulary
from rulegen_dagster.rules.facts import complete_facts
from rulegen_dagster.rules.grounding import PROBLEM_MESSAGES, QuoteProblem, ground_fragment
from rulegen_dagster.rules.replies import failure_at, first_failures, read_reply
from rulegen_dagster.rules.rule_reader import ACTIVE_TEXT_MESSAGE, RuleReader, is_active


def read_rules_draft(
    raw: str,
    *,
    clause: Clause,
    item_key: str,
    vocabulary: Vocabulary,
    tenant: str | None = None,
    context: Sequence[ContextEntry] = (),
) -> RuleOutput:
    """Return the accepted rules of one clause, or its typed reason for having none.

    The first rule takes the item key as its id, the others `<item key>-b`, `-c` and so on. `context` is what the
    provider was given beside the clause: each rule depends on all of it, and may quote some of it. Raises
    `DraftRejectedError` with every failure that was found (at most 20).
    """
    given = {entry.ordinal: entry for entry in context}
    reply = read_reply(RulesReply, raw)
    failures = [*_foreign(reply, item_key, tenant), *_proposal_failures(reply.proposed_facts, clause, vocabulary)]
    rules: list[Rule] = []
    seen: set[object] = set()
    for index, draft in enumerate(reply.rules):
        reader = RuleReader(draft, f"$.rules[{index}]", clause, vocabulary, given)
        rule_id = item_key if index == 0 else f"{item_key}-{ascii_lowercase[index]}"
        rule = reader.read(rule_id)
        failures += reader.failures
        if rule is None:
            continue
        if reader.behaviour in seen:
            failures.append(failure_at("duplicate_rule", f"$.rules[{index}]", "an earlier rule says the same"))
        seen.add(reader.behaviour)
        rules.append(rule.model_copy(update={"depends_on": tuple(given)}))
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
        if is_active(proposal.description):
            yield failure_at("active_text", f"{path}.description", ACTIVE_TEXT_MESSAGE)
        grounded = ground_fragment(proposal.quote, clause)
        if isinstance(grounded, QuoteProblem):
            yield failure_at(grounded.value, f"{path}.quote", PROBLEM_MESSAGES[grounded])


def _contradict(case: TestCase, other: TestCase) -> bool:
    if "no_match" in (case.expect, other.expect):
        return case.expect != other.expect
    return case.expect == other.expect and case.expect_cap_minor != other.expect_cap_minor


def _reject(failures: Sequence[Failure]) -> None:
    if failures:
        raise DraftRejectedError(first_failures(failures))
