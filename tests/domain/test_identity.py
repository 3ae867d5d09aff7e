import pytest
from hypothesis import given
from hypothesis import strategies as st

from rulegen_dagster.domain.canonical import sha256_hex
from rulegen_dagster.domain.errors import IdentityError
from rulegen_dagster.domain.identity import (
    PARTITION_KEY,
    JobName,
    check_submission_key,
    check_tenant,
    default_submission_key,
    item_key,
    job_partition_key,
    rule_partition_key,
    ruleset_name,
    slug,
)

TENANTS = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,31}", fullmatch=True)
KEYS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", fullmatch=True).filter(lambda key: ".." not in key)
NAMES = st.builds(JobName, tenant=TENANTS, submission_key=KEYS)

HOSTILE = {
    "empty": "",
    "300 characters": "k" * 300,
    "101 characters": "k" * 101,
    "slash": "a/b",
    "parent folder": "..",
    "hidden parent": "a..b",
    "newline": "a\nb",
    "newline at the end": "a\n",
    "NUL": "a\x00b",
    "space": "a b",
    "comma": "a,b",
    "leading dot": ".a",
    "leading dash": "-a",
    "not ASCII": "schlüssel",
    "full width digit": "\uff11",
    "turned around": "a\u202eb",
    "lone surrogate": "a\udc80",
}


@pytest.mark.parametrize("key", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_submission_key_is_refused(key: str) -> None:
    with pytest.raises(IdentityError) as caught:
        check_submission_key(key)

    assert caught.value.code == "invalid_submission_key"


def test_the_refusal_of_a_key_does_not_repeat_it() -> None:
    key = "\x1b[31mred\n"

    with pytest.raises(IdentityError) as caught:
        check_submission_key(key)

    assert key not in caught.value.message
    assert caught.value.message.isprintable()


@pytest.mark.parametrize("tenant", [*HOSTILE.values(), "Acme", "a.b", "t" * 33], ids=repr)
def test_a_hostile_tenant_is_refused(tenant: str) -> None:
    with pytest.raises(IdentityError) as caught:
        check_tenant(tenant)

    assert caught.value.code == "invalid_tenant"


@given(NAMES)
def test_the_outward_name_of_a_job_reads_back_as_the_same_job(name: JobName) -> None:
    read = JobName.parse(str(name), tenant="somebody-else")

    assert read == name


@given(TENANTS, KEYS)
def test_a_bare_key_is_a_job_of_the_tenant_given_beside_it(tenant: str, key: str) -> None:
    read = JobName.parse(key, tenant=tenant)

    assert read == JobName(tenant=tenant, submission_key=key)


@pytest.mark.parametrize("text", ["a/b/c", "/b", "a/", "a/../b", "A/b"])
def test_a_name_with_a_part_that_is_not_well_formed_is_refused(text: str) -> None:
    with pytest.raises(IdentityError):
        JobName.parse(text)


@given(NAMES, st.integers(1, 100_000).flatmap(lambda count: st.tuples(st.integers(1, count), st.just(count))))
def test_every_job_and_item_has_well_formed_partition_keys(name: JobName, place: tuple[int, int]) -> None:
    number, count = place

    job_key = job_partition_key(name)
    rule_key = rule_partition_key(job_key, item_key(number, count))

    assert PARTITION_KEY.fullmatch(job_key)
    assert PARTITION_KEY.fullmatch(rule_key)


@given(NAMES, NAMES)
def test_two_jobs_never_share_a_partition_key(one: JobName, other: JobName) -> None:
    same = job_partition_key(one) == job_partition_key(other)

    assert same == (one == other)


def test_the_border_between_tenant_and_key_is_part_of_the_partition_key() -> None:
    one = job_partition_key(JobName(tenant="a", submission_key="b-c"))
    other = job_partition_key(JobName(tenant="a-b", submission_key="c"))

    assert one != other


@given(st.integers(1, 3_000))
def test_item_keys_stand_in_document_order_as_text(count: int) -> None:
    keys = [item_key(number, count) for number in range(1, count + 1)]

    assert sorted(keys) == keys
    assert len(set(keys)) == count


def test_an_item_key_has_two_digits_at_least() -> None:
    assert (item_key(3, 5), item_key(3, 20), item_key(3, 100)) == ("rule-03", "rule-03", "rule-003")


def test_a_partition_key_that_would_be_too_long_is_refused() -> None:
    with pytest.raises(IdentityError) as caught:
        rule_partition_key("j" * 60, "rule-01")

    assert caught.value.code == "invalid_partition_key"


@given(st.text(max_size=200))
def test_a_slug_of_any_text_is_a_well_formed_word(text: str) -> None:
    made = slug(text)

    assert PARTITION_KEY.fullmatch(made)
    assert len(made) <= 48
    assert not made.endswith("-")


@pytest.mark.parametrize(
    ("file_name", "expected"),
    [
        ("Expense Policy.md", "expense-policy"),
        ("a.b.txt", "a-b"),
        ("no-ending", "no-ending"),
        ("規程.md", "spec-fbf35cc5"),
        (".md", "spec-e3b0c442"),
    ],
)
def test_a_ruleset_is_named_by_its_file_without_the_ending(file_name: str, expected: str) -> None:
    assert ruleset_name(file_name) == expected


@given(st.text(min_size=1, max_size=255), st.binary(max_size=64))
def test_an_upload_without_a_key_gets_one_that_is_valid(file_name: str, content: bytes) -> None:
    key = default_submission_key(file_name, sha256_hex(content))

    assert check_submission_key(key) == key
