"""Provider reports: what the answers of calls said of themselves, kept with their attempts; nothing decides by them."""

import json
from collections.abc import Mapping, Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rulegen_dagster.domain.retry import RetryDecision
from rulegen_dagster.domain.work import FailedAttempt, Offer
from rulegen_dagster.ledger.schema import attempt

Report = Mapping[str, str | int | float | bool | None]

_WRITE = (
    sa.update(attempt)
    .where(attempt.c.token == sa.bindparam("of_token"), attempt.c.provider_called)
    .values(report=sa.bindparam("told"))
)


def write_reports(
    connection: Connection, offers: Sequence[Offer], failures: Sequence[tuple[FailedAttempt, RetryDecision]]
) -> None:
    """Keep the reports of attempts that have just ended, in their transaction; nothing to do where nobody reported.

    A late one has its report kept, too: it is paid for.
    """
    told = [(offer.claim.token, offer.usage.report) for offer in offers if offer.usage.report]
    told += [(failed.claim.token, failed.usage.report) for failed, _ in failures if failed.usage.report]
    if told:
        rows = [{"of_token": token, "told": report_to_json(report)} for token, report in told]
        connection.execute(_WRITE, rows)


def report_to_json(report: Report) -> str:
    """Return a report as the ledger keeps it."""
    return json.dumps(dict(report), sort_keys=True, separators=(",", ":"))


def report_from_json(text: str | None) -> Report:
    """Return the report that `report_to_json` made plain; empty where there was none."""
    read: Report = json.loads(text or "{}")
    return read
