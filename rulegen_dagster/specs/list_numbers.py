"""Numbers of lists in the forms that word processors and web pages write them: 3, c, iii, C, III."""

_ROMAN = ((1000, "m"), (900, "cm"), (500, "d"), (400, "cd"), (100, "c"), (90, "xc"), (50, "l"), (40, "xl"))
_ROMAN_SMALL = ((10, "x"), (9, "ix"), (5, "v"), (4, "iv"), (1, "i"))
_MAX_LETTER = 26 * 20
_MAX_ROMAN = 3_999


def numeral(number: int, kind: str) -> str:
    """Return a number in a form named as in DOCX (`decimal`, `lowerLetter`, `upperRoman` …).

    An unknown form, or a number that the form cannot write, is written in digits.
    """
    match kind:
        case "lowerLetter" | "upperLetter":
            shown = _letters(number)
        case "lowerRoman" | "upperRoman":
            shown = _roman(number)
        case "decimalZero":
            shown = f"{number:02}"
        case _:
            shown = str(number)
    return shown.upper() if kind.startswith("upper") else shown


def _letters(number: int) -> str:
    # Word counts a … z, aa, bb: the letter is repeated.
    if not 1 <= number <= _MAX_LETTER:
        return str(number)
    times, index = divmod(number - 1, 26)
    return chr(ord("a") + index) * (times + 1)


def _roman(number: int) -> str:
    if not 1 <= number <= _MAX_ROMAN:
        return str(number)
    shown = ""
    for value, letters in (*_ROMAN, *_ROMAN_SMALL):
        while number >= value:
            shown += letters
            number -= value
    return shown
