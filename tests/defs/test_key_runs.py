from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import sqlalchemy as sa

from rulegen_dagster.defs.partitions import jobs_partitions, rules_partitions
from rulegen_dagster.domain.states import JobState, Stage, WorkState
from rulegen_dagster.ledger.reads import JobRecord
from rulegen_dagster.ledger.schema import job as job_table
from rulegen_dagster.resources.accepting_io_manager import AcceptingIOManager
from rulegen_dagster.resources.launches import CONTINUES_TAG, PARENT_RUN_TAG
from rulegen_dagster.resources.partition_sets import register_job
from rulegen_dagster.workflow.runtime import Runtime
from tests.defs.conftest import RANGE_END, RANGE_START, Execute, calls, failure_text, materialized, write_script

FAIL: list[dict[str, Any]] = [{"do": "error", "kind": "permanent"}]


def test_a_range_makes_one_event_for_each_key_of_both_assets(
    home: Path, instance: dg.DagsterInstance, keys: tuple[str, ...], execute: Execute
) -> None:
    result = execute("generate_tests", key_range=keys)

    assert result.success
    assert sorted(materialized(instance, "rule")) == sorted(keys)
    assert sorted(materialized(instance, "test_suite")) == sorted(keys)
    assert len(calls(home)) == 40


def test_a_second_run_reuses_every_key_with_one_event_each_and_no_call(
    home: Path, instance: dg.DagsterInstance, keys: tuple[str, ...], execute: Execute
) -> None:
    execute("generate_tests", key_range=keys)

    again = execute("generate_tests", key_range=keys)

    events = again.asset_materializations_for_node("generation")
    assert again.success
    assert len(calls(home)) == 40
    assert sorted(str(event.partition) for event in events) == sorted([*keys, *keys])
    assert all(event.metadata["reused"].value is True for event in events)


def test_a_single_key_runs_alone(
    home: Path, instance: dg.DagsterInstance, keys: tuple[str, ...], execute: Execute
) -> None:
    result = execute("generate_rules", key=keys[4])

    assert result.success
    assert materialized(instance, "rule") == [keys[4]]
    assert calls(home) == ["generate_rules rule-05"]


def test_failed_keys_get_no_event_and_fail_the_step_with_their_reasons(
    home: Path, job: JobRecord, instance: dg.DagsterInstance, keys: tuple[str, ...], execute: Execute
) -> None:
    write_script(home, {"rule-03": FAIL, "rule-07": FAIL})

    result = execute("generate_rules", key_range=keys)

    said = failure_text(result)
    assert not result.success
    assert sorted(materialized(instance, "rule")) == sorted(set(keys) - {keys[2], keys[6]})
    assert "2 of 20 outputs are not accepted" in said
    assert f"generate_rules of {job.name}, rule-03, rule-07: provider_rejected" in said


def test_a_person_who_re_executes_gets_exactly_the_failed_keys_called_again(
    home: Path, instance: dg.DagsterInstance, keys: tuple[str, ...], execute: Execute
) -> None:
    write_script(home, {"rule-03": FAIL, "rule-07": FAIL})
    first = execute("generate_rules", key_range=keys)
    write_script(home, {})
    before = len(calls(home))

    again = execute("generate_rules", key_range=keys, tags={PARENT_RUN_TAG: first.run_id})

    assert again.success
    assert sorted(calls(home)[before:]) == ["generate_rules rule-03", "generate_rules rule-07"]


@pytest.mark.parametrize("tags", [{"dagster/retry_number": "1"}, {CONTINUES_TAG: "none"}], ids=["Dagster", "sensor"])
def test_neither_dagster_nor_a_sensor_gives_failed_keys_new_attempts(
    home: Path, keys: tuple[str, ...], execute: Execute, tags: dict[str, str]
) -> None:
    write_script(home, {"rule-03": FAIL})
    execute("generate_rules", key_range=keys)
    write_script(home, {})
    before = len(calls(home))

    again = execute("generate_rules", key_range=keys, tags=tags)

    assert not again.success
    assert calls(home)[before:] == []


def test_a_key_that_waits_for_its_retry_is_named_with_its_time_and_fails_the_run(
    home: Path, opened: Runtime, job: JobRecord, keys: tuple[str, ...], execute: Execute
) -> None:
    write_script(home, {"rule-05": [{"do": "timeout"}, "ok"]})

    result = execute("generate_rules", key_range=keys)

    item = opened.ledger.reads.items(job.job_id, Stage.GENERATE_RULES)[4]
    assert not result.success
    assert item.state is WorkState.WAITING
    assert f"generate_rules of {job.name}, rule-05: retry due in " in failure_text(result)


def test_tests_alone_say_for_each_key_that_the_rules_are_not_complete(
    home: Path, job: JobRecord, instance: dg.DagsterInstance, keys: tuple[str, ...], execute: Execute
) -> None:
    result = execute("generate_tests", key_range=keys[:3], assets=["test_suite"])

    said = failure_text(result)
    assert not result.success
    assert materialized(instance, "test_suite") == []
    assert calls(home) == []
    assert f"generate_tests of {job.name}, rule-01, rule-02, rule-03: the job is generating_rules" in said


def test_both_assets_over_a_part_of_the_keys_accept_the_rules_and_explain_the_tests(
    home: Path, job: JobRecord, instance: dg.DagsterInstance, keys: tuple[str, ...], execute: Execute
) -> None:
    result = execute("generate_tests", key_range=keys[:2])

    assert not result.success
    assert sorted(materialized(instance, "rule")) == sorted(keys[:2])
    assert materialized(instance, "test_suite") == []
    assert f"generate_tests of {job.name}, rule-01, rule-02: the job is" in failure_text(result)


def test_an_unknown_key_fails_before_any_call(home: Path, instance: dg.DagsterInstance, execute: Execute) -> None:
    instance.add_dynamic_partitions("rules", ["not-a-key"])

    result = execute("generate_rules", key="not-a-key")

    assert not result.success
    assert "[unknown_key]" in failure_text(result)
    assert calls(home) == []


def test_a_retired_key_fails_before_any_call(
    home: Path, opened: Runtime, job: JobRecord, keys: tuple[str, ...], execute: Execute
) -> None:
    _end(opened, job)

    result = execute("generate_rules", key_range=keys)

    assert not result.success
    assert "[retired_key]" in failure_text(result)
    assert calls(home) == []


def test_a_reversed_range_fails_instead_of_doing_nothing(home: Path, keys: tuple[str, ...], execute: Execute) -> None:
    result = execute("generate_rules", key_range=(keys[5], keys[2]))

    assert not result.success
    assert "[no_keys]" in failure_text(result)


def test_a_job_without_a_partition_says_that_it_needs_one(home: Path, keys: tuple[str, ...], execute: Execute) -> None:
    result = execute("generate_rules")

    assert not result.success
    assert "choose at least one partition key" in failure_text(result)


def test_two_runs_over_one_range_make_each_call_once(
    home: Path, definitions: dg.Definitions, opened: Runtime, job: JobRecord, keys: tuple[str, ...]
) -> None:
    write_script(home, {"*": [{"do": "ok", "delay_ms": 40}]})
    tags = {RANGE_START: keys[0], RANGE_END: keys[-1]}

    def run_once(_number: int) -> set[str]:
        # An ephemeral instance serves one thread; the ledger serves both.
        with dg.DagsterInstance.ephemeral() as own:
            register_job(own, opened, job.job_id)
            definitions.resolve_job_def("generate_rules").execute_in_process(
                instance=own, tags=tags, raise_on_error=False
            )
            return set(materialized(own, "rule"))

    with ThreadPoolExecutor(2) as pool:
        shown = list(pool.map(run_once, range(2)))

    items = opened.ledger.reads.items(job.job_id, Stage.GENERATE_RULES)
    assert [item.state for item in items] == [WorkState.SUCCEEDED] * 20
    assert sorted(calls(home)) == sorted(f"generate_rules {item.key.item_key}" for item in items)
    assert shown[0] | shown[1] == set(keys)


def test_metadata_is_plain_text_and_says_what_made_the_output(
    instance: dg.DagsterInstance, home: Path, keys: tuple[str, ...], execute: Execute
) -> None:
    execute("generate_rules", key=keys[0])

    event = instance.get_latest_materialization_event(dg.AssetKey("rule"))
    assert event is not None
    assert event.asset_materialization is not None
    metadata = event.asset_materialization.metadata
    assert metadata["label"].value == "not a language model"
    assert metadata["provider"].value == "rulegen-scripted"
    assert metadata["attempt"].value == 1
    assert {"work_item", "digest", "quote", "decision"} <= set(metadata)
    assert not any(isinstance(value, dg.MarkdownMetadataValue) for value in metadata.values())


def test_the_stages_of_a_job_run_from_upload_to_bundle(
    home: Path,
    opened: Runtime,
    instance: dg.DagsterInstance,
    job: JobRecord,
    keys: tuple[str, ...],
    execute: Execute,
) -> None:
    extracted = execute("retrieve", key=job.partition_key)
    generated = execute("generate_tests", key_range=keys)
    validated = execute("validate", key=job.partition_key)
    early = execute("publish", key=job.partition_key)
    waiting = opened.ledger.reads.job_by_id(job.job_id)
    opened.ledger.actions.confirm(job.job_id, str(waiting.action_set_digest), actor="test")
    published = execute("publish", key=job.partition_key)
    again = execute("publish", key=job.partition_key)

    assert [r.success for r in (extracted, generated, validated, published, again)] == [True] * 5
    assert not early.success
    assert "[not_confirmed]" in failure_text(early)
    assert opened.ledger.reads.job_by_id(job.job_id).state is JobState.COMPLETED
    assert len(list((home / "published" / "default" / "expense-policy").iterdir())) == 1


def _end(opened: Runtime, job: JobRecord) -> None:
    """Bring a job to an end that retires its keys."""
    with opened.ledger.database.write() as connection:
        connection.execute(sa.update(job_table).where(job_table.c.job_id == job.job_id).values(state="cancelled"))


def test_the_io_manager_loads_the_accepted_outputs_by_key(
    home: Path, opened: Runtime, instance: dg.DagsterInstance, job: JobRecord, keys: tuple[str, ...], execute: Execute
) -> None:
    execute("generate_rules", key_range=keys[:2])

    def load(asset: str, key: str, partitions: dg.PartitionsDefinition) -> dict[str, str]:
        context = dg.build_input_context(
            asset_key=dg.AssetKey(asset),
            partition_key=key,
            asset_partitions_def=partitions,
            asset_partition_key_range=dg.PartitionKeyRange(key, key),
            instance=instance,
        )
        return AcceptingIOManager().load_input(context)

    accepted = load("rule", keys[0], rules_partitions)
    missing = load("rule", keys[5], rules_partitions)
    parsed = load("parsed_spec", job.partition_key, jobs_partitions)

    stored = opened.ledger.reads.items(job.job_id, Stage.GENERATE_RULES)[0].output
    assert accepted == {keys[0]: stored}
    assert missing == {}
    assert '"normative":20' in parsed[job.partition_key]
