"""`rulegen-scripted`: plays a script of successes and faults, for tests, demos and drills; not a language model.

A script is YAML:

    items:
      rule-03: [{do: error, kind: permanent}]          # every attempt
      rule-07: [{do: timeout}, ok]                     # attempt 1 times out, later ones succeed
      generate_tests/rule-09: [{do: malformed}, ok]    # one stage only
      "rule-1*": [{do: ok, delay_ms: 50}]              # a pattern over item keys
      rule-11: [{do: ok, draft: {rules: []}, repaired: ok}]   # a draft to be refused, and its repair
    default: [ok]
    journal: calls.log                                 # optional: one line for each call, beside the script
    call_cost: {overhead_tokens: 100, max_tokens: 400, price_in: 250000, price_out: 2000000}    # optional

The first entry of `items` that matches is played; its last step repeats. `ok` answers with the step's `draft`, or
with what the pattern extractor makes of the clause. A call that is a repair plays the step's `repaired`, where it has
one; its line in the journal ends with `repair:` and the codes and places that it was told. With a `call_cost` quotas
reckon with that much for each call (prices in micro-USD for a million tokens), as they do for a model.
"""

import asyncio
import fnmatch
import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from rulegen_dagster.domain.errors import (
    ProviderAmbiguousError,
    ProviderConfigError,
    ProviderPermanentError,
    ProviderRateLimitedError,
    ProviderRetryableError,
)
from rulegen_dagster.domain.quota import CallCost
from rulegen_dagster.providers.pattern import PatternProvider
from rulegen_dagster.providers.port import ProviderIdentity, ProviderReply, ProviderRequest

CRASH_EXIT_CODE = 14


def _shorthand(value: Any) -> Any:
    return {"do": value} if isinstance(value, str) else value


class Step(BaseModel):
    """What one call does: wait `delay_ms`, then answer, fail or end the process.

    `timeout` is a call whose outcome is unknown; with `then: crash` the process ends before anybody records it. An
    answer says what it used by `tokens_in`, `tokens_out` and `cost_micros`. `repaired` is the step for a call that is
    to mend a refused draft.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    do: Literal["ok", "timeout", "error", "malformed", "crash"]
    delay_ms: Annotated[int, Field(ge=0, le=3_600_000)] = 0
    kind: Literal["permanent", "retryable", "rate_limited", "ambiguous"] = "permanent"
    retry_after_ms: Annotated[int, Field(ge=0)] | None = None
    draft: dict[str, Any] | str | None = None
    then: Literal["crash"] | None = None
    exit_code: Annotated[int, Field(ge=1, le=125)] = CRASH_EXIT_CODE
    tokens_in: Annotated[int, Field(ge=0)] | None = None
    tokens_out: Annotated[int, Field(ge=0)] | None = None
    cost_micros: Annotated[int, Field(ge=0)] | None = None
    repaired: Annotated["Step", BeforeValidator(_shorthand)] | None = None


Steps = Annotated[tuple[Annotated[Step, BeforeValidator(_shorthand)], ...], Field(min_length=1)]


class Script(BaseModel):
    """A whole script; see the module's docstring for its shape."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    items: dict[str, Steps] = {}
    default: Steps = (Step(do="ok"),)
    journal: Path | None = None
    call_cost: CallCost | None = None

    def step(self, request: ProviderRequest) -> Step:
        """Return what the script says of one call."""
        names = (request.item_key, f"{request.stage}/{request.item_key}")
        found = self.default
        for pattern, steps in self.items.items():
            if any(fnmatch.fnmatchcase(name, pattern) for name in names):
                found = steps
                break
        step = found[min(request.attempt, len(found)) - 1]
        return step.repaired if request.repair and step.repaired is not None else step


def load_script(path: Path | None) -> Script:
    """Read a script; None is the script in which every call succeeds. Raises `ProviderConfigError`."""
    if path is None:
        return Script()
    try:
        script = Script.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")) or {})
    except OSError as error:
        raise ProviderConfigError(f"the script {path.name} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ProviderConfigError(f"the script {path.name} is not YAML: {type(error).__name__}") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ProviderConfigError(f"the script {path.name} is wrong at '{where}': {first['msg']}") from error
    if script.journal is None:
        return script
    # Processes with other current folders share the journal, so it counts from the script's own.
    return script.model_copy(update={"journal": path.absolute().parent / script.journal})


class ScriptedProvider:
    """Plays a script; see the module's docstring."""

    def __init__(self, script: Script) -> None:
        """Play the given script."""
        self._script = script
        self._pattern = PatternProvider()

    @property
    def identity(self) -> ProviderIdentity:
        """The provider's name; the script itself is no part of a job's behaviour, so that it can be mended."""
        return ProviderIdentity(
            name="rulegen-scripted",
            model_id="rulegen-scripted/1",
            is_language_model=False,
            call_cost=self._script.call_cost,
        )

    async def call(self, request: ProviderRequest) -> ProviderReply:
        """Play the step that the script has for this item and attempt."""
        step = self._script.step(request)
        self._write_journal(request, step)
        if step.delay_ms:
            await asyncio.sleep(step.delay_ms / 1000)
        if step.do == "crash" or step.then == "crash":
            os._exit(step.exit_code)
        match step.do:
            case "timeout":
                raise ProviderAmbiguousError("the scripted call timed out; it may be billed")
            case "error":
                raise _error(step)
            case "malformed":
                return self._reply('{"rules": [{"quote": ', step)
            case _:
                return await self._answer(step, request)

    async def _answer(self, step: Step, request: ProviderRequest) -> ProviderReply:
        if step.draft is None:
            reply = await self._pattern.call(request)
            return self._reply(reply.draft, step)
        draft = step.draft if isinstance(step.draft, str) else json.dumps(step.draft, ensure_ascii=False)
        return self._reply(draft, step)

    def _reply(self, draft: str, step: Step) -> ProviderReply:
        return ProviderReply(
            draft=draft,
            model_id=self.identity.model_id,
            tokens_in=step.tokens_in,
            tokens_out=step.tokens_out,
            cost_micros=step.cost_micros,
        )

    def _write_journal(self, request: ProviderRequest, step: Step) -> None:
        if self._script.journal is not None:
            told = ",".join(f"{refusal.code}@{refusal.path}" for refusal in request.repair)
            line = f"{request.job} {request.stage} {request.item_key} {request.attempt} {step.do} {os.getpid()}"
            line += f" repair:{told}\n" if told else "\n"
            # One write of one short line in append mode is atomic, so several processes may share a journal.
            with self._script.journal.open("a", encoding="utf-8") as journal:
                journal.write(line)


def _error(step: Step) -> Exception:
    match step.kind:
        case "retryable":
            return ProviderRetryableError("the script says: not available now")
        case "rate_limited":
            return ProviderRateLimitedError("the script says: too many requests", retry_after_ms=step.retry_after_ms)
        case "ambiguous":
            return ProviderAmbiguousError("the script says: the connection was lost")
        case _:
            return ProviderPermanentError("the script says: rejected for good")
