"""The tables of quotas: one row for each scope, and one for what each attempt has reserved of its scopes."""

import sqlalchemy as sa
from sqlalchemy import CheckConstraint, Column, ForeignKey, Index, Table, Text

from rulegen_dagster.ledger.schema import Millis, Serial, metadata, only_where

# All that a scope has stands in one row, so that a transaction never waits half-way through a scope. Levels are in
# 1/60,000 of a request or token (see domain/quota.py), money is micro-USD.
quota = Table(
    "quota",
    metadata,
    Column("scope", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("tenant", Text, ForeignKey("tenant.tenant")),
    Column("job_id", Serial, ForeignKey("job.job_id"), unique=True),
    Column("requests_per_minute", sa.BigInteger),
    Column("tokens_per_minute", sa.BigInteger),
    Column("concurrency", sa.BigInteger),
    Column("budget_micros", sa.BigInteger),
    Column("request_level", sa.BigInteger, nullable=False),
    Column("token_level", sa.BigInteger, nullable=False),
    Column("charged_micros", sa.BigInteger, nullable=False),
    Column("refilled_at", Millis, nullable=False),
    # Until when the provider asked everybody to wait.
    Column("blocked_until", Millis),
    # The breaker: why the account is refused, and when one attempt may try it again.
    Column("refused_code", Text),
    Column("refused_at", Millis),
    Column("probe_at", Millis),
    Column("probe_token", Text),
    Column("refusals", sa.BigInteger, nullable=False),
    Column("created_at", Millis, nullable=False),
    CheckConstraint(
        "(kind = 'provider' AND tenant IS NULL AND job_id IS NULL)"
        " OR (kind = 'tenant' AND tenant IS NOT NULL AND job_id IS NULL)"
        " OR (kind = 'job' AND tenant IS NULL AND job_id IS NOT NULL)",
        name="kind",
    ),
    CheckConstraint("requests_per_minute IS NULL OR requests_per_minute BETWEEN 1 AND 1000000000", name="requests"),
    CheckConstraint("tokens_per_minute IS NULL OR tokens_per_minute BETWEEN 1 AND 1000000000000", name="tokens"),
    CheckConstraint("concurrency IS NULL OR concurrency >= 0", name="concurrency"),
    CheckConstraint("budget_micros IS NULL OR budget_micros >= 0", name="budget"),
    CheckConstraint("request_level <= COALESCE(requests_per_minute, 0) * 60000", name="request_level"),
    CheckConstraint("token_level <= COALESCE(tokens_per_minute, 0) * 60000", name="token_level"),
    CheckConstraint("charged_micros >= 0 AND refusals >= 0", name="counts"),
    CheckConstraint(
        "(refused_code IS NULL) = (refused_at IS NULL) AND (refused_code IS NULL) = (probe_at IS NULL)"
        " AND (refused_code IS NULL) = (refusals = 0) AND (probe_token IS NULL OR refused_code IS NOT NULL)",
        name="refused_is_probed",
    ),
)

# What an attempt may use, charged to each of its scopes when it was claimed. Triggers let a row leave `reserved` and
# `kept` alone, and keep it when its attempt is lost or taken away.
quota_reservation = Table(
    "quota_reservation",
    metadata,
    Column("token", Text, ForeignKey("attempt.token"), primary_key=True),
    Column("provider_scope", Text, ForeignKey("quota.scope")),
    Column("tenant_scope", Text, ForeignKey("quota.scope")),
    Column("job_scope", Text, ForeignKey("quota.scope")),
    Column("tokens", sa.BigInteger, nullable=False),
    Column("cost_micros", sa.BigInteger),
    Column("state", Text, nullable=False),
    Column("used_requests", sa.BigInteger),
    # Null where it was charged as estimated.
    Column("used_tokens", sa.BigInteger),
    Column("used_micros", sa.BigInteger),
    Column("created_at", Millis, nullable=False),
    Column("settled_at", Millis),
    CheckConstraint("provider_scope IS NOT NULL OR tenant_scope IS NOT NULL OR job_scope IS NOT NULL", name="scoped"),
    CheckConstraint("state = 'reserved' OR state = 'kept' OR state = 'settled' OR state = 'released'", name="state"),
    CheckConstraint(
        "(state = 'settled' OR state = 'released') = (settled_at IS NOT NULL)"
        " AND (settled_at IS NULL) = (used_requests IS NULL)",
        name="settled_is_counted",
    ),
    CheckConstraint(
        "tokens >= 0 AND COALESCE(cost_micros, 0) >= 0 AND COALESCE(used_tokens, 0) >= 0"
        " AND COALESCE(used_micros, 0) >= 0",
        name="counts",
    ),
)
# Concurrency counts what is in flight, however much was settled.
Index("ix_quota_reservation_reserved", quota_reservation.c.token, info=only_where("state = 'reserved'"))
# A clamp looks at what was reserved after a call.
Index(
    "ix_quota_reservation_provider_scope_created_at", quota_reservation.c.provider_scope, quota_reservation.c.created_at
)

# The most that a call of a job's stage may use, and what comes on top with a longer answer; null where no price is
# known.
call_estimate = Table(
    "call_estimate",
    metadata,
    Column("job_id", Serial, ForeignKey("job.job_id"), primary_key=True),
    Column("stage", Text, primary_key=True),
    Column("tokens", sa.BigInteger, nullable=False),
    Column("cost_micros", sa.BigInteger),
    Column("longer_tokens", sa.BigInteger, nullable=False),
    Column("longer_micros", sa.BigInteger, nullable=False),
    CheckConstraint("stage = 'generate_rules' OR stage = 'generate_tests'", name="stage"),
    CheckConstraint("tokens >= 0 AND COALESCE(cost_micros, 0) >= 0", name="counts"),
    CheckConstraint("longer_tokens >= 0", name="longer_tokens"),
    CheckConstraint("longer_micros >= 0", name="longer_micros"),
)
