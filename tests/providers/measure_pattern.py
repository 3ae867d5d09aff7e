"""Measures the pattern extractor on policies that are beside the project: rules made, and abstentions by reason.

    python -m tests.providers.measure_pattern [FOLDER] [--sample N] [--seed N]

It is no test: it says what the extractor does, not what it has to do. Without the folder it says so and ends with 0.
With --sample it draws normative clauses of all files and prints each with what was made of it, to be judged by hand.
"""

import argparse
import asyncio
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rulegen_dagster.domain.clause import Clause, ContextEntry
from rulegen_dagster.domain.rule import Rule
from rulegen_dagster.domain.states import Stage
from rulegen_dagster.domain.vocabulary import Vocabulary
from rulegen_dagster.providers.pattern import PatternProvider
from rulegen_dagster.providers.port import ProviderRequest
from rulegen_dagster.rules.clause_entries import ClauseEntry
from rulegen_dagster.rules.drafts import read_rules_draft, read_tests_draft
from rulegen_dagster.rules.packs import load_vocabulary
from rulegen_dagster.rules.validation import validate_ruleset
from rulegen_dagster.specs.context import ContextIndex
from rulegen_dagster.specs.document import read_document

SPECS = Path(__file__).parents[2].parent / "shared" / "specs"
PACKS = {
    "18f_leave.en.md": "leave",
    "18f_procurement_over_10000.en.md": "expense",
    "18f_purchase_requests.en.md": "expense",
    "18f_travel_guide_faq.en.md": "travel",
    "de_arv_1991.de.md": "travel",
    "de_brkg_2005.de.md": "travel",
    "de_tgv_1986.de.md": "travel",
    "fr_betagouv_sgmap.fr.md": "travel",
    "gitlab_expenses.ja.md": "expense",
    "openjs_community_fund_policy.en.md": "travel",
    "openjs_project_directed_funding.en.md": "expense",
    "us_ftr_301-11_mie.en.md": "travel",
}
"""The pack that a job for each text would name."""

SAMPLED = (".en.md", ".de.md")
MAX_BYTES = 10**6


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the extractor makes of one clause: an accepted rule, or the reason why there is none."""

    file: str
    clause: Clause
    rule: Rule | None
    reason: str
    detail: str = ""


def answers_for(path: Path, provider: PatternProvider) -> list[Answer]:
    """Return the answer for each normative clause; a refused draft or a failed test ends it with an error."""
    vocabulary = load_vocabulary(PACKS[path.name])
    parsed = read_document(path.read_bytes(), path.name, max_bytes=MAX_BYTES)
    index = ContextIndex(parsed)
    asked = (_Asked(provider, vocabulary, clause, index.context_of(clause)) for clause in parsed.normative)
    return [_answer(path.name, one) for one in asked]


class _Asked(NamedTuple):
    provider: PatternProvider
    vocabulary: Vocabulary
    clause: Clause
    context: tuple[ContextEntry, ...]


def _answer(file: str, asked: _Asked) -> Answer:
    clause, vocabulary = asked.clause, asked.vocabulary
    draft = _draft(asked, Stage.GENERATE_RULES)
    output = read_rules_draft(draft, clause=clause, item_key="rule-01", vocabulary=vocabulary, context=asked.context)
    if output.no_rule:
        return Answer(file=file, clause=clause, rule=None, reason=output.no_rule.reason, detail=output.no_rule.detail)
    suite = read_tests_draft(_draft(asked, Stage.GENERATE_TESTS), vocabulary=vocabulary)
    entry = ClauseEntry(item_key="rule-01", clause=clause, rules=output, suite=suite)
    report = validate_ruleset([entry], vocabulary)
    if not report.passed:
        raise AssertionError(f"{file}: clause {clause.ordinal} fails validation: {report.clauses}")
    return Answer(file=file, clause=clause, rule=output.rules[0], reason="rule")


def _draft(asked: _Asked, stage: Stage) -> str:
    request = ProviderRequest(
        stage=stage,
        job="measure",
        item_key="rule-01",
        attempt=1,
        operation_key="measure",
        timeout_ms=1000,
        clause=asked.clause,
        context=asked.context,
        vocabulary=asked.vocabulary,
    )
    return asyncio.run(asked.provider.call(request)).draft


def table(answers: list[Answer]) -> str:
    """Return rules and abstentions by reason for each file, as a Markdown table."""
    files = list(dict.fromkeys(answer.file for answer in answers))
    reasons = [reason for reason, _ in Counter(answer.reason for answer in answers).most_common() if reason != "rule"]
    rows = ["| file | clauses | rules | " + " | ".join(reasons) + " |", "|---|" + "---:|" * (len(reasons) + 2)]
    for file in [*files, "all"]:
        counts = Counter(answer.reason for answer in answers if file in (answer.file, "all"))
        cells = [sum(counts.values()), counts["rule"], *(counts[reason] for reason in reasons)]
        rows.append(f"| {file} | " + " | ".join(map(str, cells)) + " |")
    return "\n".join(rows)


def words_of(answer: Answer) -> str:
    """Return a clause with what was made of it, for a person to judge."""
    clause, rule = answer.clause, answer.rule
    lead = f"[{' '.join(clause.lead.split())}] " if clause.lead else ""
    header = f"[{' | '.join(clause.table_header)}] " if clause.table_header else ""
    if rule is None:
        made = f"no rule: {answer.reason} {answer.detail}"
    else:
        unless = "".join(f" unless {item.condition}" for item in rule.unless)
        made = f"{rule.modality} {rule.decision} if {rule.applies_when}{unless}, cap {rule.cap}"
    return f"{answer.file} {clause.ordinal}\n  {lead}{header}{' '.join(clause.text.split())}\n  => {made}"


def main() -> None:
    """Print the table, and a sample where one is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=SPECS)
    parser.add_argument("--sample", type=int, default=0, help="how many clauses of English and German files to draw")
    parser.add_argument("--seed", type=int, default=20261130)
    parser.add_argument("--rules", action="store_true", help="print each rule that was made")
    options = parser.parse_args()
    if not options.folder.is_dir():
        print(f"nothing to measure: there is no folder {options.folder}; give one that holds the specifications")
        return
    provider = PatternProvider()
    paths = sorted(path for path in options.folder.iterdir() if path.name in PACKS)
    answers = [answer for path in paths for answer in answers_for(path, provider)]
    print(table(answers))
    if options.rules:
        print(*(words_of(answer) for answer in answers if answer.rule), sep="\n")
    if options.sample:
        pool = [answer for answer in answers if answer.file.endswith(SAMPLED)]
        drawn = random.Random(options.seed).sample(pool, min(options.sample, len(pool)))  # noqa: S311
        print(*(f"{number}. {words_of(answer)}" for number, answer in enumerate(drawn, start=1)), sep="\n")


if __name__ == "__main__":
    main()
