"""The sentence patterns of English policies: limits, papers, approvals, refusals, deadlines and rates.

`<MONEY>` and the like are marks (see `pattern_words`), `<N>` is the number that is compared. Every repetition is over
fixed words, so matching is linear.
"""

import re
from functools import lru_cache

from rulegen_dagster.providers.pattern_language import Language, sentence_pattern
from rulegen_dagster.providers.pattern_model import Comparator, Demand
from rulegen_dagster.providers.pattern_quantities import ENGLISH_NUMBERS

_BY_US = r"(?: for reimbursement| by the company| to the company| under this policy)?"
_ALLOWED = r"reimbursed|reimbursable|paid(?: for)?|covered|claimable|eligible|allowed|permitted"
_PAID = rf"(?:{_ALLOWED}|claimed|expensed|refunded|accepted|charged|spent|booked|purchased|granted|approved){_BY_US}"
_PAPER = r"(?:an? |the |all |your )?(?:itemi[sz]ed |original |valid |detailed )*<PAPER>"
_DET = r"(?:an? |the |your |their |the employee's |the travell?er's )?"
_AHEAD_OF_IT = r"(?:before|prior to) (?:booking|purchase|purchasing|buying|ordering|travel|departure)"
_IN_ADVANCE = rf"(?: in advance| beforehand| in writing| {_AHEAD_OF_IT}(?: it| them)?)*"
_KIND = r"(?:prior |advance |written |explicit )*(?:pre-?)?"
_MUST = r"(?:must|shall|should|has to|have to|needs? to)(?: always| also| first)?"
_GET = r"(?:get|obtain|have|receive|seek)"
_PERSON = r"(?:employees|staff|travell?ers|you)"
_TAKEN = r"claim|expense|spend|use|take|receive|be granted"
_OF = r"(?:(?:costing|worth|priced at|of|that (?:is|are)|is|are|costs?) )?"
_GAP = r"[^.;:]{0,120}?"
_AFTER = r"(?:of|after|from|following) (?:the )?(?:date of )?(?:the |an? |each )?{event}(?: date)?"
_INCURRED = r"(?: (?:is|was) (?:incurred|made))?"
_BEFORE = r"(?:before|in advance of|ahead of|prior to) (?:the )?(?:date of )?(?:the )?{event}(?: date)?"
_DAYS = r"(?P<days><DAYS>|<TIME>)"


@lru_cache(maxsize=8)
def _comparators(number: str) -> tuple[tuple[Comparator, re.Pattern[str]], ...]:
    """Return how a number is compared; the first that matches decides: "no more than" never reads as "more than"."""
    templates = (
        (
            Comparator.AT_MOST,
            (
                r"(?:up to|at most|no more than|not more than|a maximum of|(?:is |are )?(?:limited|restricted) to"
                r"|(?:is |are )?capped at|not to exceed|not exceeding"
                r"|(?:must|may|shall|should|can|do|does|will) not exceed|cannot exceed"
                r"|(?:(?:must|may|shall|should|can) not|cannot) be (?:higher|more|greater) than"
                r"|(?:is |are )?subject to (?:a |the )?(?:maximum|limit|cap) of|to a (?:maximum|limit) of"
                r"|(?:with )?(?:a |the )?(?:maximum|limit|cap|ceiling|allowance)(?: amount)? (?:of|is))"
                r"(?: a (?:total|maximum) of)? <N>"
                r"|(?:the |a )?(?:maximum|limit|cap|ceiling)(?: amount)? (?:for|on) <VALUE>(?: costs| expenses| rates)?"
                r" (?:is|of) <N>"
            ),
        ),
        (
            Comparator.AT_LEAST,
            rf"{_OF}(?:at least|a minimum of) <N>|{_OF}<N> (?:or|and) (?:more|above|over|greater|higher|up)",
        ),
        (
            Comparator.ABOVE,
            (
                rf"(?:{_OF}(?:over|above|more than|greater than|in excess of|longer than)|exceeding|(?:that "
                rf")?exceeds?) <N>"
            ),
        ),
        (Comparator.BELOW, rf"{_OF}(?:under|below|less than|fewer than|lower than) <N>"),
    )
    return tuple((comparator, sentence_pattern(template.replace("<N>", number))) for comparator, template in templates)


_OWN_WORDS = (
    "the is are be been were have has must shall should may can cannot no of to for from with without by and "
    "any all each every that which this these those your you their they it we our if when where unless except within "
    "before after up only under over more less than paid reimbursed required expense expenses costs "
    "receipt receipts approval item items daily monthly yearly day days night month year claims claim "
    "employee employees leave please"
)
_FILLER_WORDS = (
    "a an the any all each every of for to on at by in with per and is are be will must shall may should can "
    "which that who its their your our we you employee employees staff traveller travellers traveler travelers "
    "company single individual always also cost costs costing expense expenses expenditure expenditures "
    "purchase purchases item items amount amounts total charge charges bill bills fee fees fare fares price prices "
    "rate rates claim claims report reports reimbursement reimburse reimbursed pay paid cover covered "
    "transaction transactions following limit limits maximum apply applies category type kind what "
    "if when where leave request requests have has"
)
_EXCEPTION_FILLERS = (
    "a an the for in of on to is are it they this when where case cases or and that expense purchase "
    "trip made incurred "
    "leave request"
)

ENGLISH = Language(
    # Words that German has too ("in", "an", "was", "will", "so", "also", "per") tell nothing.
    own_words=frozenset(_OWN_WORDS.split()),
    numbers=ENGLISH_NUMBERS,
    ending=r"(?:es|s)?(?:'s?)?",
    comparators=_comparators,
    count_limits=sentence_pattern(
        r"(?:(?:is |are )entitled to|employees (?:receive|get|have)) (?P<number><DAYS>|<HOURS>)(?: of paid| of)?"
    ),
    # "Under 50" is passed by 50 itself; "within 50" is not.
    stay_below=sentence_pattern(
        rf"(?P<part>(?:(?:try|aim) to )?keep)\s{_GAP}(?P<part>(?:(?P<below>under|below)|within) (?P<number><MONEY>))"
        r"|(?:must|should|have to|has to|needs? to) (?:be kept|be held|stay|remain) "
        r"(?:(?P<below>under|below)|within) (?P<number><MONEY>)"
    ),
    share=sentence_pattern(
        r"(?:up to |at most |a maximum of )?(?P<percent><PERCENT>) of (?:(?:the |their |your )?"
        r"(?:total |actual |full )?(?:costs?|expenses?|price|amount|fees?)(?: of| for)?|(?:the |all )?(?=<VALUE>))"
    ),
    rate=(
        r"(?:(?:(?:is|are|will be) )?(?:reimbursed|paid|compensated) (?:at )?(?:(?:a |the )?(?:standard |fixed |flat )?"
        r"rate of )?|(?:mileage )?rate is )(?P<money><MONEY>) (?:per|a|for each|for every) (?P<unit>{units})"
        r"(?: driven| travell?ed)?"
    ),
    flat_rate=sentence_pattern(
        r"(?:(?:is|are|will be) )?(?:reimbursed|paid|compensated) (?:at )?(?:a |the )?(?:standard |fixed |flat )?"
        r"(?:rate|allowance) of (?P<money><MONEY>) (?P<period><PERIOD>)"
    ),
    actions={
        "submitted": r"(?:submitted|filed|claimed|handed in|turned in|reported)",
        "booked": r"(?:booked|reserved|purchased|bought)",
        "requested": r"(?:requested|applied for|submitted|announced)",
    },
    in_time=rf"{{action}} (?:within|no later than|not later than) {_DAYS} {_AFTER}{_INCURRED}",
    ahead=rf"{{action}} (?:at least|no later than|not later than|a minimum of) {_DAYS} {_BEFORE}",
    too_late=(rf"(?:(?:that|which) are )?(?:{{action}} )?(?:more than|later than|over) {_DAYS} {_AFTER}{_INCURRED}"),
    not_ahead=rf"{{action}} (?:less than|fewer than) {_DAYS} {_BEFORE}",
    older_than=sentence_pattern(rf"(?:(?:that|which) are )?older than {_DAYS}"),
    articles=("the", r"(?:the|an?|each|your|their)"),
    approval=sentence_pattern(
        rf"{_MUST} be (?:pre-?)?approved{_IN_ADVANCE} by {_DET}(?P<approver><APPROVER>){_IN_ADVANCE}"
        rf"|(?:always )?(?:requires?|needs?) (?:the )?{_KIND}approval (?:of|from|by) "
        rf"{_DET}(?P<approver><APPROVER>){_IN_ADVANCE}"
        rf"|(?:always )?(?:requires?|needs?) {_DET}{_KIND}(?P<approver><APPROVER>) (?:pre-?)?approval{_IN_ADVANCE}"
        rf"|{_DET}{_KIND}(?P<approver><APPROVER>) approval is (?:always )?required{_IN_ADVANCE}"
        rf"|{_KIND}approval (?:of|from|by) {_DET}(?P<approver><APPROVER>) is (?:always )?required"
        rf"|(?:is|are) subject to (?:the )?{_KIND}approval (?:of|from|by) {_DET}(?P<approver><APPROVER>)"
        rf"|{_DET}(?P<approver><APPROVER>) {_MUST} (?:pre-?)?approve"
        rf"|(?:(?:{_PERSON} )?{_MUST} |please )?{_GET} {_DET}{_KIND}(?:approval (?:of|from|by) {_DET}"
        rf"(?P<approver><APPROVER>)|(?P<approver><APPROVER>) approval){_IN_ADVANCE}"
    ),
    approval_by_nobody_named=sentence_pattern(
        rf"{_MUST} be (?:pre-?)?approved|(?:requires?|needs?) {_KIND}approval|{_KIND}approval is (?:always )?required"
    ),
    no_paper=sentence_pattern(
        r"no <PAPER> (?:is|are) (?:required|needed|necessary)"
        rf"|{_PAPER} (?:is|are) not (?:required|needed|necessary)"
        rf"|(?:does|do) not (?:require|need) {_PAPER}|(?:don't|doesn't) (?:require|need) {_PAPER}"
    ),
    demands=(
        (
            Demand.RECEIPT,
            sentence_pattern(
                rf"{_PAPER} (?:is|are) (?:always |only )?(?:required|needed|mandatory)(?: only)?"
                rf"|(?:always )?(?:requires?|needs?) {_PAPER}"
                rf"|{_MUST} be (?:accompanied|supported|documented) (?:by|with) {_PAPER}"
                rf"|{_PAPER} {_MUST} be (?:provided|attached|submitted|included|uploaded)"
                rf"|(?:attach|provide|submit|include|upload) {_PAPER}"
            ),
        ),
        (
            Demand.REFUSAL,
            sentence_pattern(
                rf"(?:is|are) (?:strictly )?(?:not|never) {_PAID}"
                rf"|(?:will|can|may|must|shall) (?:not|never) be {_PAID}|cannot be {_PAID}"
                r"|(?:is|are) (?:non-?reimbursable|strictly prohibited|prohibited|ineligible|forbidden"
                r"|excluded from reimbursement)"
                r"|(?:we|the company) (?:do|does|will) not (?:reimburse|cover|pay for)"
                r"|not (?:reimbursable|reimbursed|allowed|permitted|covered)"
                r"|(?:is|are) not an? (?:allowable|eligible|reimbursable|covered) (?:business )?(?:expense|cost)"
                r"|(?:is|are|will be|shall be) (?:rejected|denied|refused|declined|excluded)"
                r"|(?:do not|don't|never) (?:claim|expense|charge|book|buy|purchase|submit)"
                r"|(?:no|there is no) reimbursement (?:is |will be )?(?:made |given |provided )?(?:for|of)"
                rf"|(?P<part>under no circumstances (?:will|can|may|shall|is|are))\s{_GAP}"
                rf"(?P<part>(?:be )?(?:{_ALLOWED}))"
                r"|(?:is|are) (?:the (?:sole )?responsibility of the (?:employee|travell?er)"
                r"|at (?:the (?:employee|travell?er)'s|your|their) own expense)"
                rf"|{_PERSON} (?:may|must|shall|can) not (?:{_TAKEN}|request|charge|book|buy|purchase)"
            ),
        ),
        (
            Demand.PERMISSION,
            sentence_pattern(
                rf"(?:is|are|will be) (?:fully )?(?:{_ALLOWED}){_BY_US}|(?:may|can|shall) be {_PAID}"
                rf"|{_PERSON} (?:may|can)(?: also)? (?:{_TAKEN})"
                r"|(?:we|the company) (?:will )?(?:reimburses?|covers?|pays?)(?: for)?"
            ),
        ),
    ),
    without_paper=sentence_pattern(r"without (?:an? |any )?(?:itemi[sz]ed |original |valid )*<PAPER>"),
    # Only "longer than": the fact counts started hours, so that "at least 8 hours" would also hold for 7 and a half.
    longer_flight=sentence_pattern(
        r"(?:(?:the |a )?(?:<VALUE> )?(?:flight time )?(?:is |takes |lasts |of |lasting )?)?"
        r"(?:longer than|more than|over|exceeding|exceeds) (?P<hours><HOURS>)"
    ),
    inherited_limit=sentence_pattern(
        r"(?:reimbursement |spending |daily )?(?:limits?|maximum|max\.?|caps?|ceilings?)(?: amount| "
        r"reimbursement)?|up to"
    ),
    exception_word=sentence_pattern(
        r"unless|except(?: for| when| where| if| in the case of| in)?|with the exception of|other than|excluding"
    ),
    approved=sentence_pattern(
        rf"(?:(?:it|they|this|the expense|the purchase) )?(?:(?:is|are|was|were|has been|have been) "
        rf")?(?:pre-?)?approved"
        rf"{_IN_ADVANCE} by {_DET}(?P<approver><APPROVER>){_IN_ADVANCE}"
        rf"|{_DET}(?P<approver><APPROVER>) (?:has |have )?(?:pre-?)?approve[sd]?"
        rf"(?: it| them| the expense| the purchase)?{_IN_ADVANCE}"
        rf"|(?:with )?(?:the )?{_KIND}approval (?:of|from|by) {_DET}(?P<approver><APPROVER>)"
    ),
    ignored_before_value=sentence_pattern(
        r"(?:travel(?:ling)? (?:in|by|with)|use of|trips in|driving)(?: an?| the| your| their)? (?=<VALUE>)"
    ),
    polite=sentence_pattern(r"please(?: note that)?|note that|kindly|for any reason|under any circumstances"),
    should=sentence_pattern(r"should|ought to|(?:try|aim) to"),
    may=sentence_pattern(rf"(?:{_PERSON}|may) (?:may |can )?(?:be|claim|expense|spend)|can be"),
    whole_claim=sentence_pattern(r"claims?|(?:expense )?reports?"),
    everything=sentence_pattern(
        r"(?:all|any|every|each|an?|single) (?:single |individual )?"
        r"(?:expense|purchase|cost|item|charge|transaction|claim|(?:expense )?report|leave request|request|leave)"
        r"|expenses|purchases|costs|items|charges|expenditures|transactions|claims|(?:expense )?reports|leave requests?"
        r"|requests|leave"
    ),
    connectors=sentence_pattern(r"(?:and|or|as well as|any|all|the|an?|of|for|costs?|expenses?|fees?|purchases?)"),
    joining_words=frozenset({"and", "or"}),
    conditional=sentence_pattern(r"if|when"),
    narrowing=sentence_pattern(
        r"not|no|never|only|while|before|after|until|within|without|unless|except|provided|otherwise|instead"
        r"|between|during|and|or|than|but|however|least|most|more|less"
    ),
    fillers=frozenset(_FILLER_WORDS.split()),
    exception_fillers=frozenset(_EXCEPTION_FILLERS.split()),
)
