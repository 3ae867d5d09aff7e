import pytest

from rulegen_dagster.domain.recovery import CONFIRMATION, ENDED, RECOVERY, Recovery, recovery_of
from rulegen_dagster.domain.states import TERMINAL_JOB_STATES, JobState, Stage


def test_every_stage_has_an_answer() -> None:
    assert set(RECOVERY) == set(Stage)


@pytest.mark.parametrize("recovery", [*RECOVERY.values(), *map(recovery_of, JobState)])
def test_an_answer_is_whole_sentences_to_a_question(recovery: Recovery) -> None:
    assert recovery.question.endswith("?")
    assert recovery.answer.endswith(".")
    assert "\n" not in recovery.answer


def test_a_job_that_has_ended_is_never_taken_up_again_whatever_the_stage() -> None:
    answers = {recovery_of(state, stage) for state in TERMINAL_JOB_STATES for stage in (None, *Stage)}

    assert answers == {ENDED}


def test_a_state_has_the_answer_of_its_stage() -> None:
    assert recovery_of(JobState.EXTRACTING) is RECOVERY[Stage.PARSE]
    assert recovery_of(JobState.GENERATING_TESTS) is RECOVERY[Stage.GENERATE_TESTS]
    assert recovery_of(JobState.AWAITING_CONFIRMATION) is CONFIRMATION
    assert recovery_of(JobState.EXECUTING) is RECOVERY[Stage.PUBLISH]
    assert recovery_of(JobState.GENERATING_RULES, Stage.GENERATE_TESTS) is RECOVERY[Stage.GENERATE_TESTS]
