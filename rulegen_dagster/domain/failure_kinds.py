"""Failure kinds: what a refusal's code is about, and whether a provider may be asked to mend it."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class FailureKind(StrEnum):
    """What a failure of validation is about; a closed set."""

    #: Not the shape that was asked for: JSON, schema, or the syntax of the rule language.
    FORMAT = "format"
    #: A fact, value, subject or type that the vocabulary does not have.
    VOCABULARY = "vocabulary"
    #: A quote, number, date, approver or currency that the clause does not state.
    GROUNDING = "grounding"
    #: Speaks for another clause or tenant, or takes its orders from the text.
    PERMISSION = "permission"
    #: Well formed and grounded, and still no rule that may be: ranges, dates, links, contradictions, numbers of rules.
    DOMAIN = "domain"
    #: About test cases: missing, failing or contradicting one another.
    TESTS = "tests"


REPAIRABLE_KINDS: Final = frozenset({FailureKind.FORMAT, FailureKind.VOCABULARY, FailureKind.GROUNDING})
"""Kinds that one more call may mend. What is forbidden stays forbidden, however the provider is asked."""

_CODES: Final = {
    FailureKind.FORMAT: (
        "invalid_json invalid_schema draft_too_large draft_unreadable nul_character too_long empty syntax too_deep"
        " too_large unexpected_character number_format chained_comparison index_not_allowed list_not_allowed"
        " function_not_allowed reserved_word unused_parameter undeclared_parameter cel_compile duplicate_name"
        " cap_expectation answer_unreadable answer_truncated"
    ),
    FailureKind.VOCABULARY: (
        "unknown_fact unknown_subject unknown_enum_value wrong_type wrong_fact_type bare_number_against_money"
        " money_conversion fact_already_known missing_fact"
    ),
    FailureKind.GROUNDING: (
        "quote_not_verbatim quote_not_sentence_aligned number_not_in_quote currency_not_in_quote date_not_in_quote"
        " approver_not_in_quote clause_not_in_context number_of_another_clause"
    ),
    FailureKind.PERMISSION: "foreign_clause foreign_tenant quote_reads_like_an_instruction answer_refused",
    FailureKind.DOMAIN: (
        "active_text effective_range should_denies too_many_rules allows_everything exceptions_leave_nothing"
        " duplicate_rule duplicate_rule_id mixed_currencies unknown_currency literal_range divisor_not_positive"
        " overflow_possible overflow"
        " division_by_zero cap_out_of_range fact_out_of_range evaluator_difference cel_evaluation selfcheck_failed"
        " no_rules conflicts coverage abstentions"
    ),
    FailureKind.TESTS: "contradicting_tests too_few_tests no_boundary_test test_failed mutation_score",
}

FAILURE_KINDS: Final[Mapping[str, FailureKind]] = MappingProxyType(
    {code: kind for kind, codes in _CODES.items() for code in codes.split()}
)
"""The kind of every failure code."""


def kind_of(code: str) -> FailureKind:
    """Return the kind of a code; one that the table lacks counts as `domain`, so that nobody is asked to mend it."""
    return FAILURE_KINDS.get(code, FailureKind.DOMAIN)
