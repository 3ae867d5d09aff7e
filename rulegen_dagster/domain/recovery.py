"""Recovery: for each step of a job, the question that a failure there raises, and what the system answers today."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from rulegen_dagster.domain.states import JOB_STATE_OF_STAGE, TERMINAL_JOB_STATES, JobState, Stage


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """A question of recovery with its answer: yes or no (None where it is neither), and how to go on."""

    question: str
    possible: bool | None
    answer: str


_GENERATION: Final = Recovery(
    question="Is the call safe to retry?",
    possible=True,
    answer=(
        "Within the item's attempts and the job's deadline, at a due time that the ledger keeps, always under the same"
        " operation key. One"
        " draft at most is accepted; a call whose outcome is unknown may be billed twice, and is counted. When the"
        " attempts are used up, 'rulegen redrive' gives new ones."
    ),
)

RECOVERY: Final[Mapping[Stage, Recovery]] = MappingProxyType(
    {
        Stage.PARSE: Recovery(
            question="Can the file be replaced?",
            possible=False,
            answer=(
                "A stored upload never changes. Submit the mended file under a new key: that is a new job, which names"
                " this one as its predecessor. The same file is parsed again without harm after a crash."
            ),
        ),
        Stage.RETRIEVE: Recovery(
            question="Is an answer without context allowed?",
            possible=False,
            answer=(
                "Only where the job was submitted with the context policy 'optional': then each clause whose look-up"
                " failed says so in the review. Else retrieval is tried again, and blocks the job once its attempts are"
                " used up. A clause that refers to nothing has an empty context, which is a result and not an outage."
            ),
        ),
        Stage.GENERATE_RULES: _GENERATION,
        Stage.GENERATE_TESTS: _GENERATION,
        Stage.VALIDATE: Recovery(
            question="Can a bounded repair preserve the same intent?",
            possible=False,
            answer=(
                "Accepted outputs are never edited. A draft that fails its own checks gets one repair, which is told"
                " codes and places alone, and none where it broke a permission or a rule of the domain; a ruleset that"
                " fails waits for a person, who waives a clause, rejects the job or submits another text."
            ),
        ),
        Stage.PUBLISH: Recovery(
            question="Can an unknown outcome be reconciled?",
            possible=True,
            answer=(
                "The bundle's place is named by its action set and taken by one rename. The next publisher looks there"
                " first, verifies every file against what was confirmed, and writes only where nothing is."
            ),
        ),
        Stage.NOTIFY: Recovery(
            question="Can it be retried without replaying the operation?",
            possible=True,
            answer=(
                "A notification is an action of its own, apart from publishing, and its failure never publishes again."
                " No action set of this release holds one."
            ),
        ),
    }
)
"""The recovery decision of each stage."""

CONFIRMATION: Final = Recovery(
    question="How long does the proposal stay valid?",
    possible=None,
    answer=(
        "Until the job ends, at its deadline at the latest ('rulegen extend' moves it), and for exactly this action"
        " set: outputs are frozen while a person decides, any other hash is refused, and nothing is held meanwhile."
    ),
)
"""The recovery decision while a person is awaited."""

DECISION: Final = Recovery(
    question="Can the job go on as another release would have it?",
    possible=None,
    answer=(
        "A job's behaviour never changes silently: its prompts, vocabulary and policy are kept with it, and a person"
        " decides about the rest. 'rulegen decide JOB retain' keeps it for a release that honours it, 'migrate' takes"
        " on this release's behaviour and validates anew ('rulegen behaviours diff JOB current' shows what that"
        " changes), 'stop' ends it."
    ),
)
"""The recovery decision while the running release cannot honour what the job froze."""

ENDED: Final = Recovery(
    question="Can the job be taken up again?",
    possible=False,
    answer=(
        "An ended job never changes. Where it ended without a result, 'rulegen fork' opens a successor under a new key"
        " that keeps every accepted output and pays for the rest alone; 'rulegen extend' does that for an expired one."
    ),
)
"""The recovery decision of a job that has ended."""

_STAGE_OF_STATE = {state: stage for stage, state in JOB_STATE_OF_STAGE.items()}


def recovery_of(state: JobState, stage: Stage | None = None) -> Recovery:
    """Return the recovery decision of a job's state, or of one of its stages while the job has not ended."""
    if state in TERMINAL_JOB_STATES:
        return ENDED
    if stage is not None:
        return RECOVERY[stage]
    match state:
        case JobState.AWAITING_CONFIRMATION:
            return CONFIRMATION
        case JobState.EXECUTING:
            return RECOVERY[Stage.PUBLISH]
        case JobState.NEEDS_DECISION:
            return DECISION
        case _:
            return RECOVERY[_STAGE_OF_STATE.get(state, Stage.PARSE)]
