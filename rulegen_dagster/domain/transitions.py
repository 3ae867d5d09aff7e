"""Transitions: which state may follow which, as data. What is not listed here, the database refuses.

A row that keeps its state makes no transition: a lost lease that is taken over stays `running` under another token.
"""

from collections.abc import Mapping
from itertools import pairwise
from types import MappingProxyType

from rulegen_dagster.domain.states import (
    TERMINAL_JOB_STATES,
    ActionState,
    AttemptOutcome,
    JobState,
    Subject,
    WorkState,
)

NO_STATE = "none"
"""Stands for the time before a row exists; for an attempt, for the time before it has an outcome."""

ACTIVE_JOB_STATES = (
    JobState.RECEIVED,
    JobState.AUTHORIZED,
    JobState.EXTRACTING,
    JobState.RETRIEVING,
    JobState.GENERATING_RULES,
    JobState.GENERATING_TESTS,
    JobState.VALIDATING,
    JobState.AWAITING_CONFIRMATION,
    JobState.EXECUTING,
)
"""The states of a job on its way, in order."""

_BROKEN_OFF = TERMINAL_JOB_STATES - {JobState.COMPLETED}

_JOB: frozenset[tuple[str, str]] = frozenset(
    {
        (NO_STATE, JobState.RECEIVED),
        *pairwise((*ACTIVE_JOB_STATES, JobState.COMPLETED)),
        *((state, end) for state in (*ACTIVE_JOB_STATES, JobState.NEEDS_DECISION) for end in _BROKEN_OFF),
        *((state, JobState.NEEDS_DECISION) for state in ACTIVE_JOB_STATES),
        *((JobState.NEEDS_DECISION, state) for state in ACTIVE_JOB_STATES),
    }
)

_WORK_ITEM: frozenset[tuple[str, str]] = frozenset(
    {
        (NO_STATE, WorkState.PENDING),
        (WorkState.PENDING, WorkState.RUNNING),
        (WorkState.PENDING, WorkState.FAILED),
        (WorkState.PENDING, WorkState.CANCELLED),
        (WorkState.RUNNING, WorkState.SUCCEEDED),
        (WorkState.RUNNING, WorkState.WAITING),
        (WorkState.RUNNING, WorkState.FAILED),
        (WorkState.RUNNING, WorkState.CANCELLED),
        (WorkState.WAITING, WorkState.RUNNING),
        (WorkState.WAITING, WorkState.FAILED),
        (WorkState.WAITING, WorkState.CANCELLED),
        # Only by a redrive, with a reason.
        (WorkState.FAILED, WorkState.PENDING),
    }
)

# What a worker that was taken for lost, or was told to stop, may still report. Never acceptance.
_REPORTED_LATE = (
    AttemptOutcome.STALE,
    AttemptOutcome.INVALID_OUTPUT,
    AttemptOutcome.RETRYABLE,
    AttemptOutcome.RATE_LIMITED,
    AttemptOutcome.AMBIGUOUS,
    AttemptOutcome.PERMANENT,
)

_ATTEMPT: frozenset[tuple[str, str]] = frozenset(
    {
        *((NO_STATE, outcome) for outcome in AttemptOutcome),
        *((AttemptOutcome.CRASHED, outcome) for outcome in _REPORTED_LATE),
        *((AttemptOutcome.CANCELLED, outcome) for outcome in _REPORTED_LATE),
    }
)

_ACTION: frozenset[tuple[str, str]] = frozenset(
    {
        (NO_STATE, ActionState.PROPOSED),
        (ActionState.PROPOSED, ActionState.CONFIRMED),
        # Rejected, or its job ended before anybody began it.
        (ActionState.PROPOSED, ActionState.FAILED),
        (ActionState.CONFIRMED, ActionState.FAILED),
        (ActionState.CONFIRMED, ActionState.EXECUTING),
        (ActionState.EXECUTING, ActionState.DONE),
        (ActionState.EXECUTING, ActionState.UNKNOWN),
        (ActionState.EXECUTING, ActionState.FAILED),
        # Only by reconciliation, which looks for the effect first.
        (ActionState.UNKNOWN, ActionState.EXECUTING),
        (ActionState.UNKNOWN, ActionState.DONE),
    }
)

ALLOWED_TRANSITIONS: Mapping[Subject, frozenset[tuple[str, str]]] = MappingProxyType(
    {Subject.JOB: _JOB, Subject.WORK_ITEM: _WORK_ITEM, Subject.ATTEMPT: _ATTEMPT, Subject.ACTION: _ACTION}
)
"""Every allowed transition, as pairs of from and to, by what makes it."""
