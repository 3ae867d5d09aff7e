"""Every error of the project, in one tree.

    RulegenError                 base; `code` is stable, the message is for people
      InputError                 what a user gave cannot be used
        SpecError                an upload that cannot become a specification
        IdentityError            a tenant, submission key or partition key that is not well formed
        TenantNotFoundError
        JobNotFoundError
        VocabularyError          a vocabulary pack that does not load
        ProviderConfigError      an unknown provider, or a script that does not load
      SubmissionConflictError    a submission key that is taken by another input
      StateError                 the job is not in a state in which this is possible
        ActionSetMismatchError   a confirmation of another action set than the job's
        BehaviourChangedError    this release would not make the job in the way that it froze
      RuleLanguageError          a condition outside the rule language
      DraftRejectedError         a draft that failed validation, with typed failures
      LedgerError                the ledger could not be read or written; never a provider's fault
      ProviderError              one call failed; its class is one of the attempt outcomes
        ProviderRetryableError, ProviderRateLimitedError, ProviderAmbiguousError, ProviderPermanentError
      PublishError               the bundle could not be written

No message holds specification text, a prompt or a secret.
"""

from dataclasses import dataclass


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


class DraftRejectedError(RulegenError):
    """Raised when a draft fails validation; `failures` names each reason."""

    code = "draft_rejected"

    def __init__(self, failures: tuple[Failure, ...]) -> None:
        """Summarize the first failure and count the rest."""
        first = failures[0]
        more = f" and {len(failures) - 1} more" if len(failures) > 1 else ""
        super().__init__(f"{first.code} at {first.path}: {first.message}{more}", code=first.code)
        self.failures = failures


class LedgerError(RulegenError):
    """Raised when the ledger could not be read or written; never booked as a provider's failure."""

    code = "ledger_unavailable"


class ProviderError(RulegenError):
    """Base of what one provider call can end in; never raised itself."""

    code = "provider_error"


class ProviderRetryableError(ProviderError):
    """Raised when the call certainly did no work and may be tried again."""

    code = "provider_unavailable"


class ProviderRateLimitedError(ProviderError):
    """Raised when the provider asks to wait; `retry_after_ms` is its own word, or None."""

    code = "provider_rate_limited"

    def __init__(self, message: str, *, retry_after_ms: int | None = None) -> None:
        """Keep the wait that the provider asked for."""
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


class ProviderAmbiguousError(ProviderError):
    """Raised when the call may have done its work (a timeout, a lost connection); it may be billed."""

    code = "provider_outcome_unknown"


class ProviderPermanentError(ProviderError):
    """Raised when trying again cannot help."""

    code = "provider_rejected"


class PublishError(RulegenError):
    """Raised when the bundle could not be written or read back."""

    code = "publish_failed"
