"""The sentence patterns: how English policies word limits, receipts, approvals, refusals, deadlines and rates.

`<MONEY>` and the like are marks (see `pattern_words`). Every repetition is over fixed words, so matching is linear.
"""

from rulegen_dagster.providers.pattern_model import Comparator, Demand
from rulegen_dagster.providers.pattern_words import sentence_pattern

_BY_US = r"(?: for reimbursement| by the company| to the company| under this policy)?"
_ALLOWED = r"reimbursed|reimbursable|paid(?: for)?|covered|claimable|eligible|allowed|permitted"
_PAID = rf"(?:{_ALLOWED}|claimed|expensed|refunded|accepted|charged|booked|purchased){_BY_US}"
_RECEIPT = r"(?:an? |the |all |your )?(?:itemi[sz]ed |original |valid |detailed )*receipts?"
_DET = r"(?:an? |the |your |their |the employee's |the travell?er's )?"
_IN_ADVANCE = r"(?: in advance| beforehand| in writing)*"
_KIND = r"(?:prior |advance |written |explicit )*(?:pre-?)?"
_MUST = r"(?:must|shall|should|has to|have to|needs? to)(?: always| also)?"
_PERSON = r"(?:employees|staff|travell?ers|you)"
_SINCE_EXPENSE = (
    r"(?:of|after|from|following) (?:the )?(?:date of )?(?:the )?(?:expense|purchase|transaction)(?: date)?"
    r"(?: (?:is|was) (?:incurred|made))?"
)
_SINCE_TRIP = r"(?:of|after|following) (?:the )?(?:end of|return from|completion of|returning from) (?:the |a )?trip"
_AHEAD = r"(?:before|in advance of|ahead of|prior to) (?:the )?(?:date of )?(?:departure|travel|the trip)(?: date)?"
_HANDED_IN = r"(?:submitted|filed|claimed|handed in|turned in|reported)"
_BOOKED = r"(?:booked|reserved|purchased|bought)"

RATE = sentence_pattern(
    r"(?:(?:is|are|will be) )?(?:reimbursed|paid|compensated) (?:at )?"
    r"(?:(?:a |the )?(?:standard |fixed |flat )?rate of )?"
    r"(?P<rate><MONEY>) (?:per|a|for each|for every) (?P<unit>mile|kilomet(?:er|re)|km)(?: driven| travell?ed)?"
    r"|(?:mileage )?rate is (?P<rate2><MONEY>) (?:per|a|for each) (?P<unit2>mile|kilomet(?:er|re)|km)"
    r"(?: driven| travell?ed)?"
)

SUBMITTED_SINCE_EXPENSE = sentence_pattern(
    rf"{_HANDED_IN} (?:within|no later than|not later than) (?P<days><DAYS>|<TIME>) {_SINCE_EXPENSE}"
)
SUBMITTED_SINCE_TRIP = sentence_pattern(
    rf"{_HANDED_IN} (?:within|no later than|not later than) (?P<days><DAYS>|<TIME>) {_SINCE_TRIP}"
)
BOOKED_AHEAD = sentence_pattern(
    rf"{_BOOKED} (?:at least|no later than|not later than|a minimum of) (?P<days><DAYS>|<TIME>) {_AHEAD}"
)

OLDER_THAN = sentence_pattern(
    rf"(?:(?:that|which) are )?(?:older than (?P<days><DAYS>|<TIME>)|(?:(?:that|which) are )?{_HANDED_IN}? ?"
    rf"(?:more than|later than|over) (?P<days2><DAYS>|<TIME>) {_SINCE_EXPENSE})"
)
LATER_THAN_TRIP = sentence_pattern(rf"{_HANDED_IN} (?:more than|later than|over) (?P<days><DAYS>|<TIME>) {_SINCE_TRIP}")
BOOKED_LATE = sentence_pattern(rf"{_BOOKED} (?:less than|fewer than) (?P<days><DAYS>|<TIME>) {_AHEAD}")

APPROVAL = sentence_pattern(
    rf"{_MUST} be (?:pre-?)?approved{_IN_ADVANCE} by {_DET}(?P<a><APPROVER>){_IN_ADVANCE}"
    rf"|(?:always )?(?:requires?|needs?) (?:the )?{_KIND}approval (?:of|from|by) {_DET}(?P<b><APPROVER>){_IN_ADVANCE}"
    rf"|(?:always )?(?:requires?|needs?) {_DET}{_KIND}(?P<c><APPROVER>) (?:pre-?)?approval{_IN_ADVANCE}"
    rf"|{_DET}{_KIND}(?P<d><APPROVER>) approval is (?:always )?required{_IN_ADVANCE}"
    rf"|{_KIND}approval (?:of|from|by) {_DET}(?P<e><APPROVER>) is (?:always )?required"
    rf"|(?:is|are) subject to (?:the )?{_KIND}approval (?:of|from|by) {_DET}(?P<f><APPROVER>)"
    rf"|{_DET}(?P<g><APPROVER>) {_MUST} (?:pre-?)?approve"
)
APPROVAL_BY_NOBODY_NAMED = sentence_pattern(
    rf"{_MUST} be (?:pre-?)?approved|(?:requires?|needs?) {_KIND}approval|{_KIND}approval is (?:always )?required"
)

DEMANDS = (
    (
        Demand.RECEIPT,
        sentence_pattern(
            rf"{_RECEIPT} (?:is|are) (?:always )?(?:required|needed|mandatory)"
            rf"|(?:always )?(?:requires?|needs?) {_RECEIPT}"
            rf"|{_MUST} be (?:accompanied|supported|documented) (?:by|with) {_RECEIPT}"
            rf"|{_RECEIPT} {_MUST} be (?:provided|attached|submitted|included|uploaded)"
            rf"|(?:attach|provide|submit|include|upload) {_RECEIPT}"
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
            rf"|{_PERSON} (?:may|must|shall|can) not (?:claim|expense|charge|book|buy|purchase)"
        ),
    ),
    (
        Demand.PERMISSION,
        sentence_pattern(
            rf"(?:is|are|will be) (?:fully )?(?:{_ALLOWED}){_BY_US}|(?:may|can|shall) be {_PAID}"
            rf"|{_PERSON} (?:may|can) (?:claim|expense|spend)"
            r"|(?:we|the company) (?:will )?(?:reimburses?|covers?|pays?)(?: for)?"
        ),
    ),
)
"""Demands without a number of their own, in the order in which they are tried."""

WITHOUT_RECEIPT = sentence_pattern(r"without (?:an? |any )?(?:itemi[sz]ed |original |valid )*receipts?")

_OF = r"(?:(?:costing|worth|priced at|of|that (?:is|are)|is|are|costs?) )?"
MONEY_COMPARATORS = (
    (
        Comparator.AT_MOST,
        sentence_pattern(
            r"(?:up to|at most|no more than|not more than|(?:is |are )?(?:limited|restricted) to|(?:is |are )?capped at"
            r"|not to exceed|not exceeding|(?:must|may|shall|should|can|do|does|will) not exceed|cannot exceed"
            r"|(?:is |are )?subject to (?:a |the )?(?:maximum|limit|cap) of|to a (?:maximum|limit) of"
            r"|(?:with )?(?:a |the )?(?:maximum|limit|cap|ceiling|allowance)(?: amount)? (?:of|is))"
            r"(?: a (?:total|maximum) of)? (?P<money><MONEY>)|(?P<money2><MONEY>) or (?:less|under|below|lower)"
            r"|(?:the |a )?(?:maximum|limit|cap|ceiling)(?: amount)? (?:for|on) <VALUE>(?: costs| expenses| rates)?"
            r" (?:is|of) (?P<money3><MONEY>)"
        ),
    ),
    (
        Comparator.AT_LEAST,
        sentence_pattern(
            rf"{_OF}(?:at least|a minimum of) (?P<money><MONEY>)"
            rf"|{_OF}(?P<money2><MONEY>) (?:or|and) (?:more|above|over|greater|higher|up)"
        ),
    ),
    (
        Comparator.ABOVE,
        sentence_pattern(
            rf"(?:{_OF}(?:over|above|more than|greater than|in excess of)|exceeding|(?:that )?exceeds?) "
            r"(?P<money><MONEY>)"
        ),
    ),
    (Comparator.BELOW, sentence_pattern(rf"{_OF}(?:under|below|less than|lower than) (?P<money><MONEY>)")),
)
"""How an amount is compared; the first pattern that matches decides, so "no more than" never reads as "more than"."""

LONGER_FLIGHT = sentence_pattern(
    r"(?:(?:the |a )?(?:<VALUE> )?(?:flight time )?(?:is |takes |lasts |of |lasting )?)?"
    r"(?:longer than|more than|over|exceeding|exceeds) (?P<hours><HOURS>)"
)
"""Only "longer than": the fact counts started hours, so that "at least 8 hours" would also hold for 7 and a half."""

INHERITED_LIMIT = sentence_pattern(
    r"(?:reimbursement |spending |daily )?(?:limits?|maximum|max\.?|caps?|ceilings?)(?: amount| reimbursement)?|up to"
)

EXCEPTION_WORD = sentence_pattern(
    r"unless|except(?: for| when| where| if| in the case of| in)?|with the exception of|other than|excluding"
)
APPROVED = sentence_pattern(
    rf"(?:(?:it|they|this|the expense|the purchase) )?(?:(?:is|are|was|were|has been|have been) )?(?:pre-?)?approved"
    rf"{_IN_ADVANCE} by {_DET}(?P<a><APPROVER>){_IN_ADVANCE}"
    rf"|{_DET}(?P<b><APPROVER>) (?:has |have )?(?:pre-?)?approve[sd]?"
    rf"(?: it| them| the expense| the purchase)?{_IN_ADVANCE}"
    rf"|(?:with )?(?:the )?{_KIND}approval (?:of|from|by) {_DET}(?P<c><APPROVER>)"
)

IGNORED_BEFORE_VALUE = sentence_pattern(
    r"(?:travel(?:ling)? (?:in|by|with)|use of|trips in|driving)(?: an?| the| your| their)? (?=<VALUE>)"
)
POLITE = sentence_pattern(r"please(?: note that)?|note that|kindly")
SHOULD = sentence_pattern(r"should|ought to")
MAY = sentence_pattern(rf"(?:{_PERSON}|may) (?:may |can )?(?:be|claim|expense|spend)|can be")
WHOLE_CLAIM = sentence_pattern(r"claims?|(?:expense )?reports?")
EVERY_EXPENSE = sentence_pattern(
    r"(?:all|any|every|each|an?|single) (?:single |individual )?"
    r"(?:expense|purchase|cost|item|charge|claim|(?:expense )?report)"
    r"|expenses|purchases|costs|items|charges|expenditures|claims|(?:expense )?reports"
)
"""Words by which a clause without a category speaks of expenses in general, not of one mentioned before."""
CONNECTORS = sentence_pattern(r"(?:and|or|as well as|any|all|the|an?|of|for|costs?|expenses?|fees?|purchases?)")
NARROWING = sentence_pattern(
    r"not|no|never|only|while|before|after|until|within|without|unless|except|provided|otherwise|instead"
    r"|between|during|and|or|than|but|however|least|most|more|less"
)

_FILLER_WORDS = (
    "a an the any all each every of for to on at by in with per and is are be will must shall may should can "
    "which that who its their your our we you employee employees staff traveller travellers traveler travelers "
    "company single individual always also cost costs costing expense expenses expenditure expenditures "
    "purchase purchases item items amount amounts total charge charges bill bills fee fees fare fares price prices "
    "rate rates claim claims report reports reimbursement reimburse reimbursed pay paid cover covered "
    "following limit limits maximum apply applies category type kind what if when where"
)
FILLERS = frozenset(_FILLER_WORDS.split())
"""Words that never narrow a rule. Everything else must be read, or the clause is left to a person."""
