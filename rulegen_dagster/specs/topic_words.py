"""Topic words: which words of a sentence tell what it speaks of, and which stand in any sentence of any policy."""

from functools import lru_cache
from typing import Final

_SHORTEST: Final = 4
_FIRST_CJK: Final = 0x2E80

# Beginnings: each stands for all the words that begin with it.
_OF_ANY_POLICY: Final = tuple(
    """
    reimburs limit maxim minim allow approv requir permit prohibit exceed receiv claim amount expens cost employ
    travel compan polic organi provid applic appli includ exclud purchas purpos reason necess actual incur busines
    dollar cent euro percent number total item case event person staff member manager superv submit request writ
    prior advanc within without except unless otherwise however
    erstatt vergüt gewähr betrag beträg höchst mindest höhe kosten ausgab aufwend entsteh entstand entstehen notwendig
    erforderlich jeweil sofern soweit wenn dienst beschäftigt mitarbeit arbeitnehm antrag beantrag genehmig zulässig
    prozent person fall fällen schriftlich elektronisch beleg nachweis
    rembours dépens frais montant autoris agent salari
    """.split()
)
_WORDS: Final = frozenset(
    """
    with from than more less that this these those only also must will been have has over upon such each when where
    which what they them their your into made make paid pays pay days week weeks year years hour hours month months
    night nights minute minutes time times under shall should could would may might does done used using use being
    before after during between until other another every both either same least most much many some none then there
    here very well plus even just about above below because while whether per and the for not are was were can any all
    who whom whose its our ours you upto case cases good kind type able need needs take taken taking given gives
    werden worden wurde wurden wird sind sein seine seiner seinem seinen kann können dürfen darf müssen muss sollen soll
    haben hatte hatten oder aber auch nicht nach über unter zwischen während durch gegen ohne nur noch bereits sowie
    einer eines einem einen eine diese dieser dieses diesem diesen welche welcher jede jeder jedes jedem jeden alle
    allen aller beide beiden andere anderen anderer anderes mehr weniger sonst dabei damit davon dafür dazu dass denn
    tage tagen tages stunde stunden woche wochen monat monate monaten jahr jahre jahren ihre ihrer ihrem ihren dort
    insgesamt insbesondere vorher zuvor vorab gilt gelten gültig erhalten erhält
    avec dans pour sans sous leur leurs elle elles être sont doit doivent peut peuvent jours jour mois heures plus
    moins tous toutes tout chaque cette
    """.split()
)
_ENDINGS: Final = ("ungen", "en", "er", "es", "em", "e", "n", "s")


@lru_cache(maxsize=20_000)
def is_telling(word: str) -> bool:
    """Return whether a word in small letters says what a sentence is about."""
    if len(word) < _SHORTEST and ord(word[0]) < _FIRST_CJK:
        return False
    return word not in _WORDS and not word.startswith(_OF_ANY_POLICY)


@lru_cache(maxsize=20_000)
def stem(word: str) -> str:
    """Return a word without the ending of its case or number; rough, and alike for all forms of most words."""
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= _SHORTEST:
            return word[: -len(ending)] + ("ung" if ending == "ungen" else "")
    return word
