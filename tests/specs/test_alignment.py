"""Alignment of two revisions: each clause keeps its identity through edits, moves and renumbering."""

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rulegen_dagster.domain.clause import Clause, ClauseKind
from rulegen_dagster.specs.alignment import ChangeKind, ClauseChange, align
from rulegen_dagster.specs.document import read_document

SPECS = Path(__file__).parents[3] / "shared" / "specs"

OLD = """\
# Meals
Meals are limited to $75 per day. Alcohol is never reimbursed by the company.

1. Receipts are required above $25.
2. Tips may not exceed 20 percent.
3. Lunch with clients needs the approval of a manager.

# Travel
Economy class must be booked for every flight. Hotels are limited to $200 per night.
"""


def clauses(text: str) -> tuple[Clause, ...]:
    return read_document(text.encode(), "policy.md", max_bytes=10**7).clauses


def changed(old: str, new: str) -> list[tuple[str, str]]:
    """Return kind and text of every clause that is not just equal."""
    found = []
    for change in align(clauses(old), clauses(new)):
        if change.kind is not ChangeKind.EQUAL:
            shown = change.new or change.old
            assert shown is not None
            found.append((change.kind.value, shown.text))
    return found


def test_the_same_text_has_only_equal_clauses() -> None:
    assert changed(OLD, OLD) == []


def test_an_edited_sentence_is_named_alone_with_what_it_was() -> None:
    new = OLD.replace("$75", "$85")

    assert changed(OLD, new) == [("edited", "Meals are limited to $85 per day.")]
    edited = next(change for change in align(clauses(OLD), clauses(new)) if change.kind is ChangeKind.EDITED)
    assert edited.old is not None
    assert edited.old.text == "Meals are limited to $75 per day."
    assert 0.8 < edited.similarity < 1.0


def test_a_moved_sentence_is_named_alone() -> None:
    sentence = "Hotels are limited to $200 per night."
    new = OLD.replace(f" {sentence}", "").replace("by the company.", f"by the company. {sentence}")

    assert changed(OLD, new) == [("moved", sentence)]


def test_an_inserted_sentence_is_named_alone() -> None:
    new = OLD.replace("per day.", "per day. Snacks between meetings count as a meal.")

    assert changed(OLD, new) == [("new", "Snacks between meetings count as a meal.")]


def test_a_removed_sentence_is_named_alone_where_it_stood() -> None:
    new = OLD.replace(" Alcohol is never reimbursed by the company.", "")

    assert changed(OLD, new) == [("removed", "Alcohol is never reimbursed by the company.")]
    kinds = [change.kind for change in align(clauses(OLD), clauses(new))]
    assert kinds.index(ChangeKind.REMOVED) == 1


def test_a_renumbered_list_has_kept_its_clauses() -> None:
    new = OLD.replace("3. Lunch", "5. Lunch").replace("2. Tips", "4. Tips").replace("1. Receipts", "3. Receipts")

    kinds = Counter(kind for kind, _ in changed(OLD, new))

    assert kinds == {"renumbered": 3}
    assert not ChangeKind.RENUMBERED.needs_validation


def test_an_edit_a_move_an_insertion_and_a_renumbering_at_once_are_named_exactly() -> None:
    sentence = "Hotels are limited to $200 per night."
    new = (
        OLD.replace("$75", "$85")
        .replace(f" {sentence}", "")
        .replace("by the company.", f"by the company. {sentence}")
        .replace("1. Receipts", "1. Invoices have to name the company in full.\n2. Receipts")
        .replace("2. Tips", "3. Tips")
        .replace("3. Lunch", "4. Lunch")
    )

    assert Counter(changed(OLD, new)) == Counter(
        [
            ("edited", "Meals are limited to $85 per day."),
            ("moved", sentence),
            ("new", "Invoices have to name the company in full."),
            ("renumbered", "Receipts are required above $25."),
            ("renumbered", "Tips may not exceed 20 percent."),
            ("renumbered", "Lunch with clients needs the approval of a manager."),
        ]
    )


def test_the_same_text_under_a_changed_heading_has_to_be_validated_again() -> None:
    found = changed(OLD, OLD.replace("# Travel", "# Private travel"))

    assert [kind for kind, _ in found] == ["new_context", "new_context"]
    assert ChangeKind.NEW_CONTEXT.needs_validation


def test_a_moved_clause_tells_that_its_heading_changed_too() -> None:
    sentence = "Hotels are limited to $200 per night."
    new = OLD.replace(f" {sentence}", "").replace("per day.", f"per day. {sentence}")

    moved = next(change for change in align(clauses(OLD), clauses(new)) if change.kind is ChangeKind.MOVED)

    assert moved.new_context


def test_texts_without_spaces_are_compared_by_their_characters() -> None:
    old = "# 経費\n会議費は一人五千円までとする。領収書は必ず提出する。\n"

    found = changed(old, old.replace("五千円", "六千円"))

    assert [kind for kind, _ in found] == ["edited"]


def test_a_wholly_different_text_shares_nothing() -> None:
    other = "# Dogs\nDogs may come to the office on Fridays.\n"

    kinds = Counter(kind for kind, _ in changed(OLD, other))

    assert kinds == {"removed": len(clauses(OLD)), "new": 1}


SENTENCES = st.lists(
    st.sampled_from(
        [f"Number {number} {word} a receipt of its kind." for number in range(6) for word in ("needs", "has")]
    ),
    min_size=1,
    max_size=12,
)


@given(old=SENTENCES, new=SENTENCES)
def test_each_clause_of_both_revisions_is_told_exactly_once(old: list[str], new: list[str]) -> None:
    before, after = clauses(" ".join(old)), clauses(" ".join(new))

    changes = align(before, after)

    assert sorted(change.old.ordinal for change in changes if change.old) == [clause.ordinal for clause in before]
    assert [change.new.ordinal for change in changes if change.new] == [clause.ordinal for clause in after]


@given(order=st.permutations(range(8)))
def test_whatever_only_changes_places_is_equal_or_moved(order: list[int]) -> None:
    texts = [f"Rule {'abcdefgh'[number]} has its own words {number}." for number in range(8)]

    changes = align(clauses(" ".join(texts)), clauses(" ".join(texts[at] for at in order)))

    assert {change.kind for change in changes} <= {ChangeKind.EQUAL, ChangeKind.MOVED}
    assert any(change.kind is ChangeKind.EQUAL for change in changes)


# Real texts, edited at random: how often a clause is called edited or moved that was not.


def _whole_sentences(found: Sequence[Clause], text: str) -> list[str]:
    return [
        clause.text
        for clause in found
        if clause.kind is ClauseKind.SENTENCE
        and len(clause.text.split()) > 4
        and clause.text.endswith(".")
        and clause.text[0].isupper()
        and text.count(clause.text) == 1
    ]


def _edited_at_random(text: str, foreign: Sequence[str], seed: int) -> tuple[str, dict[str, str]]:
    """Return a text with ten edits, and the kind of each by the old sentence (the new one where it was inserted)."""
    chance = random.Random(seed)  # noqa: S311 (repeatable edits, no secret)
    sentences = _whole_sentences(clauses(text), text)
    truth: dict[str, str] = {}
    chosen = chance.sample(sentences, 10)
    for sentence, kind in zip(chosen, ["edited"] * 4 + ["moved"] * 2 + ["new"] * 2 + ["removed"] * 2, strict=True):
        match kind:
            case "edited":
                words = sentence.split(" ")
                words[chance.randrange(1, len(words) - 1)] = "otherwise"
                text = text.replace(sentence, " ".join(words), 1)
            case "new":
                added = chance.choice([found for found in foreign if found not in text])
                text = text.replace(sentence, f"{sentence} {added}", 1)
                truth[added] = kind
                continue
            case "moved":
                text = text.replace(sentence, "", 1)
                place = chance.choice([found for found in sentences if found not in chosen])
                text = text.replace(place, f"{place} {sentence}", 1)
            case _:
                text = text.replace(sentence, "", 1)
        truth[sentence] = kind
    return text, truth


def _false_pairs(changes: Sequence[ClauseChange], truth: dict[str, str]) -> list[tuple[str, str, str]]:
    return [
        (change.kind.value, change.old.text, change.new.text)
        for change in changes
        if change.kind in (ChangeKind.EDITED, ChangeKind.MOVED)
        and change.old
        and change.new
        and truth.get(change.old.text) != change.kind.value
    ]


@pytest.mark.skipif(not SPECS.is_dir(), reason="the public specifications are not part of this checkout")
@pytest.mark.parametrize(
    ("name", "donor"),
    [
        ("18f_travel_guide_faq.en.md", "18f_leave.en.md"),
        ("18f_leave.en.md", "18f_travel_guide_faq.en.md"),
    ],
)
def test_ten_random_edits_of_a_real_policy_make_no_false_pair(name: str, donor: str) -> None:
    text = (SPECS / name).read_text(encoding="utf-8")
    donor_text = (SPECS / donor).read_text(encoding="utf-8")
    foreign = _whole_sentences(clauses(donor_text), donor_text)
    false = []

    for seed in range(5):
        new, truth = _edited_at_random(text, foreign, seed)
        false += _false_pairs(align(clauses(text), clauses(new)), truth)

    assert false == []
