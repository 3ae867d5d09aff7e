"""The shape of the code, read from its source: who imports whom, and what a module must not hold."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = "rulegen_dagster"
ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / PACKAGE).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))

RANKS = (
    frozenset({"domain"}),
    frozenset({"ledger", "providers", "specs", "rules", "telemetry"}),
    frozenset({"resources", "workflow"}),
    frozenset({"defs", "web", "cli"}),
)
RANK_OF = {part: rank for rank, parts in enumerate(RANKS) for part in parts}
# Dagster's resources are a thin coat over the use cases; the design draws both in one rank.
ALLOWED_WITHIN_A_RANK = {("resources", "workflow")}
# The composition roots: one for Dagster, one for `python -m`.
ROOTS = {"definitions", "__main__", "__init__"}
MAY_IMPORT_SETTINGS = {"workflow", "cli", "resources"}
MAX_LINES = 400


@dataclass(frozen=True, kw_only=True)
class Import:
    """One imported name, as a dotted path."""

    line: int
    name: str


def _imports(path: Path) -> Iterator[Import]:
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(line=node.lineno, name=alias.name)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield Import(line=node.lineno, name=f"{node.module}.{alias.name}")


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def _part(path: Path) -> str:
    """Return the subpackage of a module, or the module's own name where it lies in the package's root."""
    first, *rest = path.relative_to(ROOT / PACKAGE).parts
    return first if rest else first.removesuffix(".py")


def _inner(imported: Import) -> str | None:
    head, _, tail = imported.name.partition(".")
    return tail.split(".")[0] if head == PACKAGE and tail else None


def _told(path: Path, imported: Import) -> str:
    return f"{path.relative_to(ROOT)}:{imported.line} imports {imported.name}"


def _importers_of(*modules: str) -> set[str]:
    return {
        _part(path)
        for path in SOURCES
        for imported in _imports(path)
        if any(imported.name == module or imported.name.startswith(f"{module}.") for module in modules)
    }


def test_every_part_of_the_package_has_a_rank() -> None:
    parts = {_part(path) for path in SOURCES}

    assert parts - set(RANK_OF) - ROOTS - {"settings"} == set()


def test_imports_go_from_the_edge_to_the_domain_and_never_back() -> None:
    wrong = [
        _told(path, imported)
        for path in SOURCES
        for imported in _imports(path)
        if (there := _inner(imported)) in RANK_OF
        and (here := _part(path)) in RANK_OF
        and RANK_OF[here] < RANK_OF[there]
    ]

    assert wrong == []


def test_parts_of_one_rank_do_not_import_one_another() -> None:
    wrong = [
        _told(path, imported)
        for path in SOURCES
        for imported in _imports(path)
        if (there := _inner(imported)) in RANK_OF
        and (here := _part(path)) in RANK_OF
        and here != there
        and RANK_OF[here] == RANK_OF[there]
        and (here, there) not in ALLOWED_WITHIN_A_RANK
    ]

    assert wrong == []


def test_the_command_line_does_not_import_the_dagster_side() -> None:
    # `rulegen dev` and `rulegen resync` work on Dagster, and import it when they are called.
    wrong = [
        _told(path, imported)
        for path in SOURCES
        if _part(path) == "cli" and path.name not in {"dev.py", "resync.py"}
        for imported in _imports(path)
        if _inner(imported) in {"defs", "resources", "definitions"}
    ]

    assert wrong == []


@pytest.mark.acceptance
def test_a_command_waits_neither_for_dagster_nor_for_a_client_of_models_to_be_imported() -> None:
    heavy = ("dagster", "alembic", "pydantic_ai", "httpx2", "genai_prices")
    program = (
        f"import sys; from typer.main import get_command; from {PACKAGE}.cli.main import app;"
        " print(len(dict(get_command(app).commands)) > 20);"
        f" print([name for name in {heavy} if name in sys.modules])"
    )

    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)

    assert answer.stdout.split("\n") == ["True", "[]", ""]


@pytest.mark.acceptance
def test_a_command_does_not_wait_for_what_only_others_need(tmp_path: Path) -> None:
    of_others = (
        *(f"{PACKAGE}.{name}" for name in ("cli.run", "cli.chaos", "workflow.documents", "rules.validation")),
        *("markdown_it", "yaml", "upath", "http.server"),
    )
    program = (
        f"import sys; from {PACKAGE}.cli.main import app; app(['list'], standalone_mode=False);"
        f" print([name for name in {of_others} if name in sys.modules])"
    )

    # The first one makes the ledger, which takes more.
    _, second = (
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "RULEGEN_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        for _ in range(2)
    )

    assert second.stdout.splitlines()[-1] == "[]"


@pytest.mark.acceptance
def test_a_worker_that_resumes_loads_one_database_and_nothing_that_its_first_call_does_not_need(
    tmp_path: Path,
) -> None:
    slow = ("alembic", "sqlalchemy.dialects.postgresql", f"{PACKAGE}.domain.rule", f"{PACKAGE}.specs.markdown")
    program = (
        f"import sys; from {PACKAGE}.workflow.bench_worker import Settings, open_runtime;"
        f" open_runtime(Settings(home={str(tmp_path)!r}, database_url=None)).close();"
        f" print([name for name in {slow} if name in sys.modules])"
    )

    # The first one makes the ledger.
    first, second = (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
        for _ in range(2)
    )

    assert first.stdout.startswith("['alembic'")
    assert second.stdout.strip() == "[]"


def test_settings_are_read_by_the_use_cases_and_the_edges_alone() -> None:
    importers = {part for part in _importers_of(f"{PACKAGE}.settings") if part not in ROOTS}

    assert importers <= MAY_IMPORT_SETTINGS


def test_only_the_dagster_side_imports_dagster() -> None:
    assert _importers_of("dagster", "dagster_postgres", "dagster_webserver") <= {"definitions", "defs", "resources"}


def test_only_the_ledger_speaks_sql() -> None:
    assert _importers_of("sqlalchemy", "alembic", "psycopg", "psycopg2") == {"ledger"}


def test_only_the_providers_import_a_client_of_models() -> None:
    clients = ("pydantic_ai", "openai", "anthropic", "httpx2", "httpx", "genai_prices")

    assert _importers_of(*clients) == {"providers"}


def test_nothing_imports_private_parts_of_dagster() -> None:
    wrong = [
        _told(path, imported)
        for path in [*SOURCES, *TESTS]
        for imported in _imports(path)
        if imported.name.startswith("dagster.") and any(part.startswith("_") for part in imported.name.split("."))
    ]

    assert wrong == []


def test_dagster_can_read_the_annotations_of_its_assets_and_resources() -> None:
    wrong = [
        _told(path, imported)
        for path in SOURCES
        if _part(path) in {"defs", "resources"}
        for imported in _imports(path)
        if imported.name == "__future__.annotations"
    ]

    assert wrong == []


@pytest.mark.parametrize("part", ["domain", "rules", "specs"])
def test_time_and_chance_are_arguments_of_the_pure_parts(part: str) -> None:
    wrong = [
        _told(path, imported)
        for path in SOURCES
        if _part(path) == part
        for imported in _imports(path)
        if imported.name.split(".")[0] in {"time", "random", "secrets", "uuid"}
    ]
    clocks = [
        f"{path.relative_to(ROOT)}:{node.lineno} calls {node.func.attr}"
        for path in SOURCES
        if _part(path) == part
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"now", "utcnow", "today"}
    ]

    assert [*wrong, *clocks] == []


def test_modules_stay_small() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES}

    long = {str(path.relative_to(ROOT)): lines for path, lines in lengths.items() if lines > MAX_LINES}

    assert long == {}


def test_no_module_is_a_drawer_for_everything() -> None:
    names = {path.stem for path in [*SOURCES, *TESTS]} | {path.name for path in ROOT.rglob("tests/*") if path.is_dir()}

    assert names & {"utils", "util", "helpers", "helper", "common", "misc"} == set()


def test_tests_use_real_parts_and_no_mocks() -> None:
    wrong = [
        _told(path, imported)
        for path in TESTS
        for imported in _imports(path)
        if imported.name.startswith("unittest") or imported.name.split(".")[0] in {"mock", "pytest_mock"}
    ]

    assert wrong == []
