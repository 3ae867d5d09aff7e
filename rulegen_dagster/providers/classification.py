"""Classification: what one call to a model ended in, as a table of rows; the first row that matches decides.

The rows know nothing of a client's classes: the client says what it saw as a `Seen`. A row tells the class of the
outcome, its stable code, what the call costs, whether it uses up one of the item's attempts, and what happens next.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from rulegen_dagster.domain.errors import (
    ProviderAccountError,
    ProviderAmbiguousError,
    ProviderError,
    ProviderPermanentError,
    ProviderRateLimitedError,
    ProviderRetryableError,
)
from rulegen_dagster.providers.outcomes import Charge, Kind, Next, Row, Seen, Verdict
from rulegen_dagster.providers.port import AnswerProblem

MOST_REPEATS: Final = 3
"""After so many equal errors that speak of something unsupported, a server's error is the request's fault."""

_MAY_BE_BILLED: Final = "it may be billed"

CLASSIFICATION: Final[tuple[Row, ...]] = (
    Row(
        name="quota exhausted",
        kinds=frozenset({Kind.QUOTA}),
        verdict=Verdict.ACCOUNT,
        code="provider_quota_exhausted",
        charge=Charge.NOTHING,
        consumes_attempt=False,
        next=Next.OPERATOR,
        message="the account's quota or credit is used up; raise it with the provider",
    ),
    Row(
        name="billing",
        error_codes=frozenset({"insufficient_quota", "billing_error", "billing_hard_limit_reached"}),
        verdict=Verdict.ACCOUNT,
        code="provider_quota_exhausted",
        charge=Charge.NOTHING,
        consumes_attempt=False,
        next=Next.OPERATOR,
        message="the account's quota or credit is used up; raise it with the provider",
    ),
    Row(
        name="authentication",
        kinds=frozenset({Kind.AUTHENTICATION}),
        verdict=Verdict.ACCOUNT,
        code="provider_account_refused",
        charge=Charge.NOTHING,
        consumes_attempt=False,
        next=Next.OPERATOR,
        message="the provider refuses the key, or the key may not use this model; see RULEGEN_API_KEY",
    ),
    Row(
        name="not sent",
        kinds=frozenset({Kind.CONNECTION}),
        phases=frozenset({"pool", "connect"}),
        verdict=Verdict.RETRYABLE,
        code="provider_unreachable",
        charge=Charge.NOTHING,
        next=Next.BACKOFF,
        message="the endpoint could not be reached; nothing was sent",
    ),
    Row(
        name="connection lost",
        kinds=frozenset({Kind.CONNECTION}),
        verdict=Verdict.AMBIGUOUS,
        code="provider_connection_lost",
        charge=Charge.ESTIMATE,
        next=Next.BACKOFF,
        message=f"the connection was lost, or gave no answer in time; {_MAY_BE_BILLED}",
    ),
    Row(
        name="out of time",
        kinds=frozenset({Kind.OUT_OF_TIME}),
        verdict=Verdict.AMBIGUOUS,
        code="provider_timeout",
        charge=Charge.ESTIMATE,
        next=Next.BACKOFF,
        message=f"no whole answer within the time of this call; {_MAY_BE_BILLED}",
    ),
    Row(
        name="server refuses the request's shape",
        kinds=frozenset({Kind.SERVER, Kind.UNAVAILABLE}),
        least_repeats=MOST_REPEATS,
        verdict=Verdict.PERMANENT,
        code="provider_rejects_request",
        charge=Charge.ESTIMATE,
        next=Next.FAIL,
        message="the server fails again and again with words that something is not supported; see `rulegen provider"
        " check` and RULEGEN_OUTPUT_MODE",
    ),
    Row(
        name="too large",
        kinds=frozenset({Kind.CONTEXT_WINDOW}),
        verdict=Verdict.PERMANENT,
        code="provider_input_too_large",
        charge=Charge.NOTHING,
        next=Next.FAIL,
        message="the clause and its context are more than the model reads at once; split the clause",
    ),
    Row(
        name="too large (413)",
        statuses=frozenset({413}),
        verdict=Verdict.PERMANENT,
        code="provider_input_too_large",
        charge=Charge.NOTHING,
        next=Next.FAIL,
        message="the clause and its context are more than the endpoint takes; split the clause",
    ),
    Row(
        name="not found",
        kinds=frozenset({Kind.NOT_FOUND}),
        verdict=Verdict.PERMANENT,
        code="provider_model_not_found",
        charge=Charge.NOTHING,
        next=Next.FAIL,
        message="the endpoint does not know the model, or is another one; see RULEGEN_MODEL and RULEGEN_BASE_URL",
    ),
    Row(
        name="input refused",
        kinds=frozenset({Kind.REJECTED}),
        error_codes=frozenset({"content_filter", "content_policy_violation"}),
        verdict=Verdict.INVALID_OUTPUT,
        code=AnswerProblem.REFUSED.value,
        charge=Charge.ESTIMATE,
        next=Next.REVIEW,
        message="the provider's content filter declined the clause itself",
    ),
    Row(
        name="rejected",
        kinds=frozenset({Kind.REJECTED}),
        verdict=Verdict.PERMANENT,
        code="provider_rejected",
        charge=Charge.NOTHING,
        next=Next.FAIL,
        message="the provider rejects the request itself; see `rulegen provider check`",
    ),
    Row(
        name="told not to retry, nothing done",
        kinds=frozenset({Kind.RATE_LIMIT, Kind.OVERLOADED, Kind.UNAVAILABLE}),
        told_not_to_retry=True,
        verdict=Verdict.PERMANENT,
        code="provider_forbids_retry",
        charge=Charge.NOTHING,
        next=Next.FAIL,
        message="the provider says that trying again is no use",
    ),
    Row(
        name="told not to retry, conflict",
        statuses=frozenset({409, 425}),
        told_not_to_retry=True,
        verdict=Verdict.PERMANENT,
        code="provider_forbids_retry",
        charge=Charge.NOTHING,
        next=Next.FAIL,
        message="the provider says that trying again is no use",
    ),
    Row(
        name="told not to retry, perhaps done",
        kinds=frozenset({Kind.SERVER}),
        told_not_to_retry=True,
        verdict=Verdict.PERMANENT,
        code="provider_forbids_retry",
        charge=Charge.ESTIMATE,
        next=Next.FAIL,
        message=f"the server failed and says that trying again is no use; {_MAY_BE_BILLED}",
    ),
    Row(
        name="rate limit",
        kinds=frozenset({Kind.RATE_LIMIT}),
        verdict=Verdict.RATE_LIMITED,
        code="provider_rate_limited",
        charge=Charge.REQUEST,
        consumes_attempt=False,
        next=Next.BACKOFF,
        message="the provider asks to wait",
    ),
    Row(
        name="overloaded or unavailable",
        kinds=frozenset({Kind.OVERLOADED, Kind.UNAVAILABLE}),
        verdict=Verdict.RETRYABLE,
        code="provider_unavailable",
        charge=Charge.NOTHING,
        next=Next.BACKOFF,
        message="the provider is not available now",
    ),
    Row(
        name="server error",
        kinds=frozenset({Kind.SERVER}),
        verdict=Verdict.AMBIGUOUS,
        code="provider_server_error",
        charge=Charge.ESTIMATE,
        next=Next.BACKOFF,
        message=f"the server failed, perhaps after its work was done; {_MAY_BE_BILLED}",
    ),
    Row(
        name="request timeout (408)",
        kinds=frozenset({Kind.STATUS}),
        statuses=frozenset({408}),
        verdict=Verdict.AMBIGUOUS,
        code="provider_timeout",
        charge=Charge.ESTIMATE,
        next=Next.BACKOFF,
        message=f"the endpoint gave up waiting; {_MAY_BE_BILLED}",
    ),
    Row(
        name="conflict or too early",
        kinds=frozenset({Kind.STATUS}),
        statuses=frozenset({409, 425}),
        verdict=Verdict.RETRYABLE,
        code="provider_unavailable",
        charge=Charge.NOTHING,
        next=Next.BACKOFF,
        message="the endpoint cannot take the request at this moment",
    ),
    Row(
        name="redirect",
        statuses=frozenset({301, 302, 303, 307, 308}),
        verdict=Verdict.PERMANENT,
        code="provider_redirects",
        charge=Charge.NOTHING,
        next=Next.FAIL,
        message="the endpoint sends elsewhere, and no key is sent after it; give the final address as RULEGEN_BASE_URL",
    ),
    Row(
        name="other status",
        kinds=frozenset({Kind.STATUS}),
        verdict=Verdict.PERMANENT,
        code="provider_rejected",
        charge=Charge.NOTHING,
        next=Next.FAIL,
        message="the provider rejects the request",
    ),
    Row(
        name="configuration",
        kinds=frozenset({Kind.CONFIGURATION}),
        verdict=Verdict.PERMANENT,
        code="provider_misconfigured",
        charge=Charge.NOTHING,
        next=Next.FAIL,
        message="the client refuses to send this with these settings; see `rulegen provider check`",
    ),
    Row(
        name="truncated",
        kinds=frozenset({Kind.TRUNCATED}),
        verdict=Verdict.INVALID_OUTPUT,
        code=AnswerProblem.TRUNCATED.value,
        charge=Charge.ACTUAL,
        next=Next.ONE_REPAIR,
        message="the answer was cut off at its limit of tokens",
    ),
    Row(
        name="refused",
        kinds=frozenset({Kind.REFUSED}),
        verdict=Verdict.INVALID_OUTPUT,
        code=AnswerProblem.REFUSED.value,
        charge=Charge.ACTUAL,
        next=Next.REVIEW,
        message="the model or its content filter declined to answer",
    ),
    Row(
        name="unreadable",
        verdict=Verdict.INVALID_OUTPUT,
        code=AnswerProblem.UNREADABLE.value,
        charge=Charge.ESTIMATE,
        next=Next.ONE_REPAIR,
        message="the endpoint answered with something that is no completion",
    ),
)
"""The whole table. Its last row takes whatever no other row has foreseen."""

ERROR_OF: Final[Mapping[Verdict, type[ProviderError]]] = MappingProxyType(
    {
        Verdict.RETRYABLE: ProviderRetryableError,
        Verdict.RATE_LIMITED: ProviderRateLimitedError,
        Verdict.AMBIGUOUS: ProviderAmbiguousError,
        Verdict.PERMANENT: ProviderPermanentError,
        Verdict.ACCOUNT: ProviderAccountError,
    }
)
"""The error that a call raises; an invalid output is a reply with a problem, for it is paid for."""


def classify(seen: Seen) -> Row:
    """Return the first row that matches what was seen."""
    return next(row for row in CLASSIFICATION if row.matches(seen))


def error_of(row: Row, seen: Seen) -> ProviderError:
    """Return the error that a row stands for; its message has the HTTP status and nothing of a body."""
    status = f" (HTTP {seen.status})" if seen.status is not None else ""
    return ERROR_OF[row.verdict](
        f"{row.message}{status}",
        code=row.code,
        retry_after_ms=seen.retry_after_ms,
        request_id=seen.request_id,
        remaining=seen.remaining,
    )
