"""A reading to a rule draft in the rule language."""

from rulegen_dagster.domain.clause import Clause
from rulegen_dagster.domain.money import micros_per_minor
from rulegen_dagster.domain.rule import (
    Decision,
    ExceptionDraft,
    IntParam,
    Modality,
    MoneyParam,
    Param,
    RateParam,
    RuleDraft,
)
from rulegen_dagster.domain.vocabulary import Vocabulary
from rulegen_dagster.providers.pattern_model import Demand, FactIs, Reading, Share, Threshold
from rulegen_dagster.providers.pattern_roles import category_of


def decision_of(reading: Reading) -> Decision:
    """Return what a reading decides; a `should` clause only flags, whatever it speaks of.

    What lies above a limit in money is paid up to it; what lies above one in days or hours is refused.
    """
    if reading.modality is Modality.SHOULD and reading.demand is not Demand.PERMISSION:
        return Decision.FLAG
    if reading.demand is Demand.LIMIT and reading.threshold and reading.threshold.currency is None:
        return Decision.DENY
    return {
        Demand.LIMIT: Decision.REIMBURSE_UP_TO,
        Demand.RECEIPT: Decision.REQUIRE_RECEIPT,
        Demand.APPROVAL: Decision.REQUIRE_APPROVAL,
        Demand.REFUSAL: Decision.DENY,
        Demand.DEADLINE: Decision.DENY,
        Demand.RATE: Decision.REIMBURSE_UP_TO,
        Demand.PERMISSION: Decision.ALLOW,
    }[reading.demand]


def rule_of(clause: Clause, reading: Reading, vocabulary: Vocabulary) -> RuleDraft:
    """Write the rule of a reading; the quote is the whole clause."""
    params: dict[str, Param] = {}
    conditions = [_condition(fact) for fact in reading.facts]
    if reading.threshold:
        name = "limit" if reading.demand is Demand.LIMIT else "threshold"
        conditions.append(_comparison(reading.threshold, name, params))
    if reading.share and reading.share.comparator:
        conditions.append(_share_comparison(reading.share, reading.share.comparator.value, params))
    if reading.spent:
        conditions.append(_any_above_zero(reading.spent))
    decision = decision_of(reading)
    return RuleDraft(
        quote=clause.text,
        modality=reading.modality,
        subject=_subject(reading, vocabulary),
        decision=decision,
        applies_when=" && ".join(conditions),
        cap=_cap(reading, params) if decision is Decision.REIMBURSE_UP_TO else None,
        params=params,
        unless=tuple(
            ExceptionDraft(
                condition=" && ".join(
                    [
                        *(_condition(fact) for fact in exception.facts),
                        *([_comparison(exception.threshold, "exception", params)] if exception.threshold else []),
                    ]
                ),
                quote=exception.quote,
            )
            for exception in reading.exceptions
        ),
        approver=reading.approver,
    )


def _condition(fact: FactIs) -> str:
    first = fact.values[0]
    if isinstance(first, bool):
        return fact.fact if first else f"!{fact.fact}"
    if len(fact.values) == 1:
        return f'{fact.fact} == "{first}"'
    quoted = ", ".join(f'"{value}"' for value in fact.values)
    return f"{fact.fact} in [{quoted}]"


def _any_above_zero(facts: tuple[str, ...]) -> str:
    joined = " || ".join(f"{fact} > 0" for fact in facts)
    return f"({joined})" if len(facts) > 1 else joined


def _comparison(threshold: Threshold, name: str, params: dict[str, Param]) -> str:
    if threshold.currency is not None:
        params[name] = MoneyParam(
            type="money", currency=threshold.currency, minor=threshold.value, quote=threshold.quote
        )
    else:
        name = threshold.unit if name == "threshold" else f"{name}_{threshold.unit}"
        params[name] = IntParam(type="int", value=threshold.value, unit=threshold.unit, quote=threshold.quote)
    factor = f" * {threshold.factor}" if threshold.factor != 1 else ""
    return f"{threshold.fact} {threshold.comparator.value} p.{name}{factor}"


def _share_comparison(share: Share, comparator: str, params: dict[str, Param]) -> str:
    """Compare by multiplication: a division would cut the share to whole minor units first."""
    params["percent"] = _percent(share)
    return f"{share.part} * 100 {comparator} {share.whole} * p.percent"


def _percent(share: Share) -> IntParam:
    return IntParam(type="int", value=share.percent, unit="percent", quote=share.quote)


def _cap(reading: Reading, params: dict[str, Param]) -> str:
    if share := reading.share:
        params["percent"] = _percent(share)
        return f"{share.whole} * p.percent / 100"
    rate = reading.rate
    if rate is None:
        return "p.limit"
    params["rate"] = RateParam(type="rate", currency=rate.currency, micros=rate.micros, per=rate.per, quote=rate.quote)
    return f"p.rate * {rate.measure} / {micros_per_minor(rate.currency)}"


def _subject(reading: Reading, vocabulary: Vocabulary) -> str:
    """Name what the decision is about: the category, else the thing whose fact decides, else the expense."""
    category = category_of(vocabulary)
    candidates = [str(fact.values[0]) for fact in reading.facts if fact.fact == category and len(fact.values) == 1]
    names = [fact.fact for fact in reading.facts] + ([reading.threshold.fact] if reading.threshold else [])
    candidates += [prefix for name in names if (prefix := name.partition(".")[0]) not in ("expense", "approval")]
    candidates.append("expense")
    return next((name for name in candidates if name in vocabulary.subjects), vocabulary.subjects[0])
