"""Money: integer minor units with an ISO 4217 currency, and the exponents of the currencies."""

# ISO 4217 minor-unit exponents that differ from two (list one, edition of 2025).
_EXPONENTS = {
    "BHD": 3, "BIF": 0, "CLP": 0, "DJF": 0, "GNF": 0, "IQD": 3, "ISK": 0, "JOD": 3, "JPY": 0, "KMF": 0, "KRW": 0,
    "KWD": 3, "LYD": 3, "OMR": 3, "PYG": 0, "RWF": 0, "TND": 3, "UGX": 0, "UYI": 0, "VND": 0, "VUV": 0, "XAF": 0,
    "XOF": 0, "XPF": 0,
}  # fmt: skip

CURRENCIES = frozenset(
    "AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BGN BHD BIF BMD BND BOB BRL BSD BTN BWP BYN BZD CAD CDF CHF CLP"
    " CNY COP CRC CUP CVE CZK DJF DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GNF GTQ GYD HKD HNL HTG HUF"
    " IDR ILS INR IQD IRR ISK JMD JOD JPY KES KGS KHR KMF KPW KRW KWD KYD KZT LAK LBP LKR LRD LSL LYD MAD MDL MGA MKD"
    " MMK MNT MOP MRU MUR MVR MWK MXN MYR MZN NAD NGN NIO NOK NPR NZD OMR PAB PEN PGK PHP PKR PLN PYG QAR RON RSD RUB"
    " RWF SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SVC SYP SZL THB TJS TMT TND TOP TRY TTD TWD TZS UAH UGX USD"
    " UYI UYU UZS VED VES VND VUV WST XAF XCD XCG XOF XPF YER ZAR ZMW ZWG".split()
)
"""The currencies in use (ISO 4217, list one, edition of 2025)."""

MAX_MINOR = 10**12
"""Largest amount that a rule or a fact may name, in minor units."""


def exponent(currency: str) -> int:
    """Return how many decimal places the currency's minor unit has (EUR 2, JPY 0, KWD 3)."""
    return _EXPONENTS.get(currency, 2)


def micros_per_minor(currency: str) -> int:
    """Return how many micros of the major unit one minor unit holds (EUR 10,000; JPY 1,000,000)."""
    return int(10 ** (6 - exponent(currency)))


def format_minor(minor: int, currency: str) -> str:
    """Return an amount for people, such as `USD 75.00`."""
    places = exponent(currency)
    if places == 0:
        return f"{currency} {minor}"
    sign, digits = ("-", -minor) if minor < 0 else ("", minor)
    return f"{currency} {sign}{digits // 10**places}.{digits % 10**places:0{places}d}"
