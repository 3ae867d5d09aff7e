"""A self-check of the rule language: the native evaluator loads, and agrees with ours."""

from rulegen_dagster.domain.errors import RuleLanguageError
from rulegen_dagster.domain.rule import MoneyParam, Rule, Source
from rulegen_dagster.domain.vocabulary import BoolFact, EnumFact, MoneyFact, Vocabulary
from rulegen_dagster.rules.engine import compile_rule
from rulegen_dagster.rules.facts import complete_facts

_QUOTE = "Meals above USD 75 need a receipt."


def evaluators_agree() -> int:
    """Evaluate a small rule around its threshold on both evaluators; return the number of evaluations.

    Raises `RuleLanguageError` where they differ or the result is wrong.
    """
    vocabulary = Vocabulary(
        name="selfcheck",
        version=1,
        description="Facts of the self-check.",
        subjects=("meals",),
        facts={
            "expense.category": EnumFact(
                type="enum", values={"meals": (), "other": ()}, default="other", description="Kind."
            ),
            "expense.amount_minor": MoneyFact(type="money", description="Amount."),
            "expense.has_receipt": BoolFact(type="bool", description="Receipt."),
        },
    )
    rule = Rule.model_validate(
        {
            "id": "selfcheck",
            "source": Source(clause_ordinal=0, quote=_QUOTE, start=0, end=len(_QUOTE)),
            "modality": "must",
            "subject": "meals",
            "decision": "require_receipt",
            "applies_when": 'expense.category == "meals" && expense.amount_minor > p.limit && !expense.has_receipt',
            "params": {"limit": MoneyParam(type="money", currency="USD", minor=7500, quote="USD 75")},
        }
    )
    compiled = compile_rule(rule, vocabulary)
    evaluations = 0
    for amount, expected in ((7499, False), (7500, False), (7501, True)):
        facts = complete_facts(vocabulary, {"expense.category": "meals", "expense.amount_minor": amount})
        if (compiled.decide(facts).decision is not None) is not expected:
            raise RuleLanguageError("selfcheck_failed", f"an amount of {amount} was decided wrongly")
        evaluations += 2
    return evaluations
