"""Quotas: requests, tokens and money of each scope, and what attempts have reserved of them."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

FIXED = ("token", "provider_scope", "tenant_scope", "job_scope", "tokens", "cost_micros", "created_at")
"""What of a reservation never changes."""


def upgrade() -> None:
    serial = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    _create_quota(serial)
    _create_reservation()
    op.create_table(
        "call_estimate",
        sa.Column("job_id", serial, nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("cost_micros", sa.BigInteger()),
        sa.PrimaryKeyConstraint("job_id", "stage", name=op.f("pk_call_estimate")),
        sa.ForeignKeyConstraint(["job_id"], ["job.job_id"], name=op.f("fk_call_estimate_job_id")),
        sa.CheckConstraint("stage = 'generate_rules' OR stage = 'generate_tests'", name=op.f("ck_call_estimate_stage")),
        sa.CheckConstraint("tokens >= 0 AND COALESCE(cost_micros, 0) >= 0", name=op.f("ck_call_estimate_counts")),
    )
    if op.get_bind().dialect.name == "sqlite":
        _guard_sqlite()
    else:
        _guard_postgresql()


def _create_quota(serial: sa.types.TypeEngine[int]) -> None:
    op.create_table(
        "quota",
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text()),
        sa.Column("job_id", serial),
        sa.Column("requests_per_minute", sa.BigInteger()),
        sa.Column("tokens_per_minute", sa.BigInteger()),
        sa.Column("concurrency", sa.BigInteger()),
        sa.Column("budget_micros", sa.BigInteger()),
        sa.Column("request_level", sa.BigInteger(), nullable=False),
        sa.Column("token_level", sa.BigInteger(), nullable=False),
        sa.Column("charged_micros", sa.BigInteger(), nullable=False),
        sa.Column("refilled_at", sa.BigInteger(), nullable=False),
        sa.Column("blocked_until", sa.BigInteger()),
        sa.Column("refused_code", sa.Text()),
        sa.Column("refused_at", sa.BigInteger()),
        sa.Column("probe_at", sa.BigInteger()),
        sa.Column("probe_token", sa.Text()),
        sa.Column("refusals", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("scope", name=op.f("pk_quota")),
        sa.ForeignKeyConstraint(["tenant"], ["tenant.tenant"], name=op.f("fk_quota_tenant")),
        sa.ForeignKeyConstraint(["job_id"], ["job.job_id"], name=op.f("fk_quota_job_id")),
        sa.UniqueConstraint("job_id", name=op.f("uq_quota_job_id")),
        sa.CheckConstraint(
            "(kind = 'provider' AND tenant IS NULL AND job_id IS NULL)"
            " OR (kind = 'tenant' AND tenant IS NOT NULL AND job_id IS NULL)"
            " OR (kind = 'job' AND tenant IS NULL AND job_id IS NOT NULL)",
            name=op.f("ck_quota_kind"),
        ),
        sa.CheckConstraint(
            "requests_per_minute IS NULL OR requests_per_minute BETWEEN 1 AND 1000000000",
            name=op.f("ck_quota_requests"),
        ),
        sa.CheckConstraint(
            "tokens_per_minute IS NULL OR tokens_per_minute BETWEEN 1 AND 1000000000000", name=op.f("ck_quota_tokens")
        ),
        sa.CheckConstraint("concurrency IS NULL OR concurrency >= 0", name=op.f("ck_quota_concurrency")),
        sa.CheckConstraint("budget_micros IS NULL OR budget_micros >= 0", name=op.f("ck_quota_budget")),
        sa.CheckConstraint(
            "request_level <= COALESCE(requests_per_minute, 0) * 60000", name=op.f("ck_quota_request_level")
        ),
        sa.CheckConstraint("token_level <= COALESCE(tokens_per_minute, 0) * 60000", name=op.f("ck_quota_token_level")),
        sa.CheckConstraint("charged_micros >= 0 AND refusals >= 0", name=op.f("ck_quota_counts")),
        sa.CheckConstraint(
            "(refused_code IS NULL) = (refused_at IS NULL) AND (refused_code IS NULL) = (probe_at IS NULL)"
            " AND (refused_code IS NULL) = (refusals = 0) AND (probe_token IS NULL OR refused_code IS NOT NULL)",
            name=op.f("ck_quota_refused_is_probed"),
        ),
    )


def _create_reservation() -> None:
    scopes = ("provider_scope", "tenant_scope", "job_scope")
    op.create_table(
        "quota_reservation",
        sa.Column("token", sa.Text(), nullable=False),
        *(sa.Column(name, sa.Text()) for name in scopes),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("cost_micros", sa.BigInteger()),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("used_requests", sa.BigInteger()),
        sa.Column("used_tokens", sa.BigInteger()),
        sa.Column("used_micros", sa.BigInteger()),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("settled_at", sa.BigInteger()),
        sa.PrimaryKeyConstraint("token", name=op.f("pk_quota_reservation")),
        sa.ForeignKeyConstraint(["token"], ["attempt.token"], name=op.f("fk_quota_reservation_token")),
        *(
            sa.ForeignKeyConstraint([name], ["quota.scope"], name=op.f(f"fk_quota_reservation_{name}"))
            for name in scopes
        ),
        sa.CheckConstraint(
            "provider_scope IS NOT NULL OR tenant_scope IS NOT NULL OR job_scope IS NOT NULL",
            name=op.f("ck_quota_reservation_scoped"),
        ),
        sa.CheckConstraint(
            "state = 'reserved' OR state = 'kept' OR state = 'settled' OR state = 'released'",
            name=op.f("ck_quota_reservation_state"),
        ),
        sa.CheckConstraint(
            "(state = 'settled' OR state = 'released') = (settled_at IS NOT NULL)"
            " AND (settled_at IS NULL) = (used_requests IS NULL)",
            name=op.f("ck_quota_reservation_settled_is_counted"),
        ),
        sa.CheckConstraint(
            "tokens >= 0 AND COALESCE(cost_micros, 0) >= 0 AND COALESCE(used_tokens, 0) >= 0"
            " AND COALESCE(used_micros, 0) >= 0",
            name=op.f("ck_quota_reservation_counts"),
        ),
    )
    reserved = sa.text("state = 'reserved'")
    op.create_index(
        "ix_quota_reservation_reserved",
        "quota_reservation",
        ["token"],
        sqlite_where=reserved,
        postgresql_where=reserved,
    )
    op.create_index(
        "ix_quota_reservation_provider_scope_created_at", "quota_reservation", ["provider_scope", "created_at"]
    )


def _refused(differs: str) -> str:
    """Return the condition of a change that is refused: of what is fixed, or of a row that is closed."""
    changed = " OR ".join(f"NEW.{column} {differs} OLD.{column}" for column in FIXED)
    is_closed = "(OLD.state = 'settled' OR OLD.state = 'released')"
    reopened = "(OLD.state = 'kept' AND NEW.state = 'reserved')"
    return f"{changed} OR {is_closed} OR {reopened}"


def _guard_sqlite() -> None:
    op.execute(
        "CREATE TRIGGER quota_reservation_is_kept BEFORE DELETE ON quota_reservation"
        " BEGIN SELECT RAISE(ABORT, 'a reservation is never deleted'); END"
    )
    op.execute(
        "CREATE TRIGGER quota_reservation_is_settled_once BEFORE UPDATE ON quota_reservation"
        f" WHEN {_refused('IS NOT')}"
        " BEGIN SELECT RAISE(ABORT, 'a reservation is settled once and not changed otherwise'); END"
    )
    # Whoever books an attempt as lost or taken away, its call may be paid for.
    op.execute(
        "CREATE TRIGGER attempt_keeps_its_reservation AFTER UPDATE OF outcome ON attempt"
        " WHEN NEW.outcome = 'crashed' OR NEW.outcome = 'cancelled'"
        " BEGIN UPDATE quota_reservation SET state = 'kept' WHERE token = NEW.token AND state = 'reserved'; END"
    )


def _guard_postgresql() -> None:
    op.execute(
        "CREATE FUNCTION refuse_reservation_change() RETURNS trigger LANGUAGE plpgsql AS $$"
        " BEGIN RAISE EXCEPTION '%', TG_ARGV[0] USING ERRCODE = 'integrity_constraint_violation'; END $$"
    )
    op.execute(
        "CREATE TRIGGER quota_reservation_is_kept BEFORE DELETE OR TRUNCATE ON quota_reservation FOR EACH STATEMENT"
        " EXECUTE FUNCTION refuse_reservation_change('a reservation is never deleted')"
    )
    op.execute(
        "CREATE TRIGGER quota_reservation_is_settled_once BEFORE UPDATE ON quota_reservation FOR EACH ROW"
        f" WHEN ({_refused('IS DISTINCT FROM')})"
        " EXECUTE FUNCTION refuse_reservation_change('a reservation is settled once and not changed otherwise')"
    )
    op.execute(
        "CREATE FUNCTION keep_reservation() RETURNS trigger LANGUAGE plpgsql AS $$"
        " BEGIN UPDATE quota_reservation SET state = 'kept' WHERE token = NEW.token AND state = 'reserved';"
        " RETURN NULL; END $$"
    )
    op.execute(
        "CREATE TRIGGER attempt_keeps_its_reservation AFTER UPDATE OF outcome ON attempt FOR EACH ROW"
        " WHEN (NEW.outcome = 'crashed' OR NEW.outcome = 'cancelled') EXECUTE FUNCTION keep_reservation()"
    )


def downgrade() -> None:
    raise NotImplementedError("the ledger only moves forward; restore a backup to go back")
