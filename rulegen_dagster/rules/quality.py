"""Quality of a ruleset: whether its tests bite, its rules agree, and every clause has an end; held against a policy."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from rulegen_dagster.domain.errors import Failure, RuleLanguageError
from rulegen_dagster.domain.policy import ValidationPolicy
from rulegen_dagster.domain.vocabulary import FactValue, Vocabulary
from rulegen_dagster.rules.clause_entries import ClauseEntry
from rulegen_dagster.rules.conflicts import ConflictReport, Finding, FindingKind, find_conflicts
from rulegen_dagster.rules.engine import CompiledRule, Outcome, compile_rule
from rulegen_dagster.rules.mutation import MutationResult, mutate
from rulegen_dagster.rules.proof import prove
from rulegen_dagster.rules.validation import ValidationReport, validate_ruleset


@dataclass(frozen=True, kw_only=True)
class Waiver:
    """A named person's word that a clause needs no rule, and why."""

    clause_ordinal: int
    actor: str
    reason: str


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class SurvivorRecord(_Frozen):
    """A wrong copy of a rule that every test lets pass; `witness` are facts at which it decides otherwise."""

    item_key: str
    rule_id: str
    change: str
    witness: dict[str, FactValue]
    expected: str
    found: str


class MutationRecord(_Frozen):
    """The mutants of all rules; `percent` is the share that the tests noticed, rounded down."""

    mutants: int
    killed: int
    equivalent: int
    survived: int
    percent: int
    survivors: tuple[SurvivorRecord, ...]


class FindingRecord(_Frozen):
    """What rules say against or past each other, with facts that show it and the words that they were made from."""

    kind: FindingKind
    is_conflict: bool
    rule_ids: tuple[str, ...]
    clause_ordinals: tuple[int, ...]
    quotes: tuple[str, ...]
    message: str
    witness: dict[str, FactValue]
    decided: tuple[str, ...]


class ProofRecord(_Frozen):
    """How the findings were decided for all facts, where the policy asked for it; `open_questions` were not."""

    engine: str
    questions: int
    open_questions: int
    added: int
    withdrawn: int


class WaiverRecord(_Frozen):
    """A waiver as the report shows it."""

    clause_ordinal: int
    actor: str
    reason: str


class CoverageRecord(_Frozen):
    """How the normative clauses end; `open_items` are those that the policy does not accept without a waiver."""

    normative: int
    with_rules: int
    without_rule: int
    waived: int
    open_items: tuple[str, ...]
    percent: int


class RulesetReport(ValidationReport):
    """The validation of a whole ruleset against a policy; `missing` is what the job lacks of what the policy asks.

    `pairs` counts the rules of one subject that were compared, `thinned` those whose fact grid had to leave values out.
    """

    policy: str
    mutation: MutationRecord
    findings: tuple[FindingRecord, ...]
    pairs: int
    thinned: tuple[tuple[str, str], ...]
    coverage: CoverageRecord
    waivers: tuple[WaiverRecord, ...]
    missing: tuple[Failure, ...]
    proof: ProofRecord | None = None

    @classmethod
    def not_executed(
        cls, failure: Failure, *, rules: int, tests: int, clauses: int, policy: ValidationPolicy
    ) -> "RulesetReport":
        """Return the report of a ruleset that could not be executed, and so shows nothing."""
        return cls(
            passed=False,
            rules=rules,
            tests=tests,
            tests_failed=0,
            evaluator_differences=0,
            clauses=(),
            abstained={},
            failures=(failure,),
            policy=policy.label,
            mutation=MutationRecord(mutants=0, killed=0, equivalent=0, survived=0, percent=0, survivors=()),
            findings=(),
            pairs=0,
            thinned=(),
            coverage=CoverageRecord(
                normative=clauses, with_rules=0, without_rule=0, waived=0, open_items=(), percent=0
            ),
            waivers=(),
            missing=(),
        )


def assess_ruleset(
    entries: Sequence[ClauseEntry], vocabulary: Vocabulary, policy: ValidationPolicy, waivers: Sequence[Waiver] = ()
) -> RulesetReport:
    """Validate the entries, and measure what the policy asks for; never raises for what it finds.

    A clause whose rules do not compile or whose tests fail has no mutants: its own failures say what is wrong. Raises
    `ImportError` where the policy asks for proofs and the prover is not installed.
    """
    base = validate_ruleset(entries, vocabulary)
    failing = {clause.item_key for clause in base.clauses if clause.failures}
    compiled = {entry.item_key: _compiled(entry, vocabulary) for entry in entries}
    results = {
        entry.item_key: mutate(compiled[entry.item_key], entry.suite.tests, vocabulary)
        for entry in entries
        if entry.rules.rules and entry.item_key not in failing
    }
    mutation = _mutation_record(results)
    rules = [rule for rules in compiled.values() for rule in rules]
    conflicts, proof = _decided_conflicts(rules, vocabulary, policy)
    findings = tuple(_finding_records(conflicts.findings, entries))
    coverage = _coverage_record(entries, policy, waivers)
    missing = tuple(_missing(policy, mutation, findings, coverage))
    return RulesetReport(
        **{name: getattr(base, name) for name in ValidationReport.model_fields if name != "passed"},
        passed=base.passed and not missing,
        policy=policy.label,
        mutation=mutation,
        findings=findings,
        pairs=conflicts.pairs,
        thinned=conflicts.thinned,
        coverage=coverage,
        waivers=tuple(
            WaiverRecord(clause_ordinal=item.clause_ordinal, actor=item.actor, reason=item.reason) for item in waivers
        ),
        missing=missing,
        proof=proof,
    )


def _decided_conflicts(
    rules: Sequence[CompiledRule], vocabulary: Vocabulary, policy: ValidationPolicy
) -> tuple[ConflictReport, ProofRecord | None]:
    report = find_conflicts(rules, vocabulary)
    if not policy.proofs:
        return report, None
    proof = prove(rules, vocabulary, report)
    return proof.report, ProofRecord(
        engine=proof.engine,
        questions=proof.questions,
        open_questions=proof.open_questions,
        added=proof.added,
        withdrawn=proof.withdrawn,
    )


def _compiled(entry: ClauseEntry, vocabulary: Vocabulary) -> list[CompiledRule]:
    compiled = []
    for rule in entry.rules.rules:
        try:
            compiled.append(compile_rule(rule, vocabulary))
        except RuleLanguageError:
            # Validation has reported it, with its place.
            continue
    return compiled


def _mutation_record(results: Mapping[str, MutationResult]) -> MutationRecord:
    mutants = sum(result.mutants for result in results.values())
    killed = sum(result.killed for result in results.values())
    equivalent = sum(result.equivalent for result in results.values())
    telling = mutants - equivalent
    survivors = tuple(
        SurvivorRecord(
            item_key=item_key,
            rule_id=survivor.rule_id,
            change=survivor.change,
            witness=dict(survivor.witness),
            expected=_decided(survivor.expected),
            found=_decided(survivor.found),
        )
        for item_key, result in results.items()
        for survivor in result.survivors
    )
    return MutationRecord(
        mutants=mutants,
        killed=killed,
        equivalent=equivalent,
        survived=telling - killed,
        percent=killed * 100 // telling if telling else 100,
        survivors=survivors,
    )


def _finding_records(findings: Sequence[Finding], entries: Sequence[ClauseEntry]) -> Iterator[FindingRecord]:
    sources = {rule.id: (entry.clause.ordinal, rule.source.quote) for entry in entries for rule in entry.rules.rules}
    for finding in findings:
        places = [sources[rule_id] for rule_id in finding.rule_ids]
        yield FindingRecord(
            kind=finding.kind,
            is_conflict=finding.kind.is_conflict,
            rule_ids=finding.rule_ids,
            clause_ordinals=tuple(ordinal for ordinal, _ in places),
            quotes=tuple(quote for _, quote in places),
            message=finding.message,
            witness=dict(finding.witness),
            decided=tuple(map(_decided, finding.outcomes)),
        )


def _coverage_record(
    entries: Sequence[ClauseEntry], policy: ValidationPolicy, waivers: Sequence[Waiver]
) -> CoverageRecord:
    waived = {waiver.clause_ordinal for waiver in waivers}
    without = [entry for entry in entries if not entry.rules.rules]
    open_items = tuple(
        entry.item_key
        for entry in without
        if entry.clause.ordinal not in waived
        and not (entry.rules.no_rule is not None and policy.accepts(entry.rules.no_rule.reason))
    )
    covered = len(entries) - len(open_items)
    return CoverageRecord(
        normative=len(entries),
        with_rules=len(entries) - len(without),
        without_rule=len(without),
        waived=sum(entry.clause.ordinal in waived for entry in without),
        open_items=open_items,
        percent=covered * 100 // len(entries) if entries else 100,
    )


def _missing(
    policy: ValidationPolicy,
    mutation: MutationRecord,
    findings: Sequence[FindingRecord],
    coverage: CoverageRecord,
) -> Iterator[Failure]:
    if mutation.percent < policy.minimum_mutation_percent:
        message = (
            f"the tests notice {mutation.percent} % of the mutants, {policy.label} asks for"
            f" {policy.minimum_mutation_percent} %; {mutation.survived} survive"
        )
        yield Failure(code="mutation_score", path="$.mutation", message=message)
    conflicts = sum(finding.is_conflict for finding in findings)
    if conflicts > policy.allowed_conflicts:
        pairs = "1 pair" if conflicts == 1 else f"{conflicts} pairs"
        message = f"{pairs} of rules in contradiction, {policy.label} allows {policy.allowed_conflicts}"
        yield Failure(code="conflicts", path="$.findings", message=message)
    if coverage.percent < policy.minimum_coverage_percent:
        named = ", ".join(coverage.open_items[:5]) + (" and more" if len(coverage.open_items) > 5 else "")
        message = (
            f"{coverage.percent} % of the clauses have an end, {policy.label} asks for"
            f" {policy.minimum_coverage_percent} %; a rule or a waiver is missing for {named}"
        )
        yield Failure(code="coverage", path="$.coverage", message=message)
    unwaived = coverage.without_rule - coverage.waived
    if coverage.normative and unwaived * 100 > policy.maximum_abstention_percent * coverage.normative:
        message = (
            f"{unwaived} of {coverage.normative} clauses have neither a rule nor a waiver, {policy.label} allows"
            f" {policy.maximum_abstention_percent} %"
        )
        yield Failure(code="abstentions", path="$.coverage", message=message)


def _decided(outcome: Outcome) -> str:
    if outcome.decision is None:
        return "no_match"
    return outcome.decision.value if outcome.cap_minor is None else f"{outcome.decision.value} {outcome.cap_minor}"
