"""Sentence boundaries in four languages."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rulegen_dagster.specs.sentences import split_sentences


def _split(text: str) -> list[str]:
    return [text[start:end] for start, end in split_sentences(text)]


@pytest.mark.parametrize(
    "sentences",
    [
        ["Meals must be cheap.", "Keep receipts!", "Why?", "Because."],
        ["Hotels, e.g. Hilton, i.e. U.S. chains, must be approved.", "Ask first."],
        ["Ask Dr. Smith or J. Doe vs. Mr. Roe.", "Then go."],
        ["The limit is $50.", "The next is 30.", "It ends here."],
        ["Rates of 0.67 USD apply from 1.5. to 3.5 km.", "Then stop."],
        ["See No. 5 and Sec. 4 of it.", "Is it paid?", "No.", "It is not."],
        ["Food, drinks, etc. are paid.", "Others are not."],
        ["(Keep receipts.)", "“Always.”", "**Really.**"],
        ["Ab dem 1. Januar gilt § 4 Abs. 2 Nr. 3 S. 1 bzw. Art. 5.", "Danach nicht."],
        ["Fahrkarten der 2. Klasse, z. B. Bahn, werden erstattet.", "Ausgenommen ist d. h. nichts."],
        ["Voir l'art. 5, p. ex. le train.", "M. Dupont paie."],
        ["Wait ...", "What?!", "Yes."],
        ["Bis 1.000,00 Euro gilt § 4 Abs. 5 S. 1 EStG.", "Darüber, z. B. ab 5 Mio. Euro, nichts."],
        ["Gem. Art. 5 Abs. (1) UAbs. 2 i. V. m. § 3 ff. GG ist das so.", "Am 31. 12. 2020 endet es."],
        ["Frist: 31. 12. 2020.", "Dann 5. 1. 2021."],
        ["Stand ist der 1. Jan. 2020.", "Der Satz beträgt 14 v. H. des Gehalts.", "Tel. 030 ist frei."],
        ["Voir art. 3, l'art. L. 123-4 et p. 12.", "Mme. Martin paie 1 000,50 €.", "Fin."],
        ["No. 5 of the U.S. Code applies.", "Jan. 5 to Feb. 6 is paid at approx. 5.5 km, i.e. 3 mi."],
        ["1. The first.", "2. The second."],
    ],
)
def test_sentences_end_where_a_reader_ends_them(sentences: list[str]) -> None:
    assert _split(" ".join(sentences)) == sentences


def test_a_full_stop_before_a_small_letter_ends_nothing() -> None:
    assert _split("see sect. two of it. then go") == ["see sect. two of it. then go"]


def test_japanese_sentences_end_without_spaces_or_capitals() -> None:
    assert _split("経費は上限までです。領収書が必要です\uff01「はい。」次です") == [
        "経費は上限までです。",
        "領収書が必要です\uff01",
        "「はい。」",
        "次です",
    ]


@given(st.text(alphabet=st.sampled_from('aB1 .!?。)"\n$é'), max_size=80))
def test_sentences_are_ordered_disjoint_and_lose_only_white_space(text: str) -> None:
    spans = split_sentences(text)

    assert all(start < end for start, end in spans)
    assert all(before[1] <= after[0] for before, after in pairwise(spans))
    assert "".join("".join(text[start:end] for start, end in spans).split()) == "".join(text.split())
