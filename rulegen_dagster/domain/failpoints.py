"""Failpoints: named places where a process can be made to die or to stand still, for `rulegen chaos` and for drills.

`reach(point)` does nothing unless this process was armed, by `RULEGEN_FAILPOINT` when it started or by `arm`. The
variable reads `NAME`, `NAME:N` (the Nth time that the point is reached) or `NAME:N:stop` (stand still until SIGCONT,
like a machine that was suspended, instead of dying like one that lost its power).
"""

import itertools
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import NamedTuple

from rulegen_dagster.domain.errors import InputError

VARIABLE = "RULEGEN_FAILPOINT"


class Failpoint(StrEnum):
    """Every place that can be armed. The pairs around a commit belong to a `Commit`."""

    INTAKE_BLOB_STORED = "intake.blob_stored"
    INTAKE_BEFORE_COMMIT = "intake.before_commit"
    INTAKE_AFTER_COMMIT = "intake.after_commit"
    CLAIM_BEFORE_COMMIT = "claim.before_commit"
    CLAIM_AFTER_COMMIT = "claim.after_commit"
    RECLAIM_BEFORE_COMMIT = "reclaim.before_commit"
    RECLAIM_AFTER_COMMIT = "reclaim.after_commit"
    RENEWAL_BEFORE_COMMIT = "renewal.before_commit"
    RENEWAL_AFTER_COMMIT = "renewal.after_commit"
    COMPLETION_BEFORE_COMMIT = "completion.before_commit"
    COMPLETION_AFTER_COMMIT = "completion.after_commit"
    FAILURE_BEFORE_COMMIT = "failure.before_commit"
    FAILURE_AFTER_COMMIT = "failure.after_commit"
    GIVE_BACK_BEFORE_COMMIT = "give_back.before_commit"
    GIVE_BACK_AFTER_COMMIT = "give_back.after_commit"
    BARRIER_BEFORE_COMMIT = "barrier.before_commit"
    BARRIER_AFTER_COMMIT = "barrier.after_commit"
    DOCUMENT_MADE = "document.made"
    DOCUMENT_BEFORE_COMMIT = "document.before_commit"
    DOCUMENT_AFTER_COMMIT = "document.after_commit"
    VALIDATION_BEFORE_COMMIT = "validation.before_commit"
    VALIDATION_AFTER_COMMIT = "validation.after_commit"
    PROVIDER_BEFORE_CALL = "provider.before_call"
    PROVIDER_AFTER_ANSWER = "provider.after_answer"
    CONFIRMATION_BEFORE_COMMIT = "confirmation.before_commit"
    CONFIRMATION_AFTER_COMMIT = "confirmation.after_commit"
    REJECTION_BEFORE_COMMIT = "rejection.before_commit"
    REJECTION_AFTER_COMMIT = "rejection.after_commit"
    CANCELLATION_BEFORE_COMMIT = "cancellation.before_commit"
    CANCELLATION_AFTER_COMMIT = "cancellation.after_commit"
    REDRIVE_BEFORE_COMMIT = "redrive.before_commit"
    REDRIVE_AFTER_COMMIT = "redrive.after_commit"
    ACTION_CLAIM_BEFORE_COMMIT = "action_claim.before_commit"
    ACTION_CLAIM_AFTER_COMMIT = "action_claim.after_commit"
    ACTION_RELEASE_BEFORE_COMMIT = "action_release.before_commit"
    ACTION_RELEASE_AFTER_COMMIT = "action_release.after_commit"
    BUNDLE_FILE_WRITTEN = "bundle.file_written"
    BUNDLE_WRITTEN = "bundle.written"
    BUNDLE_RENAMED = "bundle.renamed"
    RECEIPT_BEFORE_COMMIT = "receipt.before_commit"
    RECEIPT_AFTER_COMMIT = "receipt.after_commit"
    EVENT_WRITTEN = "event.written"
    MIRROR_HOLD_BEFORE_COMMIT = "mirror_hold.before_commit"
    MIRROR_HOLD_AFTER_COMMIT = "mirror_hold.after_commit"
    MIRROR_BEFORE_COMMIT = "mirror.before_commit"
    MIRROR_AFTER_COMMIT = "mirror.after_commit"
    EXTENSION_BEFORE_COMMIT = "extension.before_commit"
    EXTENSION_AFTER_COMMIT = "extension.after_commit"
    EXPIRY_BEFORE_COMMIT = "expiry.before_commit"
    EXPIRY_AFTER_COMMIT = "expiry.after_commit"
    FORK_BEFORE_COMMIT = "fork.before_commit"
    FORK_AFTER_COMMIT = "fork.after_commit"
    WAIVER_BEFORE_COMMIT = "waiver.before_commit"
    WAIVER_AFTER_COMMIT = "waiver.after_commit"
    DECISION_NEEDED_BEFORE_COMMIT = "decision_needed.before_commit"
    DECISION_NEEDED_AFTER_COMMIT = "decision_needed.after_commit"
    DECISION_BEFORE_COMMIT = "decision.before_commit"
    DECISION_AFTER_COMMIT = "decision.after_commit"
    RESUMPTION_BEFORE_COMMIT = "resumption.before_commit"
    RESUMPTION_AFTER_COMMIT = "resumption.after_commit"


class Commit(NamedTuple):
    """The two sides of one kind of commit."""

    before: Failpoint
    after: Failpoint


INTAKE = Commit(Failpoint.INTAKE_BEFORE_COMMIT, Failpoint.INTAKE_AFTER_COMMIT)
CLAIM = Commit(Failpoint.CLAIM_BEFORE_COMMIT, Failpoint.CLAIM_AFTER_COMMIT)
RECLAIM = Commit(Failpoint.RECLAIM_BEFORE_COMMIT, Failpoint.RECLAIM_AFTER_COMMIT)
RENEWAL = Commit(Failpoint.RENEWAL_BEFORE_COMMIT, Failpoint.RENEWAL_AFTER_COMMIT)
COMPLETION = Commit(Failpoint.COMPLETION_BEFORE_COMMIT, Failpoint.COMPLETION_AFTER_COMMIT)
FAILURE = Commit(Failpoint.FAILURE_BEFORE_COMMIT, Failpoint.FAILURE_AFTER_COMMIT)
GIVE_BACK = Commit(Failpoint.GIVE_BACK_BEFORE_COMMIT, Failpoint.GIVE_BACK_AFTER_COMMIT)
BARRIER = Commit(Failpoint.BARRIER_BEFORE_COMMIT, Failpoint.BARRIER_AFTER_COMMIT)
DOCUMENT = Commit(Failpoint.DOCUMENT_BEFORE_COMMIT, Failpoint.DOCUMENT_AFTER_COMMIT)
VALIDATION = Commit(Failpoint.VALIDATION_BEFORE_COMMIT, Failpoint.VALIDATION_AFTER_COMMIT)
CONFIRMATION = Commit(Failpoint.CONFIRMATION_BEFORE_COMMIT, Failpoint.CONFIRMATION_AFTER_COMMIT)
REJECTION = Commit(Failpoint.REJECTION_BEFORE_COMMIT, Failpoint.REJECTION_AFTER_COMMIT)
CANCELLATION = Commit(Failpoint.CANCELLATION_BEFORE_COMMIT, Failpoint.CANCELLATION_AFTER_COMMIT)
REDRIVE = Commit(Failpoint.REDRIVE_BEFORE_COMMIT, Failpoint.REDRIVE_AFTER_COMMIT)
ACTION_CLAIM = Commit(Failpoint.ACTION_CLAIM_BEFORE_COMMIT, Failpoint.ACTION_CLAIM_AFTER_COMMIT)
ACTION_RELEASE = Commit(Failpoint.ACTION_RELEASE_BEFORE_COMMIT, Failpoint.ACTION_RELEASE_AFTER_COMMIT)
RECEIPT = Commit(Failpoint.RECEIPT_BEFORE_COMMIT, Failpoint.RECEIPT_AFTER_COMMIT)
MIRROR_HOLD = Commit(Failpoint.MIRROR_HOLD_BEFORE_COMMIT, Failpoint.MIRROR_HOLD_AFTER_COMMIT)
MIRROR = Commit(Failpoint.MIRROR_BEFORE_COMMIT, Failpoint.MIRROR_AFTER_COMMIT)
EXTENSION = Commit(Failpoint.EXTENSION_BEFORE_COMMIT, Failpoint.EXTENSION_AFTER_COMMIT)
EXPIRY = Commit(Failpoint.EXPIRY_BEFORE_COMMIT, Failpoint.EXPIRY_AFTER_COMMIT)
FORK = Commit(Failpoint.FORK_BEFORE_COMMIT, Failpoint.FORK_AFTER_COMMIT)
WAIVER = Commit(Failpoint.WAIVER_BEFORE_COMMIT, Failpoint.WAIVER_AFTER_COMMIT)
DECISION_NEEDED = Commit(Failpoint.DECISION_NEEDED_BEFORE_COMMIT, Failpoint.DECISION_NEEDED_AFTER_COMMIT)
DECISION = Commit(Failpoint.DECISION_BEFORE_COMMIT, Failpoint.DECISION_AFTER_COMMIT)
RESUMPTION = Commit(Failpoint.RESUMPTION_BEFORE_COMMIT, Failpoint.RESUMPTION_AFTER_COMMIT)


class Effect(StrEnum):
    """What an armed point does to its process."""

    KILL = "kill"
    STOP = "stop"


_SIGNAL_OF = {Effect.KILL: signal.SIGKILL, Effect.STOP: signal.SIGSTOP}


class _Switch:
    """What reaching a point does in this process; None almost always."""

    hook: Callable[[Failpoint], None] | None = None
    refused: InputError | None = None
    """Why this process could not be armed by its environment."""


def reach(point: Failpoint) -> None:
    """Do what the process was armed to do at this point: nothing at all, unless it was armed."""
    if _Switch.hook is not None:
        _Switch.hook(point)


def reach_before(commits: Iterable[Commit]) -> None:
    """Reach the near side of every commit that a transaction is about to make."""
    if _Switch.hook is not None:
        for commit in commits:
            reach(commit.before)


def reach_after(commits: Iterable[Commit]) -> None:
    """Reach the far side of every commit that a transaction has made."""
    if _Switch.hook is not None:
        for commit in commits:
            reach(commit.after)


def arm(point: Failpoint, nth: int = 1, effect: Effect = Effect.KILL) -> None:
    """Make this process die, or stand still, when it reaches a point for the `nth` time."""
    reached = itertools.count(1)

    def hook(there: Failpoint) -> None:
        # One step of the counter is atomic, so points in several threads need no lock.
        if there is point and next(reached) == nth:
            os.kill(os.getpid(), _SIGNAL_OF[effect])

    _Switch.hook = hook


def record() -> Counter[Failpoint]:
    """Count, from now on, how often each point is reached in this process."""
    counts: Counter[Failpoint] = Counter()

    def hook(there: Failpoint) -> None:
        counts[there] += 1

    _Switch.hook = hook
    return counts


def disarm() -> None:
    """Make every point inert again."""
    _Switch.hook = _Switch.refused = None


def arm_by_text(text: str) -> None:
    """Arm as `RULEGEN_FAILPOINT` says. Raises `InputError` where it cannot be read."""
    name, _, rest = text.partition(":")
    nth, _, effect = rest.partition(":")
    try:
        arm(Failpoint(name), int(nth or "1"), Effect(effect or Effect.KILL))
    except ValueError:
        raise InputError(
            f"{VARIABLE} cannot be read; give NAME, NAME:N or NAME:N:stop", code="invalid_failpoint"
        ) from None


def check() -> None:
    """Raise the `InputError` of a `RULEGEN_FAILPOINT` that could not be read when this process started."""
    if _Switch.refused is not None:
        raise _Switch.refused


def _arm_by_environment() -> None:
    # An import has nobody to tell: a command asks by `check`, and any other process is told at its first point.
    if text := os.environ.get(VARIABLE):
        try:
            arm_by_text(text)
        except InputError as error:
            _Switch.refused = error
            _Switch.hook = lambda _: check()


_arm_by_environment()
