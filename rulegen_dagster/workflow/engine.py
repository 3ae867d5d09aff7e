"""The engine: bounded slots over the ledger, with one short transaction for each turn of the loop.

A turn commits every completion and failure that is ready, renews leases, and claims items for the free slots. Each
write in it is conditional by itself, and an item's slot is free again only once its completion is committed. Calls
run outside any transaction. The engine ends when nothing that it may claim is left; it never waits for a due time, a
quota or somebody else's lease, but while a call is in flight it claims again once a quota has room. Twice a second it
looks which items in flight are still its own, and ends the calls of those that were cancelled or taken over. What a
lost worker of this host held is looked for when the engine begins, and then once a second while a slot is free and
nothing can be claimed. Told to stop, it claims nothing more, lets calls finish for their share of the grace period, and
gives the rest back.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from rulegen_dagster.domain.errors import LedgerError
from rulegen_dagster.domain.retry import RetryDecision, decide_retry
from rulegen_dagster.domain.states import AttemptOutcome
from rulegen_dagster.domain.work import Claim, FailedAttempt, Landing, Offer
from rulegen_dagster.ledger.claims import Scope
from rulegen_dagster.ledger.store import Turn
from rulegen_dagster.workflow.deadlines import expire_instead, too_long_waits
from rulegen_dagster.workflow.outages import LEAST_PATIENCE_S, pause_s
from rulegen_dagster.workflow.recover import free_lost_work
from rulegen_dagster.workflow.runtime import Runtime
from rulegen_dagster.workflow.stopping import Stop, given_back

GROUPS = 3
SMALLEST_GROUP = 8
LOOK_EVERY_S = 0.5
"""How often an engine looks whether the items in flight are still its own."""
SEARCH_EVERY_S = 1.0
"""How often an engine with nothing to claim looks for what lost workers held."""
CANCEL_PATIENCE_S = 1.0
"""How long a call may take to end once it is cancelled."""

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
    """Decide what becomes of a failed attempt's item, by the runtime's retry policy.

    A refused draft gets one repair, where it may have one; a second refused draft ends the item.
    """
    return decide_retry(
        failed.outcome,
        attempt=failed.claim.attempt,
        attempt_limit=failed.claim.attempt_limit,
        policy=runtime.settings.retry_policy,
        jitter=runtime.jitter(),
        retry_after_ms=failed.retry_after_ms,
        account_refused=failed.account_refused,
        refused_for_good=failed.outcome is AttemptOutcome.INVALID_OUTPUT
        and (not failed.may_repair or bool(failed.claim.repair)),
    )


@dataclass(frozen=True, kw_only=True)
class _Committed:
    outcomes: tuple[Outcome, ...]
    claims: tuple[Claim, ...]
    lost: tuple[Claim, ...]
    quota_wait_ms: int | None = None


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
        stop: Stop | None = None,
    ) -> None:
        """Run at most `slots` attempts at once, until `stop` is requested, if it ever is."""
        self._runtime = runtime
        self._attempt = attempt
        self._slots = slots
        # Calls that begin in one turn and take equally long end in one too, and each slot would wait for the commit of
        # all. A writer that was idle therefore takes a part of them; one that is behind takes whatever there is.
        self._group = max(SMALLEST_GROUP, slots // GROUPS)
        self._observe = observe
        self._accept = accept
        self._stop = stop or Stop(grace_ms=0)
        self._finished: list[Offer | FailedAttempt] = []
        self._in_flight: dict[str, Claim] = {}
        self._calls: dict[str, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()
        self._defect: Exception | None = None
        # When the youngest lease in hand ends at the latest, on the loop's clock.
        self._leases_end = 0.0

    async def drain(self, scope: Scope) -> None:
        """Claim and run items of the scope until none can be claimed and none is in flight, or it was told to stop.

        Raises `LedgerError` where the ledger stays out of reach for longer than the leases in hand last; what is in
        flight is then left to them, and the message counts the outputs that could not be saved. After a
        defect of ours nothing more is claimed, what is in flight is finished and committed, and the defect is raised.
        """
        renew_every = self._runtime.settings.lease_ms / 3000
        loop = asyncio.get_running_loop()
        next_renewal, next_look = loop.time() + renew_every, loop.time() + LOOK_EVERY_S
        may_claim, idle = True, False
        quota_opens = math.inf
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="ledger-writer") as writer:
            try:
                await self._free_lost(writer)
                next_search = loop.time() + SEARCH_EVERY_S
                while True:
                    if self._in_flight and loop.time() >= next_look:
                        may_claim |= await self._drop_withdrawn(writer)
                        next_look = loop.time() + LOOK_EVERY_S
                    if not may_claim and len(self._in_flight) < self._slots and loop.time() >= next_search:
                        may_claim = await self._free_lost(writer)
                        next_search = loop.time() + SEARCH_EVERY_S
                    if loop.time() >= quota_opens:
                        may_claim, quota_opens = True, math.inf
                    if not self._stop.calls_left_s:
                        await self._give_back()
                    finished = self._take_finished(at_most=self._group if idle else self._slots)
                    idle = False
                    renewing = bool(self._in_flight) and loop.time() >= next_renewal
                    free = self._slots - len(self._in_flight)
                    is_ending = self._defect is not None or self._stop.is_requested
                    wanted = free if (may_claim or finished) and not is_ending else 0
                    if finished or renewing or wanted:
                        held = tuple(self._in_flight.values()) if renewing else ()
                        committed = await self._commit(writer, finished, held, scope, wanted)
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
                        if committed.quota_wait_ms is not None:
                            quota_opens = loop.time() + committed.quota_wait_ms / 1000
                        # Calls that end at once share the next transaction.
                        await asyncio.sleep(0)
                    elif self._in_flight:
                        wake = min(next_renewal, next_look, quota_opens if free else math.inf)
                        await self._wait(min(wake - loop.time(), self._stop.calls_left_s))
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

    async def _free_lost(self, writer: ThreadPoolExecutor) -> bool:
        """Free what lost workers held; return whether that made something claimable."""
        try:
            freed = await asyncio.get_running_loop().run_in_executor(writer, free_lost_work, self._runtime)
        except LedgerError:
            # Whoever commits next deals with an outage; the leases of the lost go on running out.
            return False
        return bool(freed.waiting)

    async def _give_back(self) -> None:
        """End the calls that have not finished in their time; what they held is committed like any other result."""
        answered = {result.claim.token for result in self._finished}
        late = {token: call for token, call in self._calls.items() if token in self._in_flight.keys() - answered}
        if not late:
            return
        for call in late.values():
            call.cancel()
        await asyncio.wait(late.values(), timeout=CANCEL_PATIENCE_S)
        # An answer that came in the last instant counts.
        answered = {result.claim.token for result in self._finished}
        self._finished += [given_back(claim) for token, claim in self._in_flight.items() if token not in answered]

    async def _drop_withdrawn(self, writer: ThreadPoolExecutor) -> bool:
        """End the calls whose items were taken away: the job was cancelled, or another worker took over."""
        held = tuple(self._in_flight.values())
        try:
            withdrawn = await asyncio.get_running_loop().run_in_executor(writer, self._look, held)
        except LedgerError:
            # Whoever commits next deals with an outage.
            return False
        for claim in held:
            if claim.token in withdrawn:
                self._forget(claim)
        return bool(withdrawn)

    def _look(self, held: tuple[Claim, ...]) -> frozenset[str]:
        # A quota that somebody sets for the first time holds from here on; a turn never asks.
        self._runtime.ledger.quotas.refresh()
        return self._runtime.ledger.cancellations.withdrawn(held)

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
                async with asyncio.timeout(max(timeout_s, 0.001)):
                    await self._wake.wait()
            except TimeoutError:
                return
        # Calls that end in the same instant share the next transaction.
        await asyncio.sleep(0)

    async def _abandon(self) -> None:
        calls = list(self._calls.values())
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    async def _commit(
        self,
        writer: ThreadPoolExecutor,
        finished: tuple[Offer | FailedAttempt, ...],
        held: tuple[Claim, ...],
        scope: Scope,
        wanted: int,
    ) -> _Committed:
        """Commit one turn; come back with it through an outage for as long as a lease in hand may hold.

        The outputs are paid for: they are offered again, never generated again. Each write is conditional, so a turn
        whose answer was lost is safe to repeat: what it accepted counts, what it claimed is left to its lease. What
        cannot pass (a constraint, a damaged file) is raised at once. Nothing but the turn itself blocks the writer.
        """
        failures = [(result, decide(self._runtime, result)) for result in finished if isinstance(result, FailedAttempt)]
        loop = asyncio.get_running_loop()
        began, tries = 0.0, 0
        while True:
            try:
                committed = await loop.run_in_executor(writer, self._turn, finished, failures, held, scope, wanted)
            except LedgerError as error:
                tries += 1
                began = began or loop.time()
                until = max(self._leases_end if finished or self._in_flight else 0.0, began + LEAST_PATIENCE_S)
                left = until - loop.time()
                if self._stop.is_requested:
                    left, wanted = min(left, self._stop.left_s), 0
                if left <= 0 or not error.is_transient:
                    raise self._given_up(error, len(finished), loop.time() - began) from error
                await asyncio.sleep(min(pause_s(tries), left))
                # The outage has used up much of the leases of whatever still runs.
                held = tuple(self._in_flight.values())
            else:
                if held or committed.claims:
                    self._leases_end = loop.time() + self._runtime.settings.lease_ms / 1000
                return committed

    def _given_up(self, error: LedgerError, finished: int, outage_s: float) -> LedgerError:
        """Return the error that also says what became of the finished drafts."""
        unsaved = finished + len(self._finished)
        if not unsaved:
            return error
        waited = f" in {outage_s:.0f} s" if error.is_transient else ""
        return LedgerError(
            f"{error.message}. {unsaved} finished outputs could not be saved{waited}; their calls are made again once"
            " the leases have passed",
            code=error.code,
        )

    def _turn(
        self,
        finished: tuple[Offer | FailedAttempt, ...],
        failures: list[tuple[FailedAttempt, RetryDecision]],
        held: tuple[Claim, ...],
        scope: Scope,
        wanted: int,
    ) -> _Committed:
        offers = [result for result in finished if isinstance(result, Offer)]
        if waits := too_long_waits(self._runtime, failures):
            # What is paid for comes first: the job's end would refuse it. Below it is offered again, and found there.
            with self._runtime.ledger.turn(self._runtime.claimant) as turn:
                for offer in offers:
                    self._accept(turn, offer)
                turn.settle()
            expire_instead(self._runtime, waits)
        with self._runtime.ledger.turn(self._runtime.claimant) as turn:
            for offer in offers:
                self._accept(turn, offer)
            landings = turn.settle(failures)
            renewed = turn.renew(held)
            claims = turn.claim(scope, [self._runtime.tokens() for _ in range(wanted)])
            quota_wait_ms = turn.quota_wait_ms
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
            quota_wait_ms=quota_wait_ms,
        )
