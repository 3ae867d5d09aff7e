"""Neighbours: which sentences around a clause belong to it, told from the words alone."""

import pytest

from rulegen_dagster.specs.context import retrieve_context
from rulegen_dagster.specs.document import read_document
from rulegen_dagster.specs.neighbours import points_back


def related(text: str, start: str) -> list[tuple[str, str]]:
    """Return relation and first word of each context entry of the clause that begins with these words."""
    parsed = read_document(text.encode(), "policy.md", max_bytes=10**6)
    clause = next(clause for clause in parsed.normative if clause.text.startswith(start))
    return [(entry.relation.value, entry.text.split()[0]) for entry in retrieve_context(parsed)[clause.ordinal]]


def test_a_sentence_that_speaks_of_the_same_thing_is_a_neighbour() -> None:
    text = "Meals are limited to $75 per day. Guests' meals must be approved. Hotels may not exceed $200 per night."

    assert related(text, "Meals") == [("same_paragraph", "Guests'")]
    assert related(text, "Hotels") == []


@pytest.mark.parametrize(
    "text",
    [
        "Meals are limited to $75 per day. Hotels are limited to $200 per night.",
        "Meals are reimbursed up to $75. Alcohol is not reimbursed.",
        "Taxi costs must be approved in advance. Training costs must be approved in advance.",
        "Tagegeld wird bis 28 Euro erstattet. Hotelkosten werden bis 120 Euro erstattet.",
        "Mietwagen müssen vorher genehmigt werden. Flüge müssen vorher genehmigt werden.",
    ],
)
def test_words_that_stand_in_any_policy_make_no_neighbours(text: str) -> None:
    assert related(text, text.split(maxsplit=1)[0]) == []


def test_a_compound_speaks_of_its_parts() -> None:
    text = "Für eine Übernachtung werden 20 Euro erstattet. Höhere Übernachtungskosten können erstattet werden."

    assert related(text, "Für") == [("same_paragraph", "Höhere")]


def test_a_pronoun_points_at_the_sentence_before_and_takes_its_topic_along() -> None:
    first = "Mileage is reimbursed. It must not exceed 60 cents. This may not be raised."
    text = f"# Cars\n\n{first}\n\nMileage logs are required.\n"

    # What "it" is about is told by the sentence before, so the log belongs to it too.
    assert related(text, "It") == [
        ("antecedent", "Mileage"),
        ("same_paragraph", "This"),
        ("same_section", "Mileage"),
    ]
    assert related(text, "This")[:2] == [("antecedent", "It"), ("antecedent", "Mileage")]


def test_neighbours_stay_under_their_heading_and_within_their_paragraph() -> None:
    text = "# A\n\nMeals must be cheap.\n\n# B\n\nMeals must be warm.\n\nThey must be eaten.\n"

    assert related(text, "Meals must be cheap") == []
    # The paragraph ends before the pronoun, which therefore points at nothing here.
    assert related(text, "They") == []


def test_items_of_one_list_are_no_neighbours_for_the_words_of_their_lead() -> None:
    text = "The following taxi rides must be approved:\n\n- to the airport\n- at weekends\n"

    assert related(text, "to the airport") == []


def test_an_item_is_a_neighbour_by_the_words_of_its_lead() -> None:
    text = "Lodging is paid up to $90.\n\nLodging may not be paid for:\n\n- private visits\n- nights on a train\n"

    assert related(text, "Lodging is paid") == [("same_section", "private"), ("same_section", "nights")]


def test_what_only_informs_is_no_neighbour() -> None:
    assert related("Meals must be cheap. Good meals make good meetings.", "Meals") == []


@pytest.mark.parametrize(
    ("text", "points"),
    [
        ("It may not exceed 130 Euro.", True),
        ("This limit is lifted for directors.", True),
        ("A manager may raise the maximum to $150.", True),
        ("Die Behörde kann den Höchstbetrag auf 150 Euro festsetzen.", True),
        ("Sie beträgt 20 Cent.", True),
        ("Gleiches gilt für Fahrräder.", True),
        ("Ces frais doivent être justifiés.", True),
        ("Meals are limited to $75 per day.", False),
        ("Es muss genehmigt werden.", False),
        ("Receipts are required.", False),
    ],
)
def test_a_pronoun_or_the_bare_name_of_a_quantity_points_back(text: str, points: bool) -> None:
    assert points_back(text) is points
