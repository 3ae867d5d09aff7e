"""Clause entries: what stands in a ruleset for one clause, as a value and as plain data for another process."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rulegen_dagster.domain.clause import Clause, ClauseKind, ClauseRole
from rulegen_dagster.domain.rule import RuleOutput, SuiteOutput


@dataclass(frozen=True, kw_only=True)
class ClauseEntry:
    """A clause with the accepted outputs of its two work items, and the other clauses that its rules quote."""

    item_key: str
    clause: Clause
    rules: RuleOutput
    suite: SuiteOutput
    cited: tuple[Clause, ...] = ()


def entry_as_json(entry: ClauseEntry) -> dict[str, Any]:
    """Return an entry as plain data, for another process."""
    return {
        "item_key": entry.item_key,
        "clause": asdict(entry.clause),
        "rules": entry.rules.model_dump(mode="json"),
        "suite": entry.suite.model_dump(mode="json"),
        "cited": [asdict(clause) for clause in entry.cited],
    }


def entry_from_json(row: Mapping[str, Any]) -> ClauseEntry:
    """Return the entry that `entry_as_json` made plain."""
    return ClauseEntry(
        item_key=row["item_key"],
        clause=_clause_from_json(row["clause"]),
        rules=RuleOutput.model_validate(row["rules"]),
        suite=SuiteOutput.model_validate(row["suite"]),
        cited=tuple(map(_clause_from_json, row["cited"])),
    )


def _clause_from_json(row: Mapping[str, Any]) -> Clause:
    return Clause(
        **{
            **row,
            "kind": ClauseKind(row["kind"]),
            "role": ClauseRole(row["role"]),
            "heading_path": tuple(row["heading_path"]),
            "table_header": tuple(row["table_header"]),
        }
    )
