import os
from dataclasses import replace
from pathlib import Path

import pytest

from rulegen_dagster.domain.errors import (
    IdentityError,
    InputError,
    RulegenError,
    SpecError,
    SubmissionConflictError,
    TenantNotFoundError,
)
from rulegen_dagster.domain.identity import JobName
from rulegen_dagster.domain.states import JobState
from rulegen_dagster.settings import Settings
from rulegen_dagster.workflow.intake import read_upload, submit_file, submit_upload
from rulegen_dagster.workflow.runtime import Runtime
from tests.conftest import LENIENT
from tests.workflow.conftest import policy, scripted, stored_blobs, stored_submissions, submit

BAD_FILES = {
    "empty": ("a.md", b"", "empty_file"),
    "blank": ("a.md", b" \n\t\r\n", "empty_file"),
    "only a byte order mark": ("a.md", b"\xef\xbb\xbf", "empty_file"),
    "only headings": ("a.md", b"# One\n\n## Two\n", "no_clauses"),
    "a picture": ("a.md", b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "not_text"),
    "a PDF": ("a.md", b"%PDF-1.7\n%stuff\n", "type_mismatch"),
    "a NUL": ("a.md", b"Meals are limited to $50 per day.\x00", "not_text"),
    "mostly controls": ("a.txt", b"Meals \x01\x02\x03\x04", "not_text"),
    "Latin-1": ("a.md", "Die Vergütung beträgt 14 Euro.".encode("latin-1"), "wrong_encoding"),
    "UTF-16": ("a.md", "Meals are limited to $50 per day.".encode("utf-16"), "wrong_encoding"),
    "unknown ending": ("a.rtf", policy(1), "unknown_format"),
    "a text called a document": ("a.docx", policy(1), "type_mismatch"),
    "no ending": ("policy", policy(1), "unknown_format"),
    "a name with a newline": ("a\nb.md", policy(1), "invalid_file_name"),
    "a name that is not UTF-8": ("a\udcff.md", policy(1), "invalid_file_name"),
}


def _assert_nothing_is_stored(runtime: Runtime) -> None:
    assert runtime.ledger.reads.jobs() == []
    assert stored_submissions(runtime) == 0
    assert stored_blobs(runtime) == []


@pytest.mark.parametrize(("name", "data", "code"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_an_upload_that_cannot_become_a_specification_is_refused_with_nothing_stored(
    local_runtime: Runtime, name: str, data: bytes, code: str
) -> None:
    with pytest.raises(SpecError) as caught:
        submit_upload(local_runtime, data, name, tenant="default", key=None, actor="test")

    assert caught.value.code == code
    _assert_nothing_is_stored(local_runtime)


def test_a_file_of_30_megabytes_is_refused_before_it_is_read(local_runtime: Runtime, tmp_path: Path) -> None:
    path = tmp_path / "large.md"
    with path.open("wb") as file:
        file.truncate(30_000_000)

    with pytest.raises(SpecError) as caught:
        submit_file(local_runtime, path, actor="test")

    assert caught.value.code == "too_large"
    _assert_nothing_is_stored(local_runtime)


def test_a_file_that_is_exactly_as_large_as_the_limit_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    path.write_bytes(b"x" * 100)

    data = read_upload(path, 100, follow_links=True)

    assert len(data) == 100
    with pytest.raises(SpecError):
        read_upload(path, 99, follow_links=True)


def test_a_file_that_is_gone_is_refused(local_runtime: Runtime, tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        submit_file(local_runtime, tmp_path / "gone.md", actor="test")

    assert caught.value.code == "file_not_found"
    _assert_nothing_is_stored(local_runtime)


def test_a_link_to_nothing_is_a_file_that_is_gone(local_runtime: Runtime, tmp_path: Path) -> None:
    link = tmp_path / "link.md"
    link.symlink_to(tmp_path / "gone.md")

    with pytest.raises(SpecError) as caught:
        submit_file(local_runtime, link, actor="test")

    assert caught.value.code == "file_not_found"


def test_a_person_may_submit_a_link_and_the_uploads_folder_may_not(tmp_path: Path) -> None:
    target = tmp_path / "target.md"
    target.write_bytes(policy(1))
    link = tmp_path / "link.md"
    link.symlink_to(target)

    followed = read_upload(link, 10_000, follow_links=True)
    with pytest.raises(SpecError) as caught:
        read_upload(link, 10_000, follow_links=False)

    assert followed == policy(1)
    assert caught.value.code == "symbolic_link"


@pytest.mark.parametrize("kind", ["folder", "pipe", "device"])
def test_what_is_no_regular_file_is_refused_and_never_waited_for(
    local_runtime: Runtime, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "a.md"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")

    with pytest.raises(SpecError) as caught:
        submit_file(local_runtime, path, actor="test")

    assert caught.value.code == "not_a_file"
    _assert_nothing_is_stored(local_runtime)


@pytest.mark.parametrize("key", ["k" * 300, "a/b", "..", "a..b", "a\nb", "", "-a"], ids=repr)
def test_a_hostile_submission_key_is_refused_with_nothing_stored(local_runtime: Runtime, key: str) -> None:
    with pytest.raises(IdentityError) as caught:
        submit_upload(local_runtime, policy(1), "a.md", tenant="default", key=key, actor="test")

    assert caught.value.code == "invalid_submission_key"
    _assert_nothing_is_stored(local_runtime)


def test_an_unknown_tenant_is_refused_with_nothing_stored(runtime: Runtime) -> None:
    with pytest.raises(TenantNotFoundError) as caught:
        submit_upload(runtime, policy(1), "a.md", tenant="nobody", key=None, actor="test")

    assert "rulegen tenant add nobody" in caught.value.message
    _assert_nothing_is_stored(runtime)


@pytest.mark.parametrize(
    ("change", "code"),
    [({"provider": "gpt-nonesuch"}, "invalid_provider"), ({"vocabulary": "nonesuch"}, "invalid_vocabulary")],
)
def test_a_behaviour_that_this_release_does_not_have_is_refused_with_nothing_stored(
    local_runtime: Runtime, change: dict[str, str], code: str
) -> None:
    settings = local_runtime.settings.model_copy(update=change)
    wrong = Runtime(**{**vars(local_runtime), "settings": settings})

    with pytest.raises(InputError) as caught:
        submit(wrong, policy(1))

    assert caught.value.code == code
    _assert_nothing_is_stored(local_runtime)


def test_a_key_that_is_taken_by_another_input_is_a_conflict_that_stores_nothing(runtime: Runtime) -> None:
    first = submit(runtime, policy(1))
    blobs = stored_blobs(runtime)

    with pytest.raises(SubmissionConflictError) as caught:
        submit(runtime, policy(2))

    assert caught.value.code == "submission_conflict"
    assert [job.job_id for job in runtime.ledger.reads.jobs()] == [first.job_id]
    assert stored_blobs(runtime) == blobs


def test_the_same_file_again_is_the_same_job(local_runtime: Runtime, tmp_path: Path) -> None:
    path = tmp_path / "Travel Policy.md"
    path.write_bytes(policy(1))

    first = submit_file(local_runtime, path, actor="test")
    again = submit_file(local_runtime, path, actor="test")

    assert (first.existing, again.existing) == (False, True)
    assert first.job == again.job
    assert first.job.name.submission_key.startswith("travel-policy-")
    assert first.job.state is JobState.EXTRACTING


def test_a_file_with_spaces_and_foreign_letters_in_its_name_is_accepted(local_runtime: Runtime) -> None:
    made = submit_upload(local_runtime, policy(1), "Reise\u00adkosten ü 規程.md", tenant="default", key=None, actor="t")

    assert made.job.file_name == "Reise\u00adkosten ü 規程.md"


def test_a_changed_file_is_a_new_job_that_names_its_predecessor(local_runtime: Runtime) -> None:
    submit(local_runtime, policy(1), key="first")

    second = submit(local_runtime, policy(2), key="second")

    assert second.predecessor == JobName(tenant="default", submission_key="first")


def test_the_job_freezes_the_behaviour_of_its_submission(local_runtime: Runtime) -> None:
    frozen = submit(local_runtime, policy(1)).behaviour

    again = submit(scripted(local_runtime, {}), policy(1))

    assert frozen["provider"] == "rulegen-pattern"
    assert again.behaviour == frozen


def test_no_refusal_repeats_the_text_of_the_upload(local_runtime: Runtime) -> None:
    canary = "SECRETSALARY"
    uploads = [
        ("a.md", f"# {canary}\n".encode()),
        ("a.docx", f"{canary} must be paid.".encode()),
        ("a.md", f"{canary}\x00".encode()),
        ("a.md", canary.encode() + b"\xff"),
    ]

    messages = []
    for name, data in uploads:
        with pytest.raises(RulegenError) as caught:
            submit_upload(local_runtime, data, name, tenant="default", key=None, actor="test")
        messages.append(caught.value.message)

    assert not [message for message in messages if canary in message]


def test_a_submission_that_is_here_tells_what_it_froze_otherwise_than_the_settings_ask(local_runtime: Runtime) -> None:
    first = submit(local_runtime, policy(1))
    other = scripted(local_runtime, {})
    changed = {"policy": "strict", "vocabulary": "leave"}
    other = replace(other, settings=other.settings.model_copy(update=changed))

    again = submit_upload(other, policy(1), "policy.md", tenant="default", key="policy", actor="test")
    same = submit_upload(local_runtime, policy(1), "policy.md", tenant="default", key="policy", actor="test")

    assert (again.job, again.existing) == (first, True)
    assert [(one.what, one.frozen, one.asked) for one in again.frozen_otherwise] == [
        ("provider", "rulegen-pattern", "rulegen-scripted"),
        ("policy", LENIENT, "strict"),
        ("vocabulary", "expense", "leave"),
    ]
    assert same.frozen_otherwise == ()


def test_another_language_model_of_the_same_provider_is_told(local_runtime: Runtime) -> None:
    def asking(model: str) -> Runtime:
        settings = Settings(
            home=local_runtime.settings.home, provider="openai-compatible", model=model, api_key="k", policy=LENIENT
        )
        return replace(local_runtime, settings=settings)

    submit(asking("small"), policy(1))

    again = submit_upload(asking("large"), policy(1), "policy.md", tenant="default", key="policy", actor="test")

    assert [(one.what, one.frozen, one.asked) for one in again.frozen_otherwise] == [("model", "small", "large")]
