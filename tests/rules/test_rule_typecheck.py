"""The type check against the vocabulary, and the messages that a second attempt can be built on."""

from collections.abc import Callable

import pytest

from rulegen_dagster.domain.errors import RuleLanguageError
from rulegen_dagster.domain.rule import IntParam, MoneyParam, Param, RateParam
from rulegen_dagster.domain.vocabulary import Vocabulary
from rulegen_dagster.rules.engine import parse_checked
from rulegen_dagster.rules.language import parse
from rulegen_dagster.rules.symbols import Kind, Symbols, ValueType
from rulegen_dagster.rules.typecheck import check

PARAMS: dict[str, Param] = {
    "limit": MoneyParam(type="money", currency="EUR", minor=7500, quote="75"),
    "days": IntParam(type="int", value=60, quote="60"),
    "none": IntParam(type="int", value=0, quote="0"),
    "mile": RateParam(type="rate", currency="EUR", micros=300_000, per="km", quote="0.30"),
}

Check = Callable[[str], ValueType]


@pytest.fixture
def checked(vocabulary: Vocabulary) -> Check:
    return lambda source: check(parse(source), Symbols(vocabulary, PARAMS))


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("expense.amount_minor > p.limit", Kind.BOOL),
        ("expense.amount_minor > 0 && 0 < p.limit", Kind.BOOL),
        ('expense.category == "meals" || "other" != expense.category', Kind.BOOL),
        ('expense.category in ["meals", "lodging"]', Kind.BOOL),
        ("trip.nights in [1, 2]", Kind.BOOL),
        ("expense.has_receipt != expense.preapproved", Kind.BOOL),
        ("-trip.km", Kind.INT),
        ("claim.days_past_deadline % 7", Kind.INT),
        ("trip.nights * p.limit", Kind.MONEY),
        ("p.limit - expense.amount_minor + 0", Kind.MONEY),
        ("expense.amount_minor * (100 - 20) / 100", Kind.MONEY),
        ("expense.has_receipt ? p.limit : 0", Kind.MONEY),
        ("p.mile * trip.km", Kind.MICROS),
        ("trip.km * p.mile / 10000", Kind.MONEY),
        ("(trip.km * p.mile + trip.nights * p.mile) / 10000", Kind.MONEY),
        ("trip.km * p.mile / 10000 <= p.limit", Kind.BOOL),
    ],
)
def test_a_well_typed_expression_has_its_kind(source: str, kind: Kind, checked: Check) -> None:
    assert checked(source).kind is kind


@pytest.mark.parametrize(
    ("source", "code", "message"),
    [
        (
            "expense.amount_mino > p.limit",
            "unknown_fact",
            "no fact 'expense.amount_mino'; did you mean expense.amount_minor?",
        ),
        ("zzz > 1", "unknown_fact", "the vocabulary has no fact 'zzz' (at 0)"),
        ("trip.km > p.kilometers", "undeclared_parameter", "p.kilometers is not declared in params"),
        (
            'expense.category == "meel"',
            "unknown_enum_value",
            "'meel' is not a value of expense.category; did you mean 'meals'?",
        ),
        ('"meel" != expense.category', "unknown_enum_value", "did you mean 'meals'?"),
        ('expense.category in ["meals", "taxi"]', "unknown_enum_value", "'taxi' is not a value of expense.category"),
        ("expense.amount_minor > 7500", "bare_number_against_money", "> sets a bare number against money"),
        ("7500 <= expense.amount_minor", "bare_number_against_money", "state the amount as a parameter"),
        ("p.limit + 1", "bare_number_against_money", "+ sets a bare number against money"),
        ("expense.has_receipt ? p.limit : 5", "bare_number_against_money", "?: sets a bare number against money"),
        ("expense.amount_minor in [7500]", "bare_number_against_money", "`in` sets bare numbers against money"),
        ("p.mile > 1", "bare_number_against_money", "against a rate"),
        ("expense.amount_minor > trip.km", "wrong_type", "> cannot join money and a number"),
        ("expense.amount_minor * p.limit > 0", "wrong_type", "* cannot join money and money"),
        ("expense.amount_minor / p.limit", "wrong_type", "/ cannot join money and money"),
        ("trip.km * p.mile > p.limit", "wrong_type", "micros of money and money; divide the micros first"),
        ("p.mile + p.mile", "wrong_type", "+ cannot join a rate and a rate"),
        ("p.mile / 10000", "wrong_type", "/ cannot join a rate and a number"),
        ("p.mile * p.mile", "wrong_type", "* cannot join a rate and a rate"),
        ("trip.km * p.mile / 100", "money_conversion", "micros of EUR become money by / 10000"),
        ("trip.km * p.mile / trip.nights", "money_conversion", "by / 10000 and nothing else"),
        ("trip.km * p.mile % 10000", "wrong_type", "% cannot join"),
        ("expense.has_receipt > expense.preapproved", "wrong_type", "> needs numbers, not a bool"),
        ("expense.has_receipt == 1", "wrong_type", "== cannot join a bool and a number"),
        ('expense.category > "meals"', "wrong_type", "an enum is compared by == or !="),
        ("expense.category == expense.category", "wrong_type", "an enum is compared by == or !="),
        ('"a" == "a"', "wrong_type", "== cannot join a string and a string"),
        ('trip.km in ["meals"]', "wrong_type", "`in` cannot look for a number"),
        ("expense.category in [1]", "wrong_type", "`in` cannot look for an enum"),
        ("expense.has_receipt in [1]", "wrong_type", "`in` cannot look for a bool"),
        ("trip.km && true", "wrong_type", "&& needs a bool, not a number"),
        ("true || expense.category", "wrong_type", "|| needs a bool, not an enum"),
        ("!trip.km", "wrong_type", "! needs a bool, not a number"),
        ("-expense.has_receipt", "wrong_type", "- needs a number, not a bool"),
        ("trip.km ? 1 : 2", "wrong_type", "? needs a bool, not a number"),
        ("expense.has_receipt ? expense.category : expense.category", "wrong_type", "?: cannot choose between an enum"),
        ("trip.km + true", "wrong_type", "+ cannot join a number and a bool"),
        ("true + true", "wrong_type", "+ cannot join a bool and a bool"),
        ('"a" + "b"', "wrong_type", "+ cannot join a string and a string"),
        ("trip.km / trip.nights", "divisor_not_positive", "the divisor of / must be provably above 0"),
        ("trip.km % p.none", "divisor_not_positive", "the divisor of % must be provably above 0"),
        ("trip.km / -1", "divisor_not_positive", "must be provably above 0"),
        ("trip.km * 1000000000000000", "overflow_possible", "the result of * may leave 64 bits"),
        ("expense.amount_minor * trip.km * trip.km", "overflow_possible", "may leave 64 bits"),
    ],
)
def test_a_badly_typed_expression_is_refused_with_a_message_to_repair_it(
    source: str, code: str, message: str, checked: Check
) -> None:
    with pytest.raises(RuleLanguageError) as refused:
        checked(source)

    assert refused.value.code == code
    assert message in str(refused.value)


def test_the_bounds_of_a_result_enclose_every_value_it_can_take(checked: Check) -> None:
    days = range(-4000, 4001)

    for source, values in (
        ("claim.days_past_deadline / 7", {int(day / 7) for day in days}),
        ("claim.days_past_deadline % 7", {day - int(day / 7) * 7 for day in days}),
        ("5 - claim.days_past_deadline", {5 - day for day in days}),
        ("-claim.days_past_deadline * 3", {-day * 3 for day in days}),
        ("(claim.days_past_deadline > 0 ? 10 : claim.days_past_deadline)", {day if day <= 0 else 10 for day in days}),
    ):
        found = checked(source)

        assert found.low <= min(values)
        assert found.high >= max(values)


def test_a_remainder_of_a_positive_number_is_bounded_by_both_sides(checked: Check) -> None:
    assert (checked("trip.nights % 1000").low, checked("trip.nights % 1000").high) == (0, 400)
    assert (checked("trip.nights % 7").low, checked("trip.nights % 7").high) == (0, 6)


def test_the_divisor_of_micros_follows_the_currency(vocabulary: Vocabulary) -> None:
    rate = RateParam(type="rate", currency="JPY", micros=20_000_000, per="km", quote="20")

    kind = check(parse("trip.km * p.rate / 1000000"), Symbols(vocabulary, {"rate": rate})).kind

    assert kind is Kind.MONEY


def test_parameters_of_two_currencies_in_one_rule_are_refused(vocabulary: Vocabulary) -> None:
    dollars = MoneyParam(type="money", currency="USD", minor=1, quote="1")

    with pytest.raises(RuleLanguageError, match="one rule names EUR and USD") as refused:
        Symbols(vocabulary, {**PARAMS, "other": dollars})

    assert refused.value.code == "mixed_currencies"


@pytest.mark.parametrize(
    ("source", "wanted", "message"),
    [
        ("trip.km", Kind.BOOL, "this must be a bool, not a number"),
        ("trip.km * p.mile", Kind.MONEY, "this must be money, not micros of money"),
        ("0", Kind.MONEY, "this must be money, not a number"),
        ("expense.has_receipt", Kind.MONEY, "this must be money, not a bool"),
    ],
)
def test_a_condition_must_be_a_bool_and_a_cap_must_be_money(
    source: str, wanted: Kind, message: str, vocabulary: Vocabulary
) -> None:
    with pytest.raises(RuleLanguageError, match=message):
        parse_checked(source, wanted, Symbols(vocabulary, PARAMS))
