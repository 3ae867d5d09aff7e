"""The engine: bounded slots over the ledger, with one short transaction for each turn of the loop.

A turn commits every completion and failure that is ready, renews leases, and claims items for the free slots. Each
write in it is conditional by itself, and an item's slot is free again only once its completion is committed. Calls
run outside any transaction. The engine ends when nothing that it may claim is left; it never waits for a due time or
for somebody else's lease. Twice a second it looks which items in flight are still its own, and ends the calls of those
that were cancelled or taken over.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from rulegen_dagster.domain.errors import LedgerError
from rulegen_dagster.domain.retry import RetryDecision, decide_retry
from rulegen_dagster.domain.work import Claim, FailedAttempt, Landing, Offer
from rulegen_dagster.ledger.claims import Scope
from rulegen_dagster.ledger.store import Turn
from rulegen_dagster.workflow.runtime import Runtime

LEDGER_TRIES = 6
LEDGER_PAUSE_S = 0.1
GROUPS = 3
SMALLEST_GROUP = 8
LOOK_EVERY_S = 0.5
"""How often an engine looks whether the items in flight are still its own."""

Attempt = Callable[[Claim], Awaitable[Offer | FailedAttempt]]
Accept = Callable[[Turn, Offer], None]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one attempt, told once its transaction is committed.

    `decision` is set for a failed attempt: it tells whether the item waits or has failed. A stale landing means that
    somebody else owns the item by now.
    """

    result: Offer | FailedAttempt
    landing: Landing
    decision: RetryDecision | None = None

    @property
    def claim(self) -> Claim:
        """The claim that the attempt ran under."""
        return self.result.claim


def offer_directly(turn: Turn, offer: Offer) -> None:
    """Put an offer up for acceptance; what a process without an IO manager does."""
    turn.offer(offer)


def decide(runtime: Runtime, failed: FailedAttempt) -> RetryDecision:
    """Decide what becomes of a failed attempt's item, by the runtime's retry policy."""
    return decide_retry(
        failed.outcome,
        attempt=failed.claim.attempt,
        attempt_limit=failed.claim.attempt_limit,
        policy=runtime.settings.retry_policy,
        jitter=runtime.jitter(),
        retry_after_ms=failed.retry_after_ms,
    )


@dataclass(frozen=True, kw_only=True)
class _Committed:
    outcomes: tuple[Outcome, ...]
    claims: tuple[Claim, ...]
    lost: tuple[Claim, ...]


class Engine:
    """Runs attempts in bounded slots until the scope is drained; one instance for one drain.

    `accept` is called in the writer's thread inside the open transaction, once for each validated output; `observe`
    in the loop's thread, after the commit.
    """

    def __init__(
        self,
        runtime: Runtime,
        attempt: Attempt,
        *,
        slots: int,
        observe: Callable[[Outcome], None],
        accept: Accept = offer_directly,
    ) -> None:
        """Run at most `slots` attempts at once."""
        self._runtime = runtime
        self._attempt = attempt
        self._slots = slots
        # Calls that begin in one turn and take equally long end in one too, and each slot would wait for the commit of
        # all. A writer that was idle therefore takes a part of them; one that is behind takes whatever there is.
        self._group = max(SMALLEST_GROUP, slots // GROUPS)
        self._observe = observe
        self._accept = accept
        self._finished: list[Offer | FailedAttempt] = []
        self._in_flight: dict[str, Claim] = {}
        self._calls: dict[str, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()
        self._defect: Exception | None = None

    async def drain(self, scope: Scope) -> None:
        """Claim and run items of the scope until none can be claimed and none is in flight.

        Raises `LedgerError` where the ledger stays out of reach; what is in flight is then left to its leases. After a
        defect of ours nothing more is claimed, what is in flight is finished and committed, and the defect is raised.
        """
        renew_every = self._runtime.settings.lease_ms / 3000
        loop = asyncio.get_running_loop()
        next_renewal, next_look = loop.time() + renew_every, loop.time() + LOOK_EVERY_S
        may_claim, idle = True, False
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="ledger-writer") as writer:
            try:
                while True:
                    if self._in_flight and loop.time() >= next_look:
                        may_claim |= await self._drop_withdrawn(writer)
                        next_look = loop.time() + LOOK_EVERY_S
                    finished = self._take_finished(at_most=self._group if idle else self._slots)
                    idle = False
                    renewing = bool(self._in_flight) and loop.time() >= next_renewal
                    free = self._slots - len(self._in_flight)
                    wanted = free if (may_claim or finished) and self._defect is None else 0
                    if finished or renewing or wanted:
                        held = tuple(self._in_flight.values()) if renewing else ()
                        committed = await loop.run_in_executor(writer, self._commit, finished, held, scope, wanted)
                        if renewing:
                            next_renewal = loop.time() + renew_every
                        for claim in committed.lost:
                            self._forget(claim)
                        for claim in committed.claims:
                            self._start(claim)
                        for outcome in committed.outcomes:
                            self._observe(outcome)
                        # A lost item may be free by now; it is this engine's work as much as anybody's.
                        may_claim = bool(committed.lost) or (bool(wanted) and len(committed.claims) == wanted)
                        # Calls that end at once share the next transaction.
                        await asyncio.sleep(0)
                    elif self._in_flight:
                        await self._wait(min(next_renewal, next_look) - loop.time())
                        idle = True
                    elif self._defect is not None:
                        raise self._defect
                    else:
                        return
            finally:
                await self._abandon()

    def _start(self, claim: Claim) -> None:
        self._in_flight[claim.token] = claim
        self._calls[claim.token] = asyncio.create_task(self._run(claim))

    async def _run(self, claim: Claim) -> None:
        try:
            result = await self._attempt(claim)
            self._finished.append(result)
        except Exception as error:
            # Not a provider's failure (those are results) but a defect: its item is left to the lease.
            self._defect = error
            self._in_flight.pop(claim.token, None)
        finally:
            self._wake.set()

    async def _drop_withdrawn(self, writer: ThreadPoolExecutor) -> bool:
        """End the calls whose items were taken away: the job was cancelled, or another worker took over."""
        held = tuple(self._in_flight.values())
        look = self._runtime.ledger.cancellations.withdrawn
        try:
            withdrawn = await asyncio.get_running_loop().run_in_executor(writer, look, held)
        except LedgerError:
            # Whoever commits next deals with an outage.
            return False
        for claim in held:
            if claim.token in withdrawn:
                self._forget(claim)
        return bool(withdrawn)

    def _forget(self, claim: Claim) -> None:
        """Drop a call whose claim is gone: its item has ended, or has another owner, or soon will."""
        self._in_flight.pop(claim.token, None)
        call = self._calls.pop(claim.token, None)
        if call is not None:
            call.cancel()

    def _take_finished(self, *, at_most: int) -> tuple[Offer | FailedAttempt, ...]:
        finished, self._finished = tuple(self._finished[:at_most]), self._finished[at_most:]
        for result in finished:
            self._in_flight.pop(result.claim.token, None)
            self._calls.pop(result.claim.token, None)
        return finished

    async def _wait(self, timeout_s: float) -> None:
        self._wake.clear()
        if not self._finished:
            try:
                await asyncio.wait_for(self._wake.wait(), max(timeout_s, 0.001))
            except TimeoutError:
                return
        # Calls that end in the same instant share the next transaction.
        await asyncio.sleep(0)

    async def _abandon(self) -> None:
        calls = list(self._calls.values())
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    def _commit(
        self, finished: tuple[Offer | FailedAttempt, ...], held: tuple[Claim, ...], scope: Scope, wanted: int
    ) -> _Committed:
        failures = [(result, decide(self._runtime, result)) for result in finished if isinstance(result, FailedAttempt)]
        for tries_left in range(LEDGER_TRIES - 1, -1, -1):
            try:
                return self._turn(finished, failures, held, scope, wanted)
            except LedgerError as error:
                # The outputs are paid for: they are offered again, never generated again, while their leases hold.
                # What the database refuses by a constraint it would refuse again.
                if not tries_left or error.code != LedgerError.code:
                    raise
                time.sleep(LEDGER_PAUSE_S * 2 ** (LEDGER_TRIES - 1 - tries_left))
        raise AssertionError("the loop returns or raises")

    def _turn(
        self,
        finished: tuple[Offer | FailedAttempt, ...],
        failures: list[tuple[FailedAttempt, RetryDecision]],
        held: tuple[Claim, ...],
        scope: Scope,
        wanted: int,
    ) -> _Committed:
        with self._runtime.ledger.turn(self._runtime.claimant) as turn:
            for result in finished:
                if isinstance(result, Offer):
                    self._accept(turn, result)
            landings = turn.settle(failures)
            renewed = turn.renew(held)
            claims = turn.claim(scope, [self._runtime.tokens() for _ in range(wanted)])
        decisions = {failed.claim.token: decision for failed, decision in failures}
        return _Committed(
            outcomes=tuple(
                Outcome(
                    result=result,
                    landing=landings[result.claim.token],
                    decision=decisions.get(result.claim.token),
                )
                for result in finished
            ),
            claims=claims,
            lost=tuple(claim for claim in held if claim.token not in renewed),
        )
