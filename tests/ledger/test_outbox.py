"""The outbox: one row with each acceptance, kept for ever, held by one process at a time, mirrored once."""

import contextlib
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from rulegen_dagster.domain import failpoints
from rulegen_dagster.domain.errors import LedgerError
from rulegen_dagster.domain.failpoints import Failpoint
from rulegen_dagster.domain.retry import RetryDecision
from rulegen_dagster.domain.states import AttemptOutcome, Stage, WorkState
from rulegen_dagster.domain.work import FailedAttempt, Offer, Usage
from rulegen_dagster.ledger import migrate as migrations
from rulegen_dagster.ledger.claims import Claimant
from rulegen_dagster.ledger.database import Database, ManualClock, open_database
from rulegen_dagster.ledger.outbox import add_missing
from rulegen_dagster.ledger.schema import action, action_set, attempt, behaviour, job, outbox, submission, work_item
from rulegen_dagster.ledger.store import Ledger
from tests.conftest import POLICY
from tests.ledger.conftest import ALICE, ALL, MakeJob, claim, complete, stage_scope

RULES = stage_scope(Stage.GENERATE_RULES)
IN_A_RUN = Claimant(worker="carol", lease_ms=1_000, run_id="run-1")
LEASE_MS = 60_000


def _ids(ledger: Ledger) -> list[int]:
    return [row.outbox_id for row in ledger.outbox.rows(limit=ALL)]


def _accept_rules(ledger: Ledger, count: int = ALL, *, claimant: Claimant = ALICE) -> list[str]:
    claims = claim(ledger, RULES, count, claimant)
    complete(ledger, *(Offer(claim=one, output='{"rules":[]}') for one in claims), claimant=claimant)
    return [one.key.item_key for one in claims]


def test_each_acceptance_writes_one_row_with_its_run(ledger: Ledger, clock: ManualClock, make_job: MakeJob) -> None:
    job_id = make_job(3)
    _accept_rules(ledger, 1)
    clock.now_ms += 5
    _accept_rules(ledger, 2, claimant=IN_A_RUN)

    found = ledger.outbox.acceptances(_ids(ledger))

    assert [(a.key.stage.value, a.key.item_key, a.run_id, a.accepted_at) for a in found] == [
        ("parse", "document", None, 10_000),
        ("retrieve", "document", None, 10_000),
        ("generate_rules", "rule-01", None, 10_000),
        ("generate_rules", "rule-02", "run-1", 10_005),
        ("generate_rules", "rule-03", "run-1", 10_005),
    ]
    assert {a.key.job_id for a in found} == {job_id}


def test_an_acceptance_tells_what_its_event_needs(ledger: Ledger, make_job: MakeJob) -> None:
    make_job(1)
    (claimed,) = claim(ledger, RULES)
    usage = Usage(model_id="m", request_id="r-1", tokens_in=5, tokens_out=7, cost_micros=11)
    complete(ledger, Offer(claim=claimed, output="{}", provider="p", provider_called=True, usage=usage))

    parsed, _, rule = ledger.outbox.acceptances(_ids(ledger))

    job = ledger.reads.job_by_id(rule.key.job_id)
    assert (rule.job, rule.partition_key) == (job.name, claimed.partition_key)
    assert (rule.attempt, rule.provider, rule.provider_called, rule.usage) == (1, "p", True, usage)
    assert (rule.output, rule.digest) == ("{}", ledger.reads.items(job.job_id, Stage.GENERATE_RULES)[0].output_digest)
    assert (parsed.partition_key, parsed.provider) == (job.partition_key, None)


def test_an_offer_that_is_repeated_or_stale_or_a_failure_writes_no_row(
    ledger: Ledger, clock: ManualClock, make_job: MakeJob
) -> None:
    make_job(3)
    first, second, third = claim(ledger, RULES, 3)
    failed = FailedAttempt(claim=second, outcome=AttemptOutcome.PERMANENT, error_code="no_luck", message="no luck")
    with ledger.turn(ALICE) as turn:
        turn.offer(Offer(claim=first, output="{}"))
        turn.settle([(failed, RetryDecision(state=WorkState.FAILED, delay_ms=0, consumes_budget=True))])
    before = _ids(ledger)

    complete(ledger, Offer(claim=first, output="{}"))
    clock.now_ms += 1_000
    complete(ledger, Offer(claim=third, output="{}"))

    assert len(before) == 3
    assert _ids(ledger) == before


def test_an_acceptance_that_is_rolled_back_leaves_no_row(ledger: Ledger, make_job: MakeJob) -> None:
    make_job(1)
    (claimed,) = claim(ledger, RULES)

    with contextlib.suppress(KeyError), ledger.turn(ALICE) as turn:
        turn.offer(Offer(claim=claimed, output="{}"))
        turn.settle()
        raise KeyError

    assert len(_ids(ledger)) == 2


def test_the_oldest_unmirrored_rows_come_first_and_those_of_other_runs_can_be_left_out(
    ledger: Ledger, make_job: MakeJob
) -> None:
    make_job(3)
    _accept_rules(ledger, 2, claimant=IN_A_RUN)
    _accept_rules(ledger, 1)
    ids = _ids(ledger)
    ledger.outbox.mirrored(ids[:1])

    rows = ledger.outbox.rows(limit=2)
    others = ledger.outbox.rows(limit=ALL, besides={"run-1"})
    all_of_them = ledger.outbox.rows(limit=ALL, unmirrored=False)
    behind = ledger.outbox.rows(after=ids[3], limit=ALL)

    assert [row.outbox_id for row in rows] == ids[1:3]
    assert [row.outbox_id for row in others] == [ids[1], ids[4]]
    assert [row.is_mirrored for row in all_of_them] == [True, False, False, False, False]
    assert [row.outbox_id for row in behind] == ids[4:]
    assert ledger.outbox.unmirrored() == 4


def test_a_row_is_mirrored_once_and_by_whom_it_was_first(ledger: Ledger, clock: ManualClock, make_job: MakeJob) -> None:
    make_job(2)
    _accept_rules(ledger)
    *ids, last = _ids(ledger)
    keys = [acceptance.key for acceptance in ledger.outbox.acceptances([*ids, last])]

    first = ledger.outbox.mirrored(ids)
    clock.now_ms += 1
    again = ledger.outbox.mirrored([*ids, last])
    by_item = ledger.outbox.mirrored_items(keys)

    with ledger.database.read() as connection:
        times = list(connection.execute(sa.select(outbox.c.mirrored_at).order_by(outbox.c.outbox_id)).scalars())
    assert (first, again, by_item) == (frozenset(ids), frozenset({last}), frozenset())
    assert times == [10_000, 10_000, 10_000, 10_001]


def test_rows_are_marked_by_their_work_items(ledger: Ledger, make_job: MakeJob) -> None:
    make_job(2)
    make_job(2, key="other")
    _accept_rules(ledger)
    wanted = [a for a in ledger.outbox.acceptances(_ids(ledger)) if a.key.item_key == "rule-01"][:1]

    landed = ledger.outbox.mirrored_items([acceptance.key for acceptance in wanted])

    assert landed == {wanted[0].outbox_id}
    assert ledger.outbox.unmirrored() == 7


def test_a_row_is_held_by_one_process_until_its_lease_has_passed(
    ledger: Ledger, clock: ManualClock, make_job: MakeJob
) -> None:
    make_job(1)
    ids = _ids(ledger)

    one = ledger.outbox.hold(ids[:1], lease_ms=LEASE_MS)
    other = ledger.outbox.hold(ids, lease_ms=LEASE_MS)
    clock.now_ms += LEASE_MS
    later = ledger.outbox.hold(ids, lease_ms=LEASE_MS)

    assert [set(held) for held in (one, other, later)] == [set(ids[:1]), set(ids[1:]), set(ids)]


def test_a_held_row_is_given_back_by_its_holder_alone(ledger: Ledger, clock: ManualClock, make_job: MakeJob) -> None:
    make_job(1)
    ids = _ids(ledger)
    lost = ledger.outbox.hold(ids, lease_ms=LEASE_MS)
    clock.now_ms += LEASE_MS
    held = ledger.outbox.hold(ids, lease_ms=LEASE_MS)

    ledger.outbox.mirrored([], held=lost)
    before = ledger.outbox.hold(ids, lease_ms=LEASE_MS)
    ledger.outbox.mirrored(ids[:1], held=held)
    after = ledger.outbox.hold(ids, lease_ms=LEASE_MS)

    assert (set(before), set(after)) == (set(), set(ids))


@pytest.mark.parametrize(
    "statement",
    [
        sa.delete(outbox),
        sa.update(outbox).values(mirrored_at=None),
        sa.update(outbox).values(mirrored_at=1),
        sa.update(outbox).values(dagster_run_id="another"),
        sa.update(outbox).values(item_key="rule-99"),
    ],
    ids=["deleted", "unmirrored again", "mirrored again", "given to another run", "renamed"],
)
def test_the_database_refuses_to_change_a_mirrored_row(
    ledger: Ledger, make_job: MakeJob, statement: sa.Delete | sa.Update
) -> None:
    make_job(1)
    ids = _ids(ledger)
    ledger.outbox.mirrored(ids)

    with pytest.raises(LedgerError, match="outbox is"), ledger.database.write() as connection:
        connection.execute(statement.where(outbox.c.outbox_id == ids[0]))

    assert [row.is_mirrored for row in ledger.outbox.rows(limit=ALL, unmirrored=False)] == [True, True]


def test_inherited_outputs_get_their_rows_once(ledger: Ledger, make_job: MakeJob) -> None:
    job_id = make_job(3)
    _accept_rules(ledger, 2)
    before = ledger.outbox.acceptances(_ids(ledger))
    with ledger.database.write() as connection:
        # As a fork finds it: outputs are there, and nobody has written a row for them.
        connection.exec_driver_sql(
            "DROP TRIGGER outbox_is_kept" + (" ON outbox" if ledger.database.dialect == "postgresql" else "")
        )
        connection.execute(sa.delete(outbox).where(outbox.c.stage == Stage.GENERATE_RULES.value))

    for _ in range(2):
        with ledger.database.write() as connection:
            add_missing(connection, ledger.database.now, job_id)

    after = ledger.outbox.acceptances(_ids(ledger))
    assert [acceptance.key for acceptance in after] == [acceptance.key for acceptance in before]


def test_marking_is_a_commit_with_two_sides(ledger: Ledger, make_job: MakeJob) -> None:
    make_job(1)
    counts = failpoints.record()

    ledger.outbox.mirrored(_ids(ledger))

    failpoints.disarm()
    assert counts == {Failpoint.MIRROR_BEFORE_COMMIT: 1, Failpoint.MIRROR_AFTER_COMMIT: 1}


def test_a_ledger_of_the_release_before_gets_a_row_for_each_output_and_publication(ledger_url: str) -> None:
    database = _at_revision(ledger_url, "0002")
    with database.write() as connection:
        _completed_job(connection)

    migrations.migrate(database)

    ledger = Ledger(database, POLICY)
    found = ledger.outbox.acceptances(_ids(ledger))
    assert [(a.key.stage, a.key.item_key, a.run_id, a.accepted_at) for a in found] == [
        (Stage.PARSE, "document", "run-1", 7),
        (Stage.PUBLISH, "document", None, 9),
    ]
    assert [acceptance.digest for acceptance in found] == ["of the output", "of the manifest"]
    assert ledger.outbox.unmirrored() == 2
    database.close()


def _at_revision(ledger_url: str, revision: str) -> Database:
    """Return a ledger of an earlier release; what was at the URL is given up."""
    database = open_database(ledger_url + ".old" if ledger_url.startswith("sqlite") else ledger_url)
    with database.write() as connection:
        if database.dialect == "postgresql":
            connection.exec_driver_sql("DROP SCHEMA public CASCADE")
            connection.exec_driver_sql("CREATE SCHEMA public")
        config = Config()
        config.set_main_option("script_location", str(Path(migrations.__file__).parent / "migrations"))
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
    return database


def _completed_job(connection: sa.Connection) -> None:
    """Write a job with one accepted output and its publication, as the release before left them."""
    at = {"created_at": 1, "updated_at": 1}
    item = {"job_id": 1, "stage": "parse", "item_key": "document", "stage_version": 1}
    connection.execute(sa.insert(behaviour).values(digest="b", content="{}", created_at=1))
    connection.execute(
        sa.insert(submission).values(
            tenant="default", submission_key="k", input_digest="i", file_name="f", size_bytes=1, received_at=1
        )
    )
    connection.execute(
        sa.insert(job).values(
            job_id=1, tenant="default", submission_key="k", partition_key="job-1", ruleset="r", state="received",
            behaviour_digest="b", spec_digest="s", **at,
        )
    )  # fmt: skip
    connection.execute(sa.insert(work_item).values(**item, ordinal=0, state="pending", attempt_limit=3, **at))
    held = {"token": "t", "lease_until": 5, "worker": "w"}
    connection.execute(sa.update(work_item).values(state="running", **held))
    connection.execute(
        sa.update(work_item).values(
            state="succeeded", output="{}", output_digest="of the output", **dict.fromkeys(held)
        )
    )
    tried = {"token": "t", "worker": "w", "dagster_run_id": "run-1", "operation_key": "o", "provider_called": False}
    connection.execute(
        sa.insert(attempt).values(**item, attempt=1, **tried, started_at=2, ended_at=7, outcome="accepted")
    )
    connection.execute(sa.insert(action_set).values(job_id=1, digest="a", content="{}", created_at=1))
    connection.execute(
        sa.insert(action).values(
            action_key="publish:1:a", job_id=1, action_set_digest="a", kind="publish", state="proposed", **at
        )
    )
    connection.execute(sa.update(action).values(state="confirmed"))
    connection.execute(sa.update(action).values(state="executing", **held))
    receipt = '{"manifest_sha256":"of the manifest","path":"p"}'
    connection.execute(
        sa.update(action).values(state="done", receipt=receipt, token=None, lease_until=None, worker=None, updated_at=9)
    )
