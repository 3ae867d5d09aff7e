"""Frozen behaviours: what a new job freezes, and what a job froze read back, from the ledger and not from the files."""

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from rulegen_dagster.domain.behaviour import (
    PIPELINE_REVISION,
    RETRIEVAL_INDEX,
    Behaviour,
    ContextPolicy,
    FrozenBehaviour,
    Incompatibility,
    ModelDrift,
    Pack,
    PackKind,
    Part,
    prompt_digest,
    prompt_label,
)
from rulegen_dagster.domain.canonical import canonical_json
from rulegen_dagster.domain.errors import BehaviourChangedError, PolicyError, ProviderConfigError, VocabularyError
from rulegen_dagster.domain.policy import ValidationPolicy
from rulegen_dagster.domain.prompt import Prompt
from rulegen_dagster.domain.rule import OUTPUT_SCHEMA_VERSION, READABLE_OUTPUT_SCHEMAS
from rulegen_dagster.domain.states import Stage
from rulegen_dagster.domain.vocabulary import Vocabulary
from rulegen_dagster.ledger.reads import JobRecord
from rulegen_dagster.providers.port import Provider
from rulegen_dagster.rules.packs import load_vocabulary, restore_vocabulary
from rulegen_dagster.rules.policies import load_policy, restore_policy
from rulegen_dagster.workflow.runtime import Runtime

_R = TypeVar("_R")
_SHOWN_DIGITS = 12


class HasBehaviour(Protocol):
    """A job, or whatever else names a stored behaviour: its content and its digest."""

    @property
    def behaviour(self) -> Mapping[str, Any]:
        """The behaviour as it is stored."""
        ...

    @property
    def behaviour_digest(self) -> str:
        """The SHA-256 that names it."""
        ...


class IncompatibleError(BehaviourChangedError):
    """Raised where a release cannot make a job's outputs in the way that the job froze; `found` says which part."""

    def __init__(self, job: JobRecord, found: Incompatibility) -> None:
        """Say which job and which part."""
        super().__init__(f"the job {job.name} needs a decision: {found.text}; 'rulegen decide {job.name} …' takes it")
        self.found = found


def freeze(runtime: Runtime, vocabulary_name: str | None = None) -> FrozenBehaviour:
    """Return what a job submitted now would freeze, with a vocabulary of its own where it names one.

    Raises `ProviderConfigError`, `VocabularyError` or `PolicyError` where the settings name what is not there.
    """
    settings = runtime.settings
    return _frozen(
        runtime.provider(settings.provider),
        load_vocabulary(vocabulary_name or settings.vocabulary),
        load_policy(settings.policy),
        context_policy=settings.context_policy.value,
        model_drift=settings.model_drift.value,
    )


def migration_of(runtime: Runtime, job: JobRecord) -> FrozenBehaviour:
    """Return what a job would take on from this release: what it chose, in the versions that are here now.

    Provider, vocabulary and policy keep their names where this release has them; else the settings name others.
    """
    chosen, settings = job.behaviour, runtime.settings
    provider = chosen["provider"] if runtime.has_provider(chosen["provider"]) else settings.provider
    try:
        vocabulary = load_vocabulary(chosen["vocabulary"].split("@")[0])
    except VocabularyError:
        vocabulary = load_vocabulary(settings.vocabulary)
    try:
        policy = load_policy(_policy_name(chosen))
    except PolicyError:
        policy = load_policy(settings.policy)
    return _frozen(
        runtime.provider(provider),
        vocabulary,
        policy,
        context_policy=chosen.get("context_policy", ContextPolicy.REQUIRED.value),
        model_drift=chosen.get("model_drift", ModelDrift.RECORD.value),
    )


def can_read(output_schema: str) -> bool:
    """Return whether this release reads the accepted outputs of a schema as they are."""
    return output_schema in {OUTPUT_SCHEMA_VERSION, *READABLE_OUTPUT_SCHEMAS}


def unreadable_stages(job: JobRecord, behaviour: Behaviour) -> tuple[Stage, ...]:
    """Return the stages whose outputs, as a job has them, cannot be read under another behaviour."""
    if job.behaviour["pipeline_revision"] != behaviour.pipeline_revision:
        return tuple(Stage)
    is_readable = can_read(job.behaviour["output_schema"])
    return () if is_readable else (Stage.GENERATE_RULES, Stage.GENERATE_TESTS)


def _frozen(
    provider: Provider,
    vocabulary: Vocabulary,
    policy: ValidationPolicy,
    *,
    context_policy: str,
    model_drift: str,
) -> FrozenBehaviour:
    # Only whoever makes or migrates jobs needs it, and it takes a while to import.
    from importlib.metadata import version  # noqa: PLC0415

    identity = provider.identity
    prompts = tuple(prompt for _, prompt in sorted(identity.prompts.items()))
    kept = Pack(kind=PackKind.VOCABULARY, content=canonical_json(vocabulary.model_dump(mode="json")))
    held_to = Pack(kind=PackKind.VALIDATION_POLICY, content=canonical_json(policy.model_dump(mode="json")))
    behaviour = Behaviour(
        application_release=version("rulegen-dagster"),
        pipeline_revision=PIPELINE_REVISION,
        provider=identity.name,
        model_id=identity.model_id,
        provider_settings=dict(identity.settings),
        prompt_versions={prompt.task: prompt_label(prompt) for prompt in prompts},
        output_schema=OUTPUT_SCHEMA_VERSION,
        vocabulary=f"{vocabulary.name}@{vocabulary.version}",
        vocabulary_digest=kept.digest,
        retrieval_index=RETRIEVAL_INDEX,
        context_policy=context_policy,
        model_drift=model_drift,
        validation_policy=policy.label,
        validation_policy_digest=held_to.digest,
    )
    return FrozenBehaviour(behaviour=behaviour, prompts=prompts, packs=(kept, held_to))


def frozen_vocabulary(runtime: Runtime, job: HasBehaviour) -> Vocabulary | Incompatibility:
    """Return the vocabulary that a job froze; what an older release froze without its text has to be here unchanged."""
    frozen = job.behaviour
    digest = frozen["vocabulary_digest"]
    was = f"{frozen['vocabulary']} ({digest[:_SHOWN_DIGITS]})"
    try:
        content = runtime.ledger.behaviours.packs([digest]).get(digest)
        if content is not None:
            return restore_vocabulary(content)
        vocabulary = load_vocabulary(frozen["vocabulary"].split("@")[0])
    except VocabularyError:
        return Incompatibility(part=Part.VOCABULARY, was=was, now=None)
    now = Pack(kind=PackKind.VOCABULARY, content=canonical_json(vocabulary.model_dump(mode="json"))).digest
    if now != digest:
        has = f"{vocabulary.name}@{vocabulary.version} ({now[:_SHOWN_DIGITS]})"
        return Incompatibility(part=Part.VOCABULARY, was=was, now=has)
    return vocabulary


def frozen_policy(runtime: Runtime, job: HasBehaviour) -> ValidationPolicy | Incompatibility:
    """Return the validation policy that a job froze; see `frozen_vocabulary`."""
    frozen = job.behaviour
    # Jobs of the first release froze a name alone.
    digest = frozen.get("validation_policy_digest")
    was = f"{frozen['validation_policy']}" + (f" ({digest[:_SHOWN_DIGITS]})" if digest else "")
    try:
        content = runtime.ledger.behaviours.packs([digest]).get(digest) if digest else None
        if content is not None:
            return restore_policy(content)
        policy = load_policy(_policy_name(frozen))
    except PolicyError:
        return Incompatibility(part=Part.VALIDATION_POLICY, was=was, now=None)
    now = Pack(kind=PackKind.VALIDATION_POLICY, content=canonical_json(policy.model_dump(mode="json"))).digest
    if digest is not None and now != digest:
        has = f"{policy.label} ({now[:_SHOWN_DIGITS]})"
        return Incompatibility(part=Part.VALIDATION_POLICY, was=was, now=has)
    return policy


def frozen_prompts(runtime: Runtime, job: HasBehaviour) -> dict[str, Prompt] | Incompatibility:
    """Return the prompts that a job froze, by task; a text that was removed is taken from here where it is the same."""
    named: Mapping[str, str] = job.behaviour.get("prompt_versions", {})
    prompts = runtime.ledger.behaviours.prompts(job.behaviour_digest) if named else {}
    if named.keys() - prompts.keys():
        from rulegen_dagster.providers.prompts import load_prompt  # noqa: PLC0415
    for task, label in named.items():
        if task not in prompts:
            try:
                prompts[task] = load_prompt(task, label.partition("@")[0])
            except ProviderConfigError:
                return Incompatibility(part=Part.PROMPT_VERSIONS, was=f"{task} {label}", now=None)
        if prompts[task].digest != prompt_digest(label):
            now = f"{task} {prompt_label(prompts[task])}"
            return Incompatibility(part=Part.PROMPT_VERSIONS, was=f"{task} {label}", now=now)
    return prompts


def frozen_provider(runtime: Runtime, job: HasBehaviour) -> Provider | Incompatibility:
    """Open the provider that a job froze, with the model, settings and prompts that it froze.

    Raises `ProviderConfigError` where this process has what it takes, but is set up wrongly (no key, a broken script).
    """
    frozen = job.behaviour
    if not runtime.has_provider(frozen["provider"]):
        return Incompatibility(part=Part.PROVIDER, was=frozen["provider"], now=None)
    prompts = frozen_prompts(runtime, job)
    if isinstance(prompts, Incompatibility):
        return prompts
    provider = runtime.provider(frozen["provider"], prompts, frozen)
    identity = provider.identity
    if identity.model_id != frozen["model_id"]:
        return Incompatibility(part=Part.MODEL_ID, was=frozen["model_id"], now=identity.model_id)
    was, now = frozen.get("provider_settings", {}), dict(identity.settings)
    if was != now:
        differ = sorted(name for name in {*was, *now} if was.get(name) != now.get(name))
        told = (", ".join(f"{name} {settings.get(name)}" for name in differ) for settings in (was, now))
        return Incompatibility(part=Part.PROVIDER_SETTINGS, was=next(told), now=next(told))
    return provider


def honoured(job: JobRecord, found: _R | Incompatibility) -> _R:
    """Return what was frozen, where this release has it. Raises `IncompatibleError`."""
    if isinstance(found, Incompatibility):
        raise IncompatibleError(job, found)
    return found


def _policy_name(frozen: Mapping[str, Any]) -> str:
    # Jobs of the first release wrote name/version.
    return str(frozen["validation_policy"]).replace("/", "@").split("@")[0]
