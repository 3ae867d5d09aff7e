"""Every error of the project, in one tree.

    RulegenError                 base; `code` is stable, the message is for people
      InputError                 what a user gave cannot be used
        SpecError                an upload that cannot become a specification
        IdentityError            a tenant, submission key or partition key that is not well formed
        TenantNotFoundError
        JobNotFoundError
        VocabularyError          a vocabulary pack that does not load
        PolicyError              a validation policy that does not load
        ProviderConfigError      an unknown provider, or a script that does not load
      ParserProcessError         the process that reads an upload was lost; the file is not to blame
      SubmissionConflictError    a submission key that is taken by another input
      StateError                 the job is not in a state in which this is possible
        ActionSetMismatchError   a confirmation of another action set than the job's
        BehaviourChangedError    this release would not make the job in the way that it froze
      RuleLanguageError          a condition outside the rule language
      RuleExecutionError         the process that executes rules ended without a report
      DraftRejectedError         a draft that failed validation, with typed failures
      RetrievalError             the context of a clause could not be found; never a model's or provider's fault
      LedgerError                the ledger could not be read or written; never a provider's fault
      ProviderError              one call failed; its class is one of the attempt outcomes
        ProviderRetryableError, ProviderRateLimitedError, ProviderAmbiguousError, ProviderPermanentError,
        ProviderAccountError
      PublishError               the bundle could not be written
      StoppedError               the process was told to stop before it was done

No message holds specification text, a prompt or a secret.
"""

from dataclasses import dataclass
from enum import StrEnum

from rulegen_dagster.domain.failure_kinds import FailureKind, kind_of
from rulegen_dagster.domain.quota import Remaining


class RulegenError(Exception):
    """Base of all errors; `code` is stable over releases."""

    code = "error"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        """Keep the message, and a code narrower than the class's own where one is given."""
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code


class InputError(RulegenError):
    """Raised when what a user gave cannot be used."""

    code = "invalid_input"


class SpecError(InputError):
    """Raised when an upload cannot become a specification; `code` says why."""

    code = "invalid_spec"


class ParserProcessError(RulegenError):
    """Raised when the process that reads an upload could not start or was ended from outside; try again."""

    code = "parser_process_lost"


class IdentityError(InputError):
    """Raised when a tenant, submission key or partition key is not well formed."""

    code = "invalid_key"


class TenantNotFoundError(InputError):
    """Raised when no such tenant exists."""

    code = "tenant_not_found"


class JobNotFoundError(InputError):
    """Raised when the tenant has no such job."""

    code = "job_not_found"


class VocabularyError(InputError):
    """Raised when a vocabulary pack is missing or malformed."""

    code = "invalid_vocabulary"


class PolicyError(InputError):
    """Raised when a validation policy does not exist or does not load."""

    code = "invalid_policy"


class ProviderConfigError(InputError):
    """Raised when a provider is unknown or its configuration does not load."""

    code = "invalid_provider"


class SubmissionConflictError(RulegenError):
    """Raised when a submission key is taken by another input."""

    code = "submission_conflict"


class StateError(RulegenError):
    """Raised when the job is not in a state in which the request is possible."""

    code = "wrong_state"


class ActionSetMismatchError(StateError):
    """Raised when a confirmation names another action set than the job's current one."""

    code = "action_set_mismatch"


class BehaviourChangedError(StateError):
    """Raised when this release would make a job's outputs in another way than the job froze."""

    code = "behaviour_changed"


class RuleLanguageError(RulegenError):
    """Raised when a condition is outside the rule language; `position` counts code points from 0."""

    code = "rule_language"

    def __init__(self, code: str, message: str, position: int | None = None) -> None:
        """Keep the typed code and, where there is one, the position."""
        super().__init__(message if position is None else f"{message} (at {position})", code=code)
        self.position = position


@dataclass(frozen=True, kw_only=True)
class Failure:
    """One reason why a draft or a ruleset is refused: stable code, JSON path, message for people."""

    code: str
    path: str
    message: str

    @property
    def kind(self) -> FailureKind:
        """What the failure is about, by its code."""
        return kind_of(self.code)


class RuleExecutionError(RulegenError):
    """Raised when the process that executes rules and tests ended without a report."""

    code = "rule_execution"


class DraftRejectedError(RulegenError):
    """Raised when a draft fails validation; `failures` names each reason."""

    code = "draft_rejected"

    def __init__(self, failures: tuple[Failure, ...]) -> None:
        """Summarize the first failure and count the rest."""
        first = failures[0]
        more = f" and {len(failures) - 1} more" if len(failures) > 1 else ""
        super().__init__(f"{first.code} at {first.path}: {first.message}{more}", code=first.code)
        self.failures = failures


class RetrievalError(RulegenError):
    """Raised when the context of clauses could not be looked up; never booked as a model's or provider's failure."""

    code = "retrieval_failed"


class LedgerFault(StrEnum):
    """What can be wrong with the ledger's database: a closed set, and the `code` of the error that tells it."""

    #: Not reached: the server is down or restarting, the connection broke, the file cannot be opened.
    UNAVAILABLE = "ledger_unavailable"
    #: Somebody else holds a lock longer than a writer waits.
    LOCKED = "ledger_locked"
    #: The database broke the transaction off for another's sake (deadlock, serialization); nothing of it happened.
    CONFLICT = "ledger_conflict"
    #: No space left on the disk.
    FULL = "ledger_full"
    #: The file, its disk or the server takes no writes.
    READ_ONLY = "ledger_read_only"
    #: The disk could not be read or written.
    IO = "ledger_io"
    #: The database is damaged, or is none.
    CORRUPT = "ledger_corrupt"
    #: The account or the database's name is wrong, or a right is missing.
    DENIED = "ledger_denied"
    #: A constraint, a trigger or the schema refuses the statement; it would refuse it again.
    REFUSED = "ledger_refused"


TRANSIENT_FAULTS = frozenset(
    {
        LedgerFault.UNAVAILABLE,
        LedgerFault.LOCKED,
        LedgerFault.CONFLICT,
        LedgerFault.FULL,
        LedgerFault.READ_ONLY,
        LedgerFault.IO,
    }
)
"""Faults that may pass while a process waits: servers come back, locks end, somebody frees space."""


class LedgerError(RulegenError):
    """Raised when the ledger could not be read or written; never booked as a provider's failure.

    `code` is a `LedgerFault` where the database is at fault, else one of the blob store or of the schema's revision.
    """

    code = LedgerFault.UNAVAILABLE.value

    @property
    def fault(self) -> LedgerFault | None:
        """What is wrong with the database; None where the error is another's (a blob, the revision)."""
        return next((fault for fault in LedgerFault if fault == self.code), None)

    @property
    def is_transient(self) -> bool:
        """Whether the same transaction may succeed later.

        After any fault but a conflict the commit's answer may have been lost: whoever tries again must be safe against
        finding its own work done.
        """
        return self.fault in TRANSIENT_FAULTS


class ProviderError(RulegenError):
    """Base of what one provider call can end in; never raised itself.

    `retry_after_ms`, `request_id` and `remaining` are the provider's own words, where it answered at all.
    """

    code = "provider_error"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        retry_after_ms: int | None = None,
        request_id: str | None = None,
        remaining: Remaining | None = None,
    ) -> None:
        """Keep what the provider said of itself."""
        super().__init__(message, code=code)
        self.retry_after_ms = retry_after_ms
        self.request_id = request_id
        self.remaining = remaining


class ProviderRetryableError(ProviderError):
    """Raised when the call certainly did no work and may be tried again."""

    code = "provider_unavailable"


class ProviderRateLimitedError(ProviderError):
    """Raised when the provider asks to wait; `retry_after_ms` is its own word, or None."""

    code = "provider_rate_limited"


class ProviderAmbiguousError(ProviderError):
    """Raised when the call may have done its work (a timeout, a lost connection); it may be billed."""

    code = "provider_outcome_unknown"


class ProviderPermanentError(ProviderError):
    """Raised when trying again cannot help."""

    code = "provider_rejected"


class ProviderAccountError(ProviderError):
    """Raised when the account is refused (its key, its rights, its exhausted quota), whatever is asked of it."""

    code = "provider_account"


class PublishError(RulegenError):
    """Raised when the bundle could not be written or read back."""

    code = "publish_failed"


class StoppedError(RulegenError):
    """Raised when the process was told to stop before it was done; what was committed stays."""

    code = "stopped"
