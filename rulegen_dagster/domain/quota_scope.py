"""Quota scopes: what a quota is set for, by the name that people give and the ledger keeps."""

from dataclasses import dataclass
from enum import StrEnum

from rulegen_dagster.domain.errors import InputError
from rulegen_dagster.domain.identity import JobName, check_tenant
from rulegen_dagster.domain.text import printable

_MOST_CHARACTERS = 200


class ScopeKind(StrEnum):
    """What a quota may be set for: a closed set."""

    #: A provider's account with one of its models, over all tenants.
    PROVIDER = "provider"
    TENANT = "tenant"
    JOB = "job"


@dataclass(frozen=True, kw_only=True)
class QuotaScope:
    """A scope: `provider:NAME/MODEL`, `tenant:T` or `job:T/KEY`."""

    kind: ScopeKind
    name: str

    def __str__(self) -> str:
        """Return the name with its kind before it."""
        return f"{self.kind}:{self.name}"

    @property
    def provider(self) -> str | None:
        """The provider's own name, without the model; None where the scope is another's."""
        return self.name.partition("/")[0] if self.kind is ScopeKind.PROVIDER else None

    @classmethod
    def parse(cls, text: str) -> "QuotaScope":
        """Read a scope's name. Raises `InputError` where it is none."""
        kind, _, name = text.partition(":")
        if kind == ScopeKind.JOB:
            return cls.of_job(JobName.parse(name))
        if kind == ScopeKind.TENANT:
            return cls.of_tenant(check_tenant(name))
        provider, _, model = name.partition("/")
        if kind != ScopeKind.PROVIDER or not provider or not model or len(text) > _MOST_CHARACTERS:
            raise InputError(
                f"'{printable(text)[:64]}' is no scope of a quota; name one like provider:NAME/MODEL, tenant:T or"
                " job:T/KEY",
                code="invalid_scope",
            )
        if not name.isprintable() or " " in name:
            raise InputError("a provider's and a model's name have no spaces and no controls", code="invalid_scope")
        return cls.of_provider(provider, model)

    @classmethod
    def of_provider(cls, provider: str, model: str) -> "QuotaScope":
        """Return the scope of a provider's model, as a job's behaviour names both."""
        return cls(kind=ScopeKind.PROVIDER, name=f"{provider}/{model}")

    @classmethod
    def of_tenant(cls, tenant: str) -> "QuotaScope":
        """Return the scope of all jobs of a tenant."""
        return cls(kind=ScopeKind.TENANT, name=tenant)

    @classmethod
    def of_job(cls, job: JobName) -> "QuotaScope":
        """Return the scope of one job."""
        return cls(kind=ScopeKind.JOB, name=str(job))
