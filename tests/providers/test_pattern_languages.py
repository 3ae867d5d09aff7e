"""How the language of a clause is told, and what the tables of the languages have to keep."""

import pytest

from rulegen_dagster.providers.pattern_english import ENGLISH
from rulegen_dagster.providers.pattern_german import GERMAN
from rulegen_dagster.providers.pattern_language import Language, group_of, language_of, parts_of, sentence_pattern
from rulegen_dagster.providers.pattern_readings import LANGUAGES


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Meals are limited to $50 per day.", ENGLISH),
        ("| Hotel | $180 per night |", ENGLISH),
        ("Mahlzeiten werden bis zu 50 Euro pro Tag erstattet.", GERMAN),
        ("Flüge der Business Class sind unzulässig.", GERMAN),
        ("The policy says: Mahlzeiten werden erstattet.", None),
        ("La nourriture sur un forfait de 15,25€ / repas.", None),
        ("Maaltijden: maximaal 50 euro", None),
        ("食事は1日50ドルまで", None),
        ("Hotel: 180", None),
        ("", None),
    ],
)
def test_a_language_is_told_by_words_that_only_it_has(text: str, language: Language | None) -> None:
    assert language_of(text, LANGUAGES) is language


def test_no_word_tells_two_languages() -> None:
    assert ENGLISH.own_words & GERMAN.own_words == set()


def test_a_word_that_never_narrows_a_rule_is_no_negation() -> None:
    assert ENGLISH.fillers.isdisjoint({"not", "no", "never", "only", "unless", "except", "without", "or"})
    assert GERMAN.fillers.isdisjoint({"nicht", "kein", "keine", "nie", "nur", "außer", "ohne", "oder", "grundsätzlich"})


def test_groups_of_one_name_are_found_by_the_branch_that_matched() -> None:
    pattern = sentence_pattern("up to (?P<number><MONEY>)|(?P<number><MONEY>) or less")

    match = pattern.search("\ue001\ue001 or less")

    assert match is not None
    assert match.start(group_of(match, "number") or 0) == 0
    assert group_of(match, "days") is None


def test_a_pattern_in_parts_has_read_its_parts_only() -> None:
    match = sentence_pattern("(?P<part>werden) .{0,20}?(?P<part>erstattet)").search("Sie werden bald erstattet.")

    assert match is not None
    assert parts_of(match) == [(4, 10), (16, 25)]
