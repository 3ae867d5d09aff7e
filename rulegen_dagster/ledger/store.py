"""The ledger as one object: submissions, turns of work, actions and reads over one database."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sqlalchemy.engine import Connection

from rulegen_dagster.domain import failpoints
from rulegen_dagster.domain.deadline import DEFAULT_DEADLINES, DeadlinePolicy
from rulegen_dagster.domain.failpoints import Commit
from rulegen_dagster.domain.limits import NO_LIMITS, Limits
from rulegen_dagster.domain.retry import RetryDecision, RetryPolicy
from rulegen_dagster.domain.states import AttemptOutcome, Stage
from rulegen_dagster.domain.work import Claim, FailedAttempt, Landing, Offer
from rulegen_dagster.ledger.actions import Actions
from rulegen_dagster.ledger.behaviours import Behaviours
from rulegen_dagster.ledger.cancellations import Cancellations
from rulegen_dagster.ledger.claims import Claimant, Claims, Scope, can_be_claimed
from rulegen_dagster.ledger.compiled import sent_together
from rulegen_dagster.ledger.completions import Completions
from rulegen_dagster.ledger.database import Clock, Database, open_database
from rulegen_dagster.ledger.deadlines import Deadlines
from rulegen_dagster.ledger.decisions import Decisions
from rulegen_dagster.ledger.forks import Forks
from rulegen_dagster.ledger.limits import ClaimLimits
from rulegen_dagster.ledger.migrate import ensure_current
from rulegen_dagster.ledger.outbox import Outbox
from rulegen_dagster.ledger.quotas import Quotas
from rulegen_dagster.ledger.reads import Reads
from rulegen_dagster.ledger.recoveries import Recoveries
from rulegen_dagster.ledger.redrives import Redrives
from rulegen_dagster.ledger.reports import write_reports
from rulegen_dagster.ledger.reservations import QuotaTurn, Reservations
from rulegen_dagster.ledger.stages import Stages
from rulegen_dagster.ledger.submissions import Submissions
from rulegen_dagster.ledger.tenants import Tenants
from rulegen_dagster.ledger.waivers import Waivers

_COMMIT_OF_STAGE = {
    Stage.PARSE: failpoints.DOCUMENT,
    Stage.RETRIEVE: failpoints.DOCUMENT,
    Stage.VALIDATE: failpoints.VALIDATION,
}


class Turn:
    """One short transaction of a worker: completions, failures, renewals and claims that commit together.

    Each write is conditional by itself, so one stale claim among thirty changes nothing for the others. What the
    methods return is true only once the `with` block of `Ledger.turn` has ended without an error.
    """

    def __init__(
        self,
        connection: Connection,
        claimant: Claimant,
        *,
        claims: Claims,
        completions: Completions,
        stages: Stages,
        quotas: QuotaTurn,
        commits: set[Commit],
    ) -> None:
        """Made by `Ledger.turn`; `commits` is told what the turn commits."""
        self._connection = connection
        self._claimant = claimant
        self._claims = claims
        self._completions = completions
        self._stages = stages
        self._quotas = quotas
        self._commits = commits
        self._offers: list[Offer] = []

    def offer(self, offer: Offer) -> None:
        """Put a validated output up for acceptance; `settle` decides."""
        self._offers.append(offer)

    def settle(self, failures: Sequence[tuple[FailedAttempt, RetryDecision]] = ()) -> dict[str, Landing]:
        """Decide every offer and failure of this turn by the guard; return each token's landing.

        Whatever an accepted output opens (the next stage, the action set) is created here too.
        """
        offers, self._offers = self._offers, []
        touched = [*(offer.claim for offer in offers), *(failed.claim for failed, _ in failures)]
        if not touched:
            return {}
        worker = self._claimant.worker
        touched_stages = {(offer.claim.key.job_id, offer.claim.key.stage.value) for offer in offers}
        with sent_together(self._connection):
            self._stages.lock(self._connection, (claim.key.job_id for claim in touched))
            completing = self._completions.complete(
                self._connection, offers, worker=worker, run_id=self._claimant.run_id
            )
            failing = self._completions.fail(self._connection, failures, worker=worker)
            looking = self._stages.still_open(self._connection, touched_stages)
        completed, failed_now, still_open = completing(), failing(), looking()
        write_reports(self._connection, offers, failures)
        self._quotas.settle(offers, failures)
        landed = completed.landed | completed.landed_before | failed_now
        accepted = [offer for offer in offers if offer.claim.token in completed.landed]
        self._commits.update(_COMMIT_OF_STAGE.get(offer.claim.key.stage, failpoints.COMPLETION) for offer in accepted)
        self._commits.update(
            failpoints.GIVE_BACK if failed.outcome is AttemptOutcome.CANCELLED else failpoints.FAILURE
            for failed, _ in failures
        )
        if self._stages.landed(self._connection, accepted, still_open=still_open, worker=worker):
            self._commits.add(failpoints.BARRIER)
        return {claim.token: Landing.ACCEPTED if claim.token in landed else Landing.STALE for claim in touched}

    def renew(self, claims: Sequence[Claim]) -> frozenset[str]:
        """Extend the leases that still hold; a token that is missing from the result is lost."""
        if claims:
            self._commits.add(failpoints.RENEWAL)
        return self._claims.renew(self._connection, claims, lease_ms=self._claimant.lease_ms)

    def claim(self, scope: Scope, tokens: Sequence[str]) -> tuple[Claim, ...]:
        """Claim at most one item for each fresh token; only quotas write after it (see `ClaimLimits`)."""
        if not tokens:
            return ()
        taken = self._claims.take(self._connection, scope, tokens=tokens, claimant=self._claimant, quotas=self._quotas)
        self._commits.update(failpoints.RECLAIM if claim.attempt > 1 else failpoints.CLAIM for claim in taken)
        return taken

    @property
    def quota_wait_ms(self) -> int | None:
        """After how long a quota may grant what it refused to a claim of this turn; None where time alone does not."""
        return self._quotas.wait_ms


class Ledger:
    """The durable truth about jobs and their work; safe to share between threads of one process.

    Every method raises `LedgerError` where the database cannot be used.
    """

    def __init__(
        self,
        database: Database,
        policy: RetryPolicy,
        deadlines: DeadlinePolicy = DEFAULT_DEADLINES,
        limits: Limits = NO_LIMITS,
    ) -> None:
        """Work on an open, migrated database."""
        self.database = database
        self.policy = policy
        self.limits = ClaimLimits(database, limits, can_be_claimed(database.now))
        self._claims = Claims(database, deadlines, self.limits)
        self._completions = Completions(database)
        self._stages = Stages(database, attempt_limit=policy.max_attempts)
        self.submissions = Submissions(database, self._stages)
        self.tenants = Tenants(database, self.limits)
        self.actions = Actions(database, self.limits)
        self.cancellations = Cancellations(database)
        self.deadlines = Deadlines(database, deadlines)
        self.forks = Forks(database, self._stages, attempt_limit=policy.max_attempts)
        self.recoveries = Recoveries(database)
        self.redrives = Redrives(database, attempt_limit=policy.max_attempts)
        self.reads = Reads(database, deadlines)
        self.outbox = Outbox(database)
        self._reservations = Reservations(database)
        self.quotas = Quotas(database, self._reservations)
        self.waivers = Waivers(database, self._stages)
        self.behaviours = Behaviours(database)
        self.decisions = Decisions(database, self._stages)

    @contextmanager
    def turn(self, claimant: Claimant) -> Iterator[Turn]:
        """Open a turn; it commits when the block ends, and nothing of it happened if an error leaves the block."""
        commits: set[Commit] = set()
        with self.database.write(commits) as connection:
            quotas = QuotaTurn(connection, self._reservations)
            yield Turn(
                connection,
                claimant,
                claims=self._claims,
                completions=self._completions,
                stages=self._stages,
                quotas=quotas,
                commits=commits,
            )
            quotas.finish()

    def close(self) -> None:
        """Close every connection."""
        self.database.close()


def open_ledger(
    url: str,
    policy: RetryPolicy,
    clock: Clock | None = None,
    deadlines: DeadlinePolicy = DEFAULT_DEADLINES,
    limits: Limits = NO_LIMITS,
) -> Ledger:
    """Open the ledger behind a URL and make its schema where there is none.

    Raises `InputError` for a URL of another database, `LedgerError` where it cannot be used or needs a migration.
    """
    database = open_database(url, clock)
    ensure_current(database)
    return Ledger(database, policy, deadlines, limits)
