from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from rulegen_dagster.domain.errors import SubmissionConflictError, TenantNotFoundError
from rulegen_dagster.domain.identity import JobName
from rulegen_dagster.domain.states import JobState, Stage
from rulegen_dagster.ledger.store import Ledger
from tests.ledger.conftest import submission


def test_the_same_key_and_input_is_the_same_job(ledger: Ledger) -> None:
    first = ledger.submissions.submit(submission(), actor="test")

    again = ledger.submissions.submit(submission(), actor="test")

    assert (first.existing, again.existing) == (False, True)
    assert first.job_id == again.job_id
    assert len(ledger.reads.jobs()) == 1


def test_the_same_key_with_another_input_is_a_conflict_and_changes_nothing(ledger: Ledger) -> None:
    first = ledger.submissions.submit(submission(), actor="test")

    with pytest.raises(SubmissionConflictError) as caught:
        ledger.submissions.submit(submission(content="another"), actor="test")

    assert caught.value.code == "submission_conflict"
    assert [job.job_id for job in ledger.reads.jobs()] == [first.job_id]


def test_nothing_but_key_and_input_decides_whether_a_submission_is_new(ledger: Ledger) -> None:
    first = ledger.submissions.submit(submission(), actor="test")
    other_behaviour = replace(submission(), behaviour=replace(submission().behaviour, model_id="other"))

    again = ledger.submissions.submit(other_behaviour, actor="test")

    assert again.existing
    assert ledger.reads.job_by_id(first.job_id).behaviour["model_id"] == "m"


def test_two_tenants_may_use_one_key(ledger: Ledger) -> None:
    ledger.submissions.add_tenant("acme")

    ours = ledger.submissions.submit(submission(), actor="test")
    theirs = ledger.submissions.submit(submission(tenant="acme", content="another"), actor="test")

    assert ours.job_id != theirs.job_id
    assert [str(job.name) for job in ledger.reads.jobs(tenant="acme")] == ["acme/policy"]


def test_an_unknown_tenant_is_refused_with_nothing_stored(ledger: Ledger) -> None:
    with pytest.raises(TenantNotFoundError):
        ledger.submissions.submit(submission(tenant="nobody"), actor="test")

    assert ledger.reads.jobs() == []


def test_clients_that_race_with_one_key_end_with_one_job(ledger: Ledger) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: ledger.submissions.submit(submission(), actor="test"), range(16)))

    assert len({answer.job_id for answer in answers}) == 1
    assert sum(not answer.existing for answer in answers) == 1


def test_a_changed_file_is_a_new_job_that_names_its_predecessor(ledger: Ledger) -> None:
    ledger.submissions.submit(submission("first"), actor="test")

    ledger.submissions.submit(submission("second", content="changed"), actor="test")

    assert ledger.reads.job(JobName.parse("second")).predecessor == JobName.parse("first")


def test_a_new_job_waits_for_its_parse_stage(ledger: Ledger) -> None:
    accepted = ledger.submissions.submit(submission(), actor="test")

    job = ledger.reads.job_by_id(accepted.job_id)

    assert job.state is JobState.EXTRACTING
    assert [stage.stage for stage in ledger.reads.open_stages()] == [Stage.PARSE]
