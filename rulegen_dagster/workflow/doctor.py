"""The doctor: checks that everything that a job needs works here."""

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from upath import UPath

from rulegen_dagster.domain.errors import RulegenError
from rulegen_dagster.domain.states import JobState
from rulegen_dagster.ledger.blobs import BlobStore
from rulegen_dagster.ledger.needed_decisions import retained_jobs
from rulegen_dagster.ledger.store import Ledger, open_ledger
from rulegen_dagster.providers.registry import open_provider
from rulegen_dagster.rules.packs import load_vocabulary
from rulegen_dagster.rules.selfcheck import evaluators_agree
from rulegen_dagster.settings import Settings
from rulegen_dagster.telemetry.opening import destination_of, open_tracing
from rulegen_dagster.workflow.quotas import refused_accounts


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check: its name, whether it passed, and what was found or what to do."""

    name: str
    passed: bool
    detail: str


def examine(settings: Settings) -> list[Check]:
    """Run every check; none of them raises. What they leave behind is an empty ledger and one small blob."""
    probes: dict[str, Callable[[Settings], str]] = {
        "python": _python,
        "dagster": _dagster,
        "sqlite": _sqlite,
        "ledger": _ledger,
        "quotas": _in_ledger(_quotas),
        "blobs": _blobs,
        "provider": _provider,
        "vocabulary": _vocabulary,
        "evaluators": _evaluators,
        "confinement": _confinement,
        "tracing": _tracing,
        "decisions": _in_ledger(_decisions),
    }
    return [_run(name, probe, settings) for name, probe in probes.items()]


def _run(name: str, probe: Callable[[Settings], str], settings: Settings) -> Check:
    try:
        return Check(name=name, passed=True, detail=probe(settings))
    except RulegenError as error:
        return Check(name=name, passed=False, detail=error.message)
    except (OSError, PackageNotFoundError, ImportError) as error:
        return Check(name=name, passed=False, detail=f"{type(error).__name__}: {error}")


def _python(_settings: Settings) -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}"


def _dagster(_settings: Settings) -> str:
    core, webserver = version("dagster"), version("dagster-webserver")
    if core != webserver:
        raise RulegenError(f"dagster {core} and dagster-webserver {webserver} differ; install from requirements.lock")
    return core


def _sqlite(_settings: Settings) -> str:
    if sqlite3.sqlite_version_info < (3, 35):
        raise RulegenError(f"SQLite {sqlite3.sqlite_version} has no RETURNING; 3.35 or newer is needed")
    return sqlite3.sqlite_version


def _ledger(settings: Settings) -> str:
    ledger = open_ledger(settings.ledger_url, settings.retry_policy)
    try:
        jobs = len(ledger.reads.jobs())
        return f"{ledger.database.dialect}, {jobs} jobs"
    finally:
        ledger.close()


def _in_ledger(look: Callable[[Ledger], str]) -> Callable[[Settings], str]:
    """Return the check that looks into the ledger, where there is one; why there is none, another check tells."""

    def check(settings: Settings) -> str:
        try:
            ledger = open_ledger(settings.ledger_url, settings.retry_policy)
        except RulegenError:
            return "not looked at, without a ledger"
        try:
            return look(ledger)
        finally:
            ledger.close()

    return check


def _decisions(ledger: Ledger) -> str:
    waiting = ledger.reads.jobs(states=(JobState.NEEDS_DECISION,))
    if not waiting:
        return "no job needs one"
    retained = len(retained_jobs(ledger.database))
    undecided = len(waiting) - retained
    return (
        f"needed by {undecided}, retained for another release {retained}, first {waiting[0].name}: 'rulegen list'"
        " shows the reasons, 'rulegen decide' takes the decisions"
    )


def _quotas(ledger: Ledger) -> str:
    found = ledger.quotas.list()
    if refused := refused_accounts(found):
        raise RulegenError("; ".join(refused))
    return f"{len(found)} scopes, no account is refused" if found else "none is set"


def _blobs(settings: Settings) -> str:
    store = BlobStore(UPath(settings.blobs_path))
    store.get(store.put(b"rulegen doctor\n"))
    return str(settings.blobs_path)


def _provider(settings: Settings) -> str:
    identity = open_provider(settings.provider, settings.provider_settings).identity
    return f"{identity.name} {identity.model_id}" + (f" ({identity.label})" if identity.label else "")


def _vocabulary(settings: Settings) -> str:
    vocabulary = load_vocabulary(settings.vocabulary)
    return f"{vocabulary.name}@{vocabulary.version}, {len(vocabulary.facts)} facts"


def _evaluators(_settings: Settings) -> str:
    return f"{evaluators_agree()} evaluations agree"


def _confinement(_settings: Settings) -> str:
    """Tell what keeps the processes that read files and execute rules from the network."""
    probe = [sys.executable, "-P", "-m", "rulegen_dagster.domain.confinement"]
    ended = subprocess.run(probe, capture_output=True, text=True, timeout=60, check=False, env={})  # noqa: S603
    if ended.returncode != 0:
        raise RulegenError(f"the network could not be closed to a process: it ended with {ended.returncode}")
    return ended.stdout.strip()


def _tracing(settings: Settings) -> str:
    """Tell where spans go; opened like this, they go there."""
    open_tracing(settings.trace_file, settings.trace_profile)
    return destination_of(settings.trace_file)
