"""The demo's functions; the crash itself needs a process and is an acceptance test."""

from pathlib import Path

import pytest

from rulegen_dagster.domain.errors import StateError
from rulegen_dagster.domain.states import Stage
from rulegen_dagster.ledger.claims import Scope
from rulegen_dagster.workflow import demo
from rulegen_dagster.workflow.drive import generate
from rulegen_dagster.workflow.intake import submit_upload
from tests.workflow.conftest import run_stage


def test_a_resume_without_a_crash_says_how_to_begin(tmp_path: Path) -> None:
    opened = demo.open_demo(str(tmp_path / "demo.sqlite3"), 12_000, crash=False)

    with pytest.raises(StateError, match="demo crash"):
        demo.resume(opened)

    opened.close()


def test_a_resume_of_a_file_that_is_not_there_makes_none(tmp_path: Path) -> None:
    path = tmp_path / "demo.sqlite3"

    with pytest.raises(StateError, match="there is no demo"):
        demo.check_begun(str(path))

    assert not path.exists()


def test_a_crash_needs_a_fresh_file(tmp_path: Path, example_policy: Path) -> None:
    opened = demo.open_demo(str(tmp_path / "demo.sqlite3"), 10_000, crash=True)
    submit_upload(
        opened,
        example_policy.read_bytes(),
        example_policy.name,
        tenant=demo.DEMO_JOB.tenant,
        key=demo.DEMO_JOB.submission_key,
        actor="test",
    )

    with pytest.raises(StateError, match="fresh"):
        demo.crash(opened)

    opened.close()


def test_a_resume_counts_what_it_called_and_what_it_left_alone(tmp_path: Path, example_policy: Path) -> None:
    opened = demo.open_demo(str(tmp_path / "demo.sqlite3"), 10_000, crash=False)
    job = submit_upload(
        opened,
        example_policy.read_bytes(),
        example_policy.name,
        tenant=demo.DEMO_JOB.tenant,
        key=demo.DEMO_JOB.submission_key,
        actor="test",
    ).job
    for stage in (Stage.PARSE, Stage.RETRIEVE):
        run_stage(opened, job, stage)
    items = opened.ledger.reads.items(job.job_id, Stage.GENERATE_RULES)
    scope = Scope(stages=(Stage.GENERATE_RULES,), items=tuple(item.key for item in items[:13]))
    generate(opened, scope, observe=lambda _outcome: None, slots=1)

    first = demo.resume(opened)
    second = demo.resume(opened)

    opened.close()
    assert first == {
        "provider_calls": 7,
        "called": [f"rule-{number}" for number in range(14, 21)],
        "accepted": 20,
        "unchanged": 13,
    }
    assert second == {"provider_calls": 0, "called": [], "accepted": 20, "unchanged": 20}


def test_the_demo_keeps_its_files_beside_its_ledger(tmp_path: Path) -> None:
    opened = demo.open_demo(str(tmp_path / "demo.sqlite3"), 10_000, crash=False)
    opened.blobs.put(b"x")
    opened.close()

    assert {path.name.removesuffix("-wal").removesuffix("-shm") for path in tmp_path.iterdir()} == {
        "demo.sqlite3",
        "demo.sqlite3.files",
    }


def test_the_demo_on_a_database_url_keeps_its_files_in_the_home(
    ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RULEGEN_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)

    opened = demo.open_demo(ledger_url, 10_000, crash=False)
    opened.blobs.put(b"x")
    opened.close()

    assert opened.settings.home_path == tmp_path / "home" / "demo"
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["home"]
