"""Whole jobs of real processes, with secrets and sentences planted: where they end up, and the trace of the job."""

import base64
import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
import psycopg
import pytest
import sqlalchemy as sa
from psycopg import sql
from pydantic import SecretStr
from typer.testing import CliRunner

from rulegen_dagster.cli.main import app
from rulegen_dagster.definitions import defs as load_definitions
from rulegen_dagster.defs.sensors import due_work
from rulegen_dagster.resources.runtime import RuntimeResource
from rulegen_dagster.settings import Settings
from tests.acceptance.echoing_model import echoing_model
from tests.acceptance.everything_written import Piece, of_files, of_postgres
from tests.acceptance.processes import Rulegen, write_script
from tests.conftest import LENIENT

pytestmark = pytest.mark.acceptance

KEY, KEY_IN_FILE = "sk-plantedkey7f3a9c", "sk-plantedfilekey51d2"
DATABASE_PASSWORD, WEBHOOK, COLLECTOR = "plantedpassword5c1e", "plantedhook9b2d", "plantedcollector44ab"
SECRETS = (KEY, KEY_IN_FILE, DATABASE_PASSWORD, WEBHOOK, COLLECTOR)

# Nobody listens there.
NO_COLLECTOR = {
    "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:9/?key={COLLECTOR}",
    "OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer%20{COLLECTOR}",
    "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
}

RULED = "Meals are limited to $4,711 per day."
UNRULED = "Coffee must taste of Quetzalcoatl."
POLICY = f"{RULED}\n\nHotels are limited to $200 per night.\n\n{UNRULED}\n"

# Where the words of a specification belong, as kinds of places: the upload and its text, the clauses, what was accepted
# of them, what a person confirms and reads, and what was published.
SPECIFICATION = {
    "file blobs",
    "file published",
    "ledger clause.text",
    "stdout review",
    "stdout export",
}
# A rule quotes its clause, and Dagster shows an accepted rule beside the event that tells of it.
QUOTED = SPECIFICATION | {
    "ledger work_item.output",
    "file dagster event_logs.ASSET_MATERIALIZATION",
    "file dagster asset_keys.last_materialization",
    # The same database as bytes, and what was not yet copied into it.
    "raw dagster",
}


@dataclass(kw_only=True)
class Written:
    """Runs commands over one home, and keeps what they wrote."""

    home: Path
    shared: dict[str, str]
    pieces: list[Piece] = field(default_factory=list)
    documents: dict[str, dict[str, Any]] = field(default_factory=dict)
    exit_codes: dict[str, int] = field(default_factory=dict)
    spans: list[dict[str, Any]] = field(default_factory=list)
    dagster_failures: int = 0
    quoted: list[str] = field(default_factory=list)

    def process(self, name: str, variables: dict[str, str], *arguments: str) -> None:
        """Run a command in a process of its own."""
        ended = Rulegen(home=self.home, variables={**self.shared, **variables}).run(*arguments)
        self._note(name, ended.stdout, ended.stderr, ended.exit_code)

    def command(self, name: str, *arguments: str) -> None:
        """Run a command in this process."""
        ended = CliRunner().invoke(app, list(arguments))
        assert ended.exception is None or isinstance(ended.exception, SystemExit)
        self._note(name, ended.stdout, ended.stderr, ended.exit_code)

    def places_of(self, words: str) -> set[str]:
        """Return the places where the words were written."""
        return {piece.place for piece in self.pieces if words in piece.text}

    def _note(self, name: str, stdout: str, stderr: str, exit_code: int) -> None:
        assert "Traceback" not in stderr, stderr
        self.exit_codes[name] = exit_code
        self.pieces += [
            Piece(place=f"stdout {name.split(maxsplit=1)[0]}", text=stdout),
            Piece(place=f"stderr {name.split(maxsplit=1)[0]}", text=stderr),
        ]
        if stdout.startswith("{"):
            self.documents[name] = json.loads(stdout)


@pytest.fixture(scope="module")
def database(postgres_server: str, postgres_template: str) -> Iterator[str]:
    """A ledger behind a URL with a password, which this server does not even look at."""
    name = f"rulegen_planted_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(postgres_template))
        )
    url = sa.make_url(postgres_server).set(database=name, password=DATABASE_PASSWORD)
    yield url.render_as_string(hide_password=False)
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture(scope="module")
def written(database: str, tmp_path_factory: pytest.TempPathFactory) -> Written:
    root = tmp_path_factory.mktemp("planted")
    given, home = root / "given", root / "home"
    given.mkdir()
    policy, key_file, damaged = given / "policy.md", given / "key", given / "damaged.html"
    policy.write_text(POLICY, encoding="utf-8")
    key_file.write_text(KEY_IN_FILE, encoding="utf-8")
    damaged.write_bytes(f"<p>{RULED}</p>\xff\x00".encode("latin-1"))
    shared = {
        "RULEGEN_DATABASE_URL": database,
        "RULEGEN_WEBHOOK_URL": f"https://hooks.example/services/T0/{WEBHOOK}",
        "RULEGEN_TRACE_FILE": str(home / "trace.jsonl"),
        "RULEGEN_FIRST_RETRY_MS": "0",
        "RULEGEN_POLICY": LENIENT,
    }
    result = Written(home=home, shared=shared)
    scripted = write_script(home, {"generate_rules/rule-02": [{"do": "timeout", "then": "crash"}, "ok"]})
    with echoing_model() as (base_url, result.quoted), pytest.MonkeyPatch.context() as environment:
        for name, value in {**shared, **scripted, "RULEGEN_HOME": str(home)}.items():
            environment.setenv(name, value)
        _one_job_over_four_processes(result, scripted, policy)
        environment.setenv("RULEGEN_PROVIDER", "openai-compatible")
        environment.setenv("RULEGEN_MODEL", "echo")
        environment.setenv("RULEGEN_BASE_URL", base_url)
        environment.setenv("RULEGEN_API_KEY_FILE", str(key_file))
        result.command("echoed", "run", str(policy), "--key", "echoed", "--json")
        environment.delenv("RULEGEN_API_KEY_FILE")
        environment.setenv("RULEGEN_API_KEY", KEY)
        result.command("submitted", "submit", str(policy), "--key", "run")
        result.dagster_failures = _in_dagster(home)
        _looks(result, environment, damaged)
    result.pieces += of_postgres(database)
    result.pieces += of_files(home)
    trace = (home / "trace.jsonl").read_text(encoding="utf-8")
    result.spans = [json.loads(line) for line in trace.splitlines()]
    return result


def _one_job_over_four_processes(result: Written, scripted: dict[str, str], policy: Path) -> None:
    """Take a job from end to end; this process submits it, and the second dies in the middle of a call."""
    result.command("submit", "submit", str(policy), "--key", "whole", "--json")
    result.process("crashed", scripted, "run", str(policy), "--key", "whole", "--json")
    result.process("resumed", scripted, "run", str(policy), "--key", "whole", "--json")
    action_set = result.documents["resumed"]["action_set"]
    result.process("confirm", scripted, "confirm", "whole", "--action-set", action_set, "--publish", "--json")


def _in_dagster(home: Path) -> int:
    """Run what a sensor asks for of the last job, in an instance on disk; count the runs that failed."""
    definitions, failed = load_definitions(), 0
    (home / "dagster").mkdir()
    with dg.DagsterInstance.local_temp(str(home / "dagster")) as instance:
        for _ in ("extraction", "generation"):
            context = dg.build_sensor_context(
                instance=instance, definitions=definitions, resources={"runtime": RuntimeResource()}
            )
            asked = due_work(context)
            assert isinstance(asked, dg.SensorResult)
            for request in asked.run_requests or []:
                ended = definitions.resolve_job_def(str(request.job_name)).execute_in_process(
                    instance=instance,
                    partition_key=request.partition_key,
                    tags=dict(request.tags),
                    raise_on_error=False,
                )
                failed += not ended.success
    return failed


def _looks(result: Written, environment: pytest.MonkeyPatch, damaged: Path) -> None:
    """Look at everything, at ledgers that are not there, and at what is refused."""
    for job in ("echoed", "run"):
        result.command(f"status of {job}", "status", job, "--json")
        result.command(f"why of {job}", "why", job)
        result.command(f"events of {job}", "events", job)
    result.command("metrics", "metrics")
    result.command("review", "review", "whole", "--json")
    result.command("export", "export", "whole")
    for name, value in NO_COLLECTOR.items():
        environment.setenv(name, value)
    result.command("damaged", "submit", str(damaged), "--key", "damaged", "--json")
    environment.setenv("RULEGEN_DATABASE_URL", f"postgresql://postgres:{DATABASE_PASSWORD}@127.0.0.1:1/rulegen")
    result.command("unreachable", "status", "whole")
    environment.setenv("RULEGEN_DATABASE_URL", f"mysql://root:{DATABASE_PASSWORD}@127.0.0.1/rulegen")
    result.command("unusable", "status", "whole")
    environment.setenv("RULEGEN_MAX_TOKENS", KEY)
    result.command("invalid", "status", "whole")


def test_every_path_was_taken(written: Written) -> None:
    codes = {name: code for name, code in written.exit_codes.items() if code}

    assert written.documents["confirm"]["state"] == "completed"
    failed = ("echoed", "damaged", "unreachable", "unusable", "invalid")
    assert codes == {"crashed": 14, **dict.fromkeys(failed, 1)}
    assert written.dagster_failures == 1
    # What the endpoint answered with is what was looked for.
    assert all(any(planted in quoted for quoted in written.quoted) for planted in (KEY, KEY_IN_FILE, RULED))
    assert {RULED, UNRULED} <= {clause["text"] for clause in written.documents["review"]["clauses"]}


@pytest.mark.parametrize("secret", SECRETS)
def test_a_secret_is_written_nowhere(written: Written, secret: str) -> None:
    encoded = {base64.b64encode(secret.encode()).decode(), secret.encode().hex()}

    assert {place for form in {secret, *encoded} for place in written.places_of(form)} == set()


def test_settings_show_no_secret() -> None:
    url = f"postgresql://postgres:{DATABASE_PASSWORD}@127.0.0.1/rulegen"
    settings = Settings(database_url=url, api_key=SecretStr(KEY))

    shown = f"{settings!r} {settings} {settings.provider_settings!r}"

    assert [secret for secret in SECRETS if secret in shown] == []


@pytest.mark.parametrize(("sentence", "belongs"), [("$4,711", QUOTED), ("Quetzalcoatl", SPECIFICATION)])
def test_the_words_of_a_specification_stand_where_they_belong_and_nowhere_else(
    written: Written, sentence: str, belongs: set[str]
) -> None:
    found = written.places_of(sentence)

    assert found - belongs == set()
    assert found >= SPECIFICATION


def test_a_job_is_one_tree_over_the_processes_that_worked_on_it(written: Written) -> None:
    spans = [span for span in written.spans if span["attributes"].get("rulegen.job.id") == "default/whole"]
    (root,) = [s for s in spans if s["name"] == "rulegen.intake" and not s["attributes"]["rulegen.submission.existing"]]
    tree = [span for span in spans if span["context"]["trace_id"] == root["context"]["trace_id"]]
    ids = {span["context"]["span_id"] for span in tree}
    workers = {span["attributes"]["rulegen.worker"] for span in tree if "rulegen.worker" in span["attributes"]}

    (publication,) = [span for span in tree if span["name"] == "rulegen.publish"]
    assert publication["parent_id"] == root["context"]["span_id"]
    # The submission, the process that was lost, the one that went on, and the one that published.
    assert len(workers) == 4
    # What was under way in the lost process has never ended: of what had ended in it, the span above may be missing.
    cut_off = [span for span in tree if span["parent_id"] and span["parent_id"] not in ids]
    assert {span["attributes"]["rulegen.stage"] for span in cut_off} <= {"generate_rules"}
    accepted = [s for s in tree if s["name"].startswith("rulegen.attempt") and s["attributes"]["rulegen.outcome"]]
    assert {span["attributes"]["rulegen.outcome"] for span in accepted} == {"accepted"}


def test_an_attempt_after_the_crash_points_to_the_lost_one(written: Written) -> None:
    again = [
        span
        for span in written.spans
        if span["name"] == "rulegen.attempt generate_rules"
        and span["attributes"]["rulegen.job.id"] == "default/whole"
        and span["attributes"]["rulegen.attempt"] == 2
    ]
    places = {piece.text for piece in written.pieces if piece.place == "ledger attempt_trace.traceparent"}

    # The others that were under way may not have begun yet.
    links = [(span["attributes"]["rulegen.item"], link["context"]) for span in again for link in span["links"]]
    assert "rule-02" in {item for item, _ in links}
    for _, lost in links:
        assert any(place.startswith(f"00-{lost['trace_id'][2:]}-{lost['span_id'][2:]}-") for place in places)
