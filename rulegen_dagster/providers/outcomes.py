"""Outcomes of calls to a model: the words in which the table of `classification` is written."""

from dataclasses import dataclass
from enum import StrEnum

from rulegen_dagster.domain.quota import Remaining


class Kind(StrEnum):
    """What a call ended in, as the client tells it apart; a closed set."""

    #: The connection failed, at some phase; timeouts of the transport are among them.
    CONNECTION = "connection"
    #: The budget of the call ran out.
    OUT_OF_TIME = "out_of_time"
    QUOTA = "quota"
    RATE_LIMIT = "rate_limit"
    OVERLOADED = "overloaded"
    UNAVAILABLE = "unavailable"
    SERVER = "server"
    CONTEXT_WINDOW = "context_window"
    AUTHENTICATION = "authentication"
    NOT_FOUND = "not_found"
    REJECTED = "rejected"
    #: An HTTP error of no kind that has a name.
    STATUS = "status"
    #: The client itself refuses to send it.
    CONFIGURATION = "configuration"
    #: An answer that is none, or an error that nobody foresaw.
    UNREADABLE = "unreadable"
    #: A completion that stopped at its limit of tokens.
    TRUNCATED = "truncated"
    #: A completion that the model or a filter declined.
    REFUSED = "refused"


class Verdict(StrEnum):
    """The classes of outcomes; a closed set."""

    RETRYABLE = "retryable"
    RATE_LIMITED = "rate_limited"
    AMBIGUOUS = "ambiguous"
    PERMANENT = "permanent"
    #: The account is refused, whatever is asked of it: every item of its scope waits.
    ACCOUNT = "account"
    INVALID_OUTPUT = "invalid_output"


class Charge(StrEnum):
    """What a call counts for in quotas and costs; a closed set."""

    NOTHING = "nothing"
    #: One request of the minute, and no tokens.
    REQUEST = "request"
    #: What was reserved: nobody knows whether it is billed.
    ESTIMATE = "estimate"
    #: What the answer says that it used.
    ACTUAL = "actual"


class Next(StrEnum):
    """What becomes of the item; a closed set."""

    #: It waits for its turn by the retry policy, and at least as long as the provider asked for.
    BACKOFF = "backoff"
    #: It is asked for once more, told what was wrong.
    ONE_REPAIR = "one_repair"
    #: It fails, and its siblings go on.
    FAIL = "fail"
    #: It waits for an operator, with everything else of the account.
    OPERATOR = "operator"
    #: It fails, and a person looks at the clause.
    REVIEW = "review"


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What the client saw. Nothing of a body is in it: `error_codes` are the provider's machine words for the error.

    `may_retry` is its header `x-should-retry`; `repeats` counts equal errors in a row that speak of something that is
    not supported.
    """

    kind: Kind
    phase: str | None = None
    status: int | None = None
    error_codes: frozenset[str] = frozenset()
    may_retry: bool | None = None
    repeats: int = 0
    retry_after_ms: int | None = None
    request_id: str | None = None
    remaining: Remaining | None = None


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table. An empty condition holds always; those that are given must all hold."""

    name: str
    kinds: frozenset[Kind] = frozenset()
    phases: frozenset[str] = frozenset()
    statuses: frozenset[int] = frozenset()
    error_codes: frozenset[str] = frozenset()
    told_not_to_retry: bool = False
    least_repeats: int = 0
    verdict: Verdict
    code: str
    charge: Charge
    consumes_attempt: bool = True
    next: Next
    message: str

    def matches(self, seen: Seen) -> bool:
        """Return whether every condition of this row holds."""
        return (
            (not self.kinds or seen.kind in self.kinds)
            and (not self.phases or seen.phase in self.phases)
            and (not self.statuses or seen.status in self.statuses)
            and (not self.error_codes or bool(self.error_codes & seen.error_codes))
            and (not self.told_not_to_retry or seen.may_retry is False)
            and seen.repeats >= self.least_repeats
        )
