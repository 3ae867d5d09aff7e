"""Eighteen rules written by hand from a German regulation, drafted by the script, go through the whole pipeline.

The hand-written set knows rules and exceptions with quotes, and no drafts. What a draft needs beside them is made here:
each parameter takes the rule's quote, a quote of another clause names that clause, and the few quotes that cut a
sentence in two are widened to it, since a draft may not do that.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from rulegen_dagster.domain.clause import Clause, ParsedSpec
from rulegen_dagster.domain.errors import DraftRejectedError
from rulegen_dagster.domain.rule import RuleOutput, Source
from rulegen_dagster.domain.states import JobState, Stage
from rulegen_dagster.domain.vocabulary import Vocabulary
from rulegen_dagster.ledger.claims import Scope
from rulegen_dagster.rules.clause_entries import ClauseEntry
from rulegen_dagster.rules.conflicts import FindingKind
from rulegen_dagster.rules.drafts import read_rules_draft, read_tests_draft
from rulegen_dagster.rules.grounding import ground_sentence
from rulegen_dagster.rules.packs import parse_vocabulary
from rulegen_dagster.rules.quality import RulesetReport
from rulegen_dagster.rules.validation import validate_ruleset
from rulegen_dagster.specs.context import ContextIndex
from rulegen_dagster.specs.document import read_document
from rulegen_dagster.workflow.bundle import accepted_report
from rulegen_dagster.workflow.drive import generate
from rulegen_dagster.workflow.runtime import Runtime
from tests.conftest import SHARED
from tests.workflow.conftest import run_stage, scripted, submit

Draft = dict[str, Any]
GOLD = SHARED / "gold" / "brkg.gold.json"
TEXT = SHARED / "specs" / "de_brkg_2005.de.md"
pytestmark = pytest.mark.skipif(
    not (GOLD.is_file() and TEXT.is_file()),
    reason="the hand-written rules and their regulation lie beside the checkout (../shared), and are not there",
)

FROM_THE_SENTENCE_BEFORE = {("BR-12", "rate"): "20 Cent je Kilometer"}
"""Parameters for which the hand-written set names no words: the clause takes them from the one that it points at."""

WIDENED = {"BR-17 unless 2", "BR-18"}
"""Quotes that begin or end within a sentence: one leaves the condition out, one the end of its item."""


class Gold:
    """The hand-written rules as drafts for the clauses of the parsed regulation."""

    def __init__(self, raw: dict[str, Any], parsed: ParsedSpec) -> None:
        self.rules: dict[str, dict[str, Any]] = {rule["id"]: rule for rule in raw["rules"]}
        self.parsed = parsed
        self.widened: set[str] = set()
        self._index = ContextIndex(parsed)

    def clause_at(self, offset: int) -> Clause:
        return next(clause for clause in self.parsed.clauses if clause.start <= offset < clause.end)

    def clause_of(self, name: str) -> Clause:
        return self.clause_at(self.rules[name]["source"]["start"])

    def rules_draft(self, name: str) -> Draft:
        raw, clause = self.rules[name], self.clause_of(name)
        quote = self._whole(raw["source"]["quote"], clause, name)
        fields = {key: raw[key] for key in ("modality", "subject", "decision", "applies_when", "priority")}
        unless = []
        for number, item in enumerate(raw["unless"]):
            where = self.clause_at(item["source"]["start"])
            elsewhere = where.ordinal != clause.ordinal
            words = item["source"]["quote"]
            words = self._whole(words, where, f"{name} unless {number}") if elsewhere else words
            place = {"clause_ordinal": where.ordinal} if elsewhere else {}
            unless.append({"condition": item["condition"], "quote": words, **place})
        params = {key: param | self._stated(name, key, quote) for key, param in raw["params"].items()}
        return {**fields, "quote": quote, "cap": raw.get("cap"), "params": params, "unless": unless}

    def tests_draft(self, name: str) -> Draft:
        return {"tests": self.rules[name]["tests"]}

    def read(self, name: str, draft: Draft, vocabulary: Vocabulary) -> RuleOutput:
        clause = self.clause_of(name)
        raw = json.dumps({"rules": [draft]})
        context = self._index.context_of(clause)
        return read_rules_draft(raw, clause=clause, item_key=name.lower(), vocabulary=vocabulary, context=context)

    def entry(self, name: str, output: RuleOutput, vocabulary: Vocabulary) -> ClauseEntry:
        suite = read_tests_draft(json.dumps(self.tests_draft(name)), vocabulary=vocabulary)
        cited = (self.parsed.clauses[ordinal] for rule in output.rules for ordinal in rule.cited)
        return ClauseEntry(
            item_key=name.lower(), clause=self.clause_of(name), rules=output, suite=suite, cited=tuple(cited)
        )

    def _stated(self, name: str, key: str, quote: str) -> Draft:
        words = FROM_THE_SENTENCE_BEFORE.get((name, key))
        if words is None:
            return {"quote": quote}
        before = self.parsed.clauses[self.clause_of(name).ordinal - 1]
        assert words in before.text
        return {"quote": before.text, "clause_ordinal": before.ordinal}

    def _whole(self, quote: str, clause: Clause, name: str) -> str:
        if isinstance(ground_sentence(quote, clause), Source):
            return quote
        self.widened.add(name)
        return clause.text


@pytest.fixture(scope="module")
def gold() -> Gold:
    parsed = read_document(TEXT.read_bytes(), TEXT.name, max_bytes=10**6)
    return Gold(json.loads(GOLD.read_text(encoding="utf-8")), parsed)


@pytest.fixture(scope="module")
def pack() -> str:
    """Return the hand-written set's facts as the text of a vocabulary pack (JSON is YAML)."""
    raw = json.loads(GOLD.read_text(encoding="utf-8"))
    facts = {}
    for name, fact in raw["facts"].items():
        facts[name] = dict(fact)
        if fact["type"] == "enum":
            facts[name] |= {"values": {value: [] for value in fact["values"]}, "default": fact["values"][0]}
    subjects = sorted({rule["subject"] for rule in raw["rules"]})
    return json.dumps({"name": "brkg", "version": 1, "description": "travel", "subjects": subjects, "facts": facts})


@pytest.fixture(scope="module")
def vocabulary(pack: str) -> Vocabulary:
    return parse_vocabulary(pack, name="brkg")


def test_all_rules_and_tests_pass_the_pipeline_and_the_two_meal_caps_are_its_one_conflict(
    local_runtime: Runtime, gold: Gold, pack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rulegen_dagster.rules.packs.pack_text", lambda *_arguments, **_names: pack)
    ordinals = [clause.ordinal for clause in gold.parsed.normative]
    keys = {name: f"rule-{ordinals.index(gold.clause_of(name).ordinal) + 1:02d}" for name in gold.rules}
    script: dict[str, Any] = {}
    for name, key in keys.items():
        script[f"generate_rules/{key}"] = [{"do": "ok", "draft": {"rules": [gold.rules_draft(name)]}}]
        script[f"generate_tests/{key}"] = [{"do": "ok", "draft": gold.tests_draft(name)}]
    # After the others: a script is sorted by name, and its first match is played.
    script["generate_rules/rule-??"] = [{"do": "ok", "draft": {"no_rule": {"reason": "not_written_by_hand"}}}]
    runtime = scripted(local_runtime, script)
    settings = runtime.settings.model_copy(update={"policy": "default", "vocabulary": "brkg"})
    runtime = type(runtime)(**{**vars(runtime), "settings": settings})

    job = submit(runtime, TEXT.read_bytes(), file_name=TEXT.name)
    run_stage(runtime, job, Stage.PARSE)
    run_stage(runtime, job, Stage.RETRIEVE)
    for stage in (Stage.GENERATE_RULES, Stage.GENERATE_TESTS):
        generate(runtime, Scope(stages=(stage,), job_ids=(job.job_id,)), observe=lambda _outcome: None)
    run_stage(runtime, job, Stage.VALIDATE)

    report = RulesetReport.model_validate_json(accepted_report(runtime, job.job_id) or "")
    assert gold.widened == WIDENED
    assert (report.rules, report.tests, report.tests_failed, report.evaluator_differences) == (18, 75, 0, 0)
    assert [clause.failures for clause in report.clauses if clause.failures] == []
    assert (report.mutation.percent, report.mutation.survivors) == (100, ())
    assert report.mutation.killed == report.mutation.mutants - report.mutation.equivalent > 100
    (conflict,) = [finding for finding in report.findings if finding.is_conflict]
    assert (conflict.kind, conflict.rule_ids) == (FindingKind.TWO_CAPS, (keys["BR-16"], keys["BR-18"]))
    assert conflict.witness["stay.day_number"] == 15
    assert conflict.decided[0] != conflict.decided[1]
    # The conflict is true, and the default policy allows none: a person has to look.
    assert [failure.code for failure in report.missing] == ["conflicts"]
    assert runtime.ledger.reads.job_by_id(job.job_id).state is JobState.VALIDATING


def _changed(draft: Draft, **changes: Any) -> Draft:
    return draft | changes


def _swapped(text: str, *pairs: tuple[str, str]) -> str | None:
    for old, new in pairs:
        if old in text:
            return text.replace(old, new, 1)
    return None


def _mutants(draft: Draft) -> Iterator[tuple[str, Draft]]:
    """Yield copies of a rule that are wrong in its threshold, operator, decision or unit, as far as it has one."""
    condition = draft["applies_when"]
    for name, param in draft["params"].items():
        field = "minor" if param["type"] == "money" else "value"
        for what, value in (("threshold", param[field] + 1), ("unit", param[field] * 60)):
            yield f"{what} of {name}", _changed(draft, params=draft["params"] | {name: param | {field: value}})
        if param["type"] == "money":
            other = draft["params"] | {name: param | {"currency": "USD"}}
            yield f"currency of {name}", _changed(draft, params=other)
        elif param["unit"] == "minute":
            other = draft["params"] | {name: param | {"value": 2}}
            yield f"hours as minutes of {name}", _changed(draft, params=other)
    operator = _swapped(condition, (">=", "<"), ("<=", ">"), (" > ", " <= "), ("==", "!="), ("&&", "||"), ("||", "&&"))
    yield "operator", _changed(draft, applies_when=operator or f"!({condition})")
    decision = "flag" if draft["decision"] != "flag" else "allow"
    yield "decision", _changed(draft, decision=decision, cap=None)
    for number, item in enumerate(draft["unless"]):
        rest = [other for other in draft["unless"] if other is not item]
        yield f"without exception {number}", _changed(draft, unless=rest)


def test_a_copy_of_each_rule_with_a_wrong_threshold_operator_decision_or_unit_is_caught(
    gold: Gold, vocabulary: Vocabulary
) -> None:
    right = {
        name: gold.entry(name, gold.read(name, gold.rules_draft(name), vocabulary), vocabulary) for name in gold.rules
    }
    assert validate_ruleset(list(right.values()), vocabulary).passed
    missed, tried = [], 0
    for name in gold.rules:
        for what, mutant in _mutants(gold.rules_draft(name)):
            tried += 1
            try:
                output = gold.read(name, mutant, vocabulary)
            except DraftRejectedError:
                continue
            wrong = gold.entry(name, output, vocabulary)
            # The clause's own tests first; then the whole set, which has one currency.
            alone = validate_ruleset([wrong], vocabulary).passed
            if alone and validate_ruleset(list((right | {name: wrong}).values()), vocabulary).passed:
                missed.append(f"{name}: {what}")

    assert missed == []
    assert tried >= 75


def test_a_draft_that_quotes_a_part_of_the_sentence_is_refused(gold: Gold, vocabulary: Vocabulary) -> None:
    # The hand-written quote begins behind "Dauert der … Aufenthalt … länger als 14 Tage,".
    draft = gold.rules_draft("BR-18") | {"quote": gold.rules["BR-18"]["source"]["quote"]}

    with pytest.raises(DraftRejectedError) as refused:
        gold.read("BR-18", draft, vocabulary)

    assert [failure.code for failure in refused.value.failures] == ["quote_not_sentence_aligned"]
