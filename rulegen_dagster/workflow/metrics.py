"""Metrics: what the ledger counts, as Prometheus reads it; nothing is counted anywhere else.

Tenants are no label unless they are asked for: whoever may look at a dashboard need not know who the tenants are.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from importlib.metadata import version

from rulegen_dagster.domain.quota import UNIT, Bucket, refilled
from rulegen_dagster.domain.quota_scope import ScopeKind
from rulegen_dagster.domain.states import JOB_STATE_OF_STAGE, JobState
from rulegen_dagster.ledger.figures import AttemptsOf, Figures, Snapshot, Usage, Waits, is_unused
from rulegen_dagster.ledger.migrate import revision
from rulegen_dagster.providers.registry import is_language_model
from rulegen_dagster.telemetry.exposition import Metric, MetricKind, exposition
from rulegen_dagster.workflow.runtime import Runtime

Samples = dict[tuple[str, ...], int | float]
"""A value for each set of label values."""

_COUNTER, _GAUGE = MetricKind.COUNTER, MetricKind.GAUGE


class LedgerMetrics:
    """The metrics of one ledger; keep it for as long as it is scraped, so that ended jobs are counted once."""

    def __init__(self, runtime: Runtime, *, by_tenant: bool = False) -> None:
        """Count in the runtime's ledger; with `by_tenant`, tenants are a label."""
        self._runtime = runtime
        self._figures = Figures(runtime.ledger.database)
        self._by_tenant = by_tenant

    def metrics(self) -> list[Metric]:
        """Count now. Raises `LedgerError`."""
        seen = self._figures.look()
        return [*self._work(seen), *self._calls(seen), *_waits(seen), *self._quotas(seen), self._about()]

    def text(self) -> str:
        """Return what a scrape gets. Raises `LedgerError`."""
        return exposition(self.metrics())

    def _labels(self, *labels: str) -> tuple[str, ...]:
        return ("tenant", *labels) if self._by_tenant else labels

    def _values(self, tenant: str, *values: str) -> tuple[str, ...]:
        return (tenant, *values) if self._by_tenant else values

    def _work(self, seen: Snapshot) -> Iterable[Metric]:
        jobs: Samples = {} if self._by_tenant else {(state.value,): 0 for state in JobState}
        for (tenant, state), count in seen.jobs.items():
            _add(jobs, self._values(tenant, state), count)
        items: Samples = {}
        for key, count in seen.items.items():
            _add(items, self._values(key.tenant, key.stage, key.state), count)
        attempts: Samples = {}
        for attempted, usage in seen.attempts.items():
            labels = (attempted.stage, attempted.outcome, attempted.provider, attempted.model)
            _add(attempts, self._values(attempted.tenant, *labels), usage.attempts)
        return (
            _gauge("rulegen_jobs", "Jobs by state.", self._labels("state"), jobs),
            _gauge("rulegen_work_items", "Work items by stage and state.", self._labels("stage", "state"), items),
            _gauge(
                "rulegen_attempts",
                "Attempts that have ended; a late report moves one from one outcome to another.",
                self._labels("stage", "outcome", "provider", "model"),
                attempts,
            ),
            _gauge(
                "rulegen_actions",
                "Actions by kind and state.",
                ("kind", "state"),
                {(*key,): count for key, count in seen.actions.items()},
            ),
        )

    def _calls(self, seen: Snapshot) -> Iterable[Metric]:
        def summed(number: Callable[[Usage], int], wanted: Callable[[AttemptsOf], bool] = lambda _: True) -> Samples:
            samples: Samples = {}
            for key, usage in seen.attempts.items():
                if key.is_call and wanted(key):
                    _add(samples, self._values(key.tenant, key.provider, key.model), number(usage))
            return samples

        labels = self._labels("provider", "model")
        tokens: Samples = {}
        for direction, numbers in (
            ("input", summed(lambda usage: usage.tokens_in)),
            ("output", summed(lambda usage: usage.tokens_out)),
        ):
            tokens |= {(*values, direction): number for values, number in numbers.items()}
        return (
            _counter("rulegen_provider_calls_total", "Calls of providers.", labels, summed(lambda u: u.attempts)),
            _counter(
                "rulegen_provider_tokens_total",
                "Tokens, as far as providers told.",
                (*labels, "direction"),
                tokens,
            ),
            _counter(
                "rulegen_provider_cost_micros_total",
                "Cost in millionths of the price's currency, as far as it is known.",
                labels,
                summed(lambda usage: usage.cost_micros),
            ),
            _counter(
                "rulegen_provider_unpriced_calls_total",
                "Calls whose cost nobody knows.",
                labels,
                summed(lambda usage: usage.unpriced, lambda key: is_language_model(key.provider)),
            ),
            _gauge(
                "rulegen_provider_unused_calls",
                "Calls that are paid for, or may be, and whose output was not used.",
                labels,
                summed(lambda usage: usage.attempts, is_unused),
            ),
            _gauge(
                "rulegen_late_results",
                "Results that came after their claim had gone, and were not applied.",
                labels,
                summed(lambda usage: usage.attempts, lambda key: key.outcome == "stale"),
            ),
        )

    def _quotas(self, seen: Snapshot) -> Iterable[Metric]:
        kinds = (ScopeKind.PROVIDER, ScopeKind.TENANT) if self._by_tenant else (ScopeKind.PROVIDER,)
        shown = {
            scope: refilled(bucket, seen.now)
            for scope, bucket in seen.quotas.items()
            if scope.startswith(tuple(f"{kind}:" for kind in kinds))
        }

        def told(name: str, text: str, number: Callable[[Bucket], int | float | None]) -> Metric:
            found = {(scope,): number(bucket) for scope, bucket in shown.items()}
            return _gauge(name, text, ("scope",), {key: value for key, value in found.items() if value is not None})

        return (
            told(
                "rulegen_quota_requests_left",
                "Requests that a scope has left now; below zero it makes up for what was used too much.",
                lambda bucket: _level(bucket.request_level, bucket.limits.requests_per_minute),
            ),
            told(
                "rulegen_quota_tokens_left",
                "Tokens that a scope has left now; below zero it makes up for what was used too much.",
                lambda bucket: _level(bucket.token_level, bucket.limits.tokens_per_minute),
            ),
            told(
                "rulegen_quota_requests_per_minute",
                "The limit of requests of a scope.",
                lambda bucket: bucket.limits.requests_per_minute,
            ),
            told(
                "rulegen_quota_tokens_per_minute",
                "The limit of tokens of a scope.",
                lambda bucket: bucket.limits.tokens_per_minute,
            ),
            told(
                "rulegen_quota_budget_left_micros",
                "What is left of a scope's money, in millionths.",
                lambda bucket: (
                    None if bucket.limits.budget_micros is None else bucket.limits.budget_micros - bucket.charged_micros
                ),
            ),
            told(
                "rulegen_quota_blocked_seconds",
                "How long a scope is still blocked, because its provider asked for it.",
                lambda bucket: max(0, (bucket.blocked_until or 0) - seen.now) / 1000,
            ),
            told(
                "rulegen_quota_account_refused",
                "1 where the provider refuses the account.",
                lambda bucket: int(bucket.breaker is not None),
            ),
        )

    def _about(self) -> Metric:
        ledger = self._runtime.ledger.database
        values = (version("rulegen-dagster"), str(revision(ledger)), ledger.dialect)
        text = "The release that counts, and the ledger that it counts in."
        return _gauge("rulegen_ledger_info", text, ("release", "revision", "database"), {values: 1})


def _waits(seen: Snapshot) -> Iterable[Metric]:
    by_stage: dict[str, Samples] = defaultdict(dict)
    for stage in JOB_STATE_OF_STAGE:
        waits = seen.waits.get(stage, Waits())
        key = (stage.value,)
        by_stage["due"][key] = waits.due
        by_stage["oldest"][key] = _seconds_since(waits.due_since, seen.now)
        by_stage["later"][key] = waits.later
        by_stage["leases"][key] = waits.leases
        by_stage["passed"][key] = waits.leases_passed
    confirmation = _seconds_since(seen.confirmation_since, seen.now)
    return (
        _gauge("rulegen_items_due", "Items that can be claimed now.", ("stage",), by_stage["due"]),
        _gauge(
            "rulegen_items_oldest_due_seconds",
            "How long the oldest of them has waited to be claimed.",
            ("stage",),
            by_stage["oldest"],
        ),
        _gauge("rulegen_items_due_later", "Items that wait for their retry.", ("stage",), by_stage["later"]),
        _gauge("rulegen_items_leased", "Items that a worker holds.", ("stage",), by_stage["leases"]),
        _gauge(
            "rulegen_items_lease_passed",
            "Items whose worker has let its lease pass: it is lost, or stands still.",
            ("stage",),
            by_stage["passed"],
        ),
        _gauge(
            "rulegen_confirmation_oldest_seconds",
            "How long the oldest job that waits for a person has done so.",
            (),
            {(): confirmation},
        ),
        _gauge("rulegen_outbox_unmirrored", "Accepted outputs without an event in Dagster.", (), {(): seen.unmirrored}),
        _gauge(
            "rulegen_outbox_oldest_seconds",
            "How long the oldest of them has been accepted.",
            (),
            {(): _seconds_since(seen.unmirrored_since, seen.now)},
        ),
    )


def _counter(name: str, text: str, labels: tuple[str, ...], samples: Samples) -> Metric:
    return Metric(name=name, kind=_COUNTER, help=text, labels=labels, samples=samples)


def _gauge(name: str, text: str, labels: tuple[str, ...], samples: Samples) -> Metric:
    return Metric(name=name, kind=_GAUGE, help=text, labels=labels, samples=samples)


def _add(samples: Samples, values: tuple[str, ...], number: int) -> None:
    samples[values] = samples.get(values, 0) + number


def _seconds_since(since: int | None, now: int) -> float:
    return 0.0 if since is None else max(0, now - since) / 1000


def _level(level: int, limit: int | None) -> float | None:
    return None if limit is None else level / UNIT
