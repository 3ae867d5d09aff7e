import io
import os
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, cast

import pytest

from rulegen_dagster.domain.errors import ProviderConfigError
from rulegen_dagster.domain.identity import JobName
from rulegen_dagster.workflow.runtime import Runtime
from rulegen_dagster.workflow.uploads import MAX_FILES_PER_LOOK, Look, look
from tests.workflow.conftest import policy, stored_blobs, stored_submissions


@pytest.fixture
def folder(local_runtime: Runtime) -> Path:
    made = local_runtime.settings.uploads_path / "default"
    made.mkdir(parents=True)
    return made


def _look_twice(runtime: Runtime, cursor: str | None = None) -> Look:
    return look(runtime, look(runtime, cursor).cursor)


def test_a_home_without_an_uploads_folder_is_an_empty_one(local_runtime: Runtime) -> None:
    seen = look(local_runtime, None)

    assert (seen.accepted, seen.refused, seen.settling) == ((), (), ())


def test_a_file_counts_once_it_stood_still_for_one_look(local_runtime: Runtime, folder: Path) -> None:
    (folder / "a.md").write_bytes(policy(1))

    first = look(local_runtime, None)
    second = look(local_runtime, first.cursor)
    third = look(local_runtime, second.cursor)

    assert (first.accepted, first.settling) == ((), ("default/a.md",))
    assert [intake.job.file_name for intake in second.accepted] == ["a.md"]
    assert (third.accepted, third.settling) == ((), ())


def test_a_file_that_still_grows_is_left_alone(local_runtime: Runtime, folder: Path) -> None:
    path = folder / "a.md"
    path.write_bytes(policy(1))
    first = look(local_runtime, None)
    path.write_bytes(policy(2))

    second = look(local_runtime, first.cursor)
    third = look(local_runtime, second.cursor)

    assert (second.accepted, second.settling) == ((), ("default/a.md",))
    assert [intake.job.size_bytes for intake in third.accepted] == [len(policy(2))]


@pytest.mark.parametrize("when", ["before the read", "after the read"])
def test_a_file_that_is_rewritten_in_place_while_it_is_read_is_still_settling(
    local_runtime: Runtime, folder: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    path = folder / "a.md"
    path.write_bytes(policy(2))
    os.utime(path, ns=(1, 1))
    first = look(local_runtime, None)
    opened, read = os.fdopen, list[BinaryIO]()

    def rewritten(descriptor: int, mode: str) -> BinaryIO:
        file = cast(BinaryIO, opened(descriptor, mode))
        if when == "before the read":
            path.write_bytes(policy(1))
            return file
        read.append(file)
        data = io.BytesIO(file.read())
        path.write_bytes(policy(1))
        return data

    with monkeypatch.context() as patched:
        patched.setattr("rulegen_dagster.workflow.intake.os.fdopen", rewritten)
        second = look(local_runtime, first.cursor)
    for file in read:
        file.close()
    third = _look_twice(local_runtime, second.cursor)

    assert (second.accepted, second.refused, second.settling) == ((), (), ("default/a.md",))
    assert [intake.job.size_bytes for intake in third.accepted] == [len(policy(1))]
    assert stored_submissions(local_runtime) == 1


def test_a_file_that_was_written_again_with_the_same_size_is_looked_at_again(
    local_runtime: Runtime, folder: Path
) -> None:
    path = folder / "a.md"
    path.write_bytes(policy(1))
    first = _look_twice(local_runtime)
    path.write_bytes(policy(1).replace(b"$50", b"$60"))
    os.utime(path, ns=(1, 1))

    second = _look_twice(local_runtime, first.cursor)

    assert [str(intake.job.predecessor) for intake in second.accepted] == [str(first.accepted[0].job.name)]


def test_with_the_cursor_lost_each_file_is_the_same_job_again(local_runtime: Runtime, folder: Path) -> None:
    (folder / "a.md").write_bytes(policy(1))
    first = _look_twice(local_runtime)

    again = _look_twice(local_runtime, None)

    assert [intake.existing for intake in again.accepted] == [True]
    assert again.accepted[0].job.name == first.accepted[0].job.name
    assert len(local_runtime.ledger.reads.jobs()) == 1


@pytest.mark.parametrize("cursor", ["", "null", "[]", "{", '{"default/a.md": 1}', '{"default/a.md": [1]}', "7"])
def test_a_cursor_that_cannot_be_read_counts_as_lost(local_runtime: Runtime, folder: Path, cursor: str) -> None:
    (folder / "a.md").write_bytes(policy(1))

    seen = _look_twice(local_runtime, cursor)

    assert len(seen.accepted) == 1


def test_a_changed_file_is_a_new_job_that_names_its_predecessor(local_runtime: Runtime, folder: Path) -> None:
    path = folder / "a.md"
    path.write_bytes(policy(1))
    first = _look_twice(local_runtime)
    path.write_bytes(policy(2))

    second = _look_twice(local_runtime, first.cursor)

    assert second.accepted[0].job.predecessor == first.accepted[0].job.name


def test_a_file_that_goes_back_to_an_earlier_text_is_the_earlier_job(local_runtime: Runtime, folder: Path) -> None:
    path = folder / "a.md"
    path.write_bytes(policy(1))
    first = _look_twice(local_runtime)
    path.write_bytes(policy(2))
    second = _look_twice(local_runtime, first.cursor)
    path.write_bytes(policy(1))

    third = _look_twice(local_runtime, second.cursor)

    assert [(intake.existing, intake.job.name) for intake in third.accepted] == [(True, first.accepted[0].job.name)]


def test_a_refused_file_is_told_once_for_each_version(local_runtime: Runtime, folder: Path) -> None:
    path = folder / "a.md"
    path.write_bytes(b"# only a heading\n")
    first = _look_twice(local_runtime)
    quiet = look(local_runtime, first.cursor)
    path.write_bytes(b"# another heading\n")

    again = _look_twice(local_runtime, quiet.cursor)

    assert [(refusal.file_name, refusal.code) for refusal in first.refused] == [("a.md", "no_clauses")]
    assert quiet.refused == ()
    assert len(again.refused) == 1


def test_one_bad_file_does_not_hold_up_the_others(local_runtime: Runtime, folder: Path) -> None:
    (folder / "a.md").write_bytes(b"\x00")
    (folder / "b.docx").write_bytes(policy(1))
    (folder / "c.md").write_bytes(policy(1))
    os.mkfifo(folder / "d.md")
    Path(os.fsdecode(bytes(folder) + b"/e\xff.md")).write_bytes(policy(1))
    (folder / "f\n.md").write_bytes(policy(1))
    (folder / "g.md").write_bytes(policy(2))

    seen = _look_twice(local_runtime)

    assert [intake.job.file_name for intake in seen.accepted] == ["c.md", "g.md"]
    assert sorted(refusal.code for refusal in seen.refused) == [
        "invalid_file_name",
        "invalid_file_name",
        "not_a_file",
        "not_text",
        "type_mismatch",
    ]


def test_a_link_out_of_the_folder_is_refused_with_nothing_stored(
    local_runtime: Runtime, folder: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside.md"
    outside.write_bytes(policy(1))
    (folder / "a.md").symlink_to(outside)
    (folder / "b.md").symlink_to("/etc/hostname")

    seen = _look_twice(local_runtime)

    assert [refusal.code for refusal in seen.refused] == ["symbolic_link", "symbolic_link"]
    assert stored_submissions(local_runtime) == 0
    assert stored_blobs(local_runtime) == []


def test_a_tenants_folder_that_is_a_link_is_not_entered(local_runtime: Runtime, folder: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "a.md").write_bytes(policy(1))
    local_runtime.ledger.submissions.add_tenant("acme")
    (folder.parent / "acme").symlink_to(elsewhere)

    seen = _look_twice(local_runtime)

    assert (seen.accepted, seen.refused) == ((), ())


def test_hidden_files_folders_and_files_beside_the_tenants_are_left_out(local_runtime: Runtime, folder: Path) -> None:
    (folder / ".a.md.part").write_bytes(policy(1))
    (folder / "sub.md").mkdir()
    (folder.parent / "stray.md").write_bytes(policy(1))
    (folder.parent / "Not A Tenant").mkdir()
    (folder.parent / "Not A Tenant" / "a.md").write_bytes(policy(1))

    seen = look(local_runtime, None)

    assert (seen.accepted, seen.refused, seen.settling) == ((), (), ())


def test_a_folder_of_an_unknown_tenant_is_refused_with_nothing_stored(local_runtime: Runtime, folder: Path) -> None:
    stranger = folder.parent / "stranger"
    stranger.mkdir()
    (stranger / "a.md").write_bytes(policy(1))

    seen = _look_twice(local_runtime)

    assert [(refusal.tenant, refusal.code) for refusal in seen.refused] == [("stranger", "tenant_not_found")]
    assert stored_blobs(local_runtime) == []


def test_the_same_file_of_two_tenants_is_two_jobs(local_runtime: Runtime, folder: Path) -> None:
    local_runtime.ledger.submissions.add_tenant("acme")
    acme = folder.parent / "acme"
    acme.mkdir()
    for place in (folder, acme):
        (place / "a.md").write_bytes(policy(1))

    seen = _look_twice(local_runtime)

    assert {intake.job.name.tenant for intake in seen.accepted} == {"default", "acme"}
    assert all(intake.job.predecessor is None for intake in seen.accepted)


def test_a_file_that_vanishes_between_two_looks_is_forgotten(local_runtime: Runtime, folder: Path) -> None:
    path = folder / "a.md"
    path.write_bytes(policy(1))
    first = look(local_runtime, None)
    path.unlink()

    second = look(local_runtime, first.cursor)
    path.write_bytes(policy(1))
    third = look(local_runtime, second.cursor)

    assert (second.accepted, second.refused, second.cursor) == ((), (), "{}")
    assert third.settling == ("default/a.md",)


def test_one_look_takes_a_bounded_number_of_files_and_the_next_one_goes_on(
    local_runtime: Runtime, folder: Path
) -> None:
    for number in range(MAX_FILES_PER_LOOK + 5):
        (folder / f"{number:03d}.md").write_bytes(b"# nothing\n")

    first = _look_twice(local_runtime)
    second = look(local_runtime, first.cursor)

    assert (len(first.refused), len(first.settling)) == (MAX_FILES_PER_LOOK, 5)
    assert (len(second.refused), second.settling) == (5, ())


def test_the_key_comes_from_the_name_and_the_digest(local_runtime: Runtime, folder: Path) -> None:
    (folder / "Travel Policy.md").write_bytes(policy(1))

    seen = _look_twice(local_runtime)

    job = seen.accepted[0].job
    assert job.name == JobName(tenant="default", submission_key=f"travel-policy-{job.spec_digest[:12]}")


def test_a_folder_that_was_filled_before_its_tenant_was_added_is_taken_afterwards(
    local_runtime: Runtime, folder: Path
) -> None:
    (folder.parent / "acme").mkdir()
    (folder.parent / "acme" / "a.md").write_bytes(policy(1))
    refused = _look_twice(local_runtime)
    local_runtime.ledger.submissions.add_tenant("acme")

    seen = look(local_runtime, refused.cursor)

    assert [str(intake.job.name.tenant) for intake in seen.accepted] == ["acme"]


def test_a_process_that_can_take_no_upload_refuses_none(local_runtime: Runtime, folder: Path) -> None:
    (folder / "a.md").write_bytes(policy(1))
    settings = local_runtime.settings.model_copy(update={"provider": "gpt-nonesuch"})
    cursor = look(local_runtime, None).cursor

    with pytest.raises(ProviderConfigError):
        look(replace(local_runtime, settings=settings), cursor)
    seen = look(local_runtime, cursor)

    assert [intake.job.file_name for intake in seen.accepted] == ["a.md"]
