"""Limits as a reason: what could be claimed, and which limit stands in the way."""

from typing import Any

from rulegen_dagster.domain.text import moment
from rulegen_dagster.ledger.limits import TENANT_LIMIT, ReachedLimit

LIMIT = "limit"
"""The code of the reason."""

_SETTINGS = {
    "extraction": "RULEGEN_EXTRACTION_LIMIT",
    "generation": "RULEGEN_GENERATION_LIMIT",
    "validation": "RULEGEN_VALIDATION_LIMIT",
    "actions": "RULEGEN_ACTION_LIMIT",
}


def limit_text(what: str, reached: ReachedLimit, now: int) -> str:
    """Say that `what` could be claimed, and by which limit it is not; `now` in ms."""
    if reached.name == TENANT_LIMIT:
        whose, how = "the tenant's limit", "'rulegen tenant set NAME --limit N' changes it"
    else:
        whose, how = f"the limit of {reached.name}", f"{_SETTINGS[reached.name]} changes it"
    if reached.next_at is None:
        return f"{what} could be claimed, but {whose} is {reached.value}: nothing begins; {how}"
    return (
        f"{what} could be claimed, but {whose} is reached: {reached.in_flight} of {reached.value} in flight,"
        f" {reached.of_job} of this job, {reached.of_tenant - reached.of_job} of the tenant's others,"
        f" {reached.of_others} of other tenants; the first lease ends {moment(reached.next_at, now)} if it is not"
        f" renewed; {how}"
    )


def limit_evidence(reached: ReachedLimit) -> dict[str, Any]:
    """Return the limit, its value, and who uses it up; of other tenants no more than how much."""
    return {
        "limit": reached.name,
        "value": reached.value,
        "in_flight": reached.in_flight,
        "of_this_job": reached.of_job,
        "of_this_tenant": reached.of_tenant,
        "of_other_tenants": reached.of_others,
        "setting": _SETTINGS.get(reached.name),
    }
