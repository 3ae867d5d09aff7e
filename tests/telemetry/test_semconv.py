"""The names of spans and attributes, as data: what dashboards and collectors see."""

import pytest

from rulegen_dagster.telemetry.semconv import Key, Profile, Work, name_of

# What differs between the profiles; every other name is the same in both.
RENAMED: dict[Work | Key, tuple[str, str]] = {
    Key.PROMPT_VERSION: ("rulegen.prompt.version", "gen_ai.prompt.version"),
    Key.CACHE_WRITE_TOKENS: ("gen_ai.usage.cache_creation.input_tokens", "gen_ai.usage.cache_write.input_tokens"),
}
SHARED: dict[Work | Key, str] = {
    Work.INTAKE: "rulegen.intake",
    Work.STAGE: "rulegen.stage",
    Work.ATTEMPT: "rulegen.attempt",
    Work.CHAT: "chat",
    Work.EXTRACT: "rulegen.extract",
    Work.PUBLISH: "rulegen.publish",
    Key.JOB: "rulegen.job.id",
    Key.OPERATION_KEY: "rulegen.operation.key",
    Key.ATTEMPT: "rulegen.attempt",
    Key.OUTCOME: "rulegen.outcome",
    Key.ERROR_TYPE: "error.type",
    Key.OPERATION: "gen_ai.operation.name",
    Key.PROVIDER: "gen_ai.provider.name",
    Key.CONVERSATION: "gen_ai.conversation.id",
    Key.OUTPUT_TYPE: "gen_ai.output.type",
    Key.REQUEST_MODEL: "gen_ai.request.model",
    Key.REQUEST_MAX_TOKENS: "gen_ai.request.max_tokens",
    Key.REQUEST_TEMPERATURE: "gen_ai.request.temperature",
    Key.REQUEST_SEED: "gen_ai.request.seed",
    Key.PROMPT_NAME: "gen_ai.prompt.name",
    Key.RESPONSE_MODEL: "gen_ai.response.model",
    Key.RESPONSE_ID: "gen_ai.response.id",
    Key.FINISH_REASONS: "gen_ai.response.finish_reasons",
    Key.INPUT_TOKENS: "gen_ai.usage.input_tokens",
    Key.OUTPUT_TOKENS: "gen_ai.usage.output_tokens",
    Key.CACHE_READ_TOKENS: "gen_ai.usage.cache_read.input_tokens",
    Key.SERVER_ADDRESS: "server.address",
    Key.SERVER_PORT: "server.port",
}


@pytest.mark.parametrize("what", [*Work, *Key])
def test_everything_that_is_told_has_one_name_in_each_profile(what: Work | Key) -> None:
    default, other = (name_of(profile, what) for profile in Profile)

    if what in RENAMED:
        assert (default, other) == RENAMED[what]
    else:
        assert default == other == SHARED.get(what, default)
        assert default.startswith(("rulegen.", "gen_ai.", "server.", "error.", "chat"))


@pytest.mark.parametrize("profile", Profile)
def test_no_two_attributes_share_a_name(profile: Profile) -> None:
    names = [name_of(profile, key) for key in Key]

    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize("profile", Profile)
def test_the_extractor_names_its_provider_outside_of_the_conventions_for_models(profile: Profile) -> None:
    assert name_of(profile, Key.PROVIDER, of=Work.EXTRACT) == "rulegen.provider"
    assert name_of(profile, Key.PROVIDER, of=Work.CHAT) == "gen_ai.provider.name"
