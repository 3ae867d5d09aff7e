import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from upath import UPath

from rulegen_dagster.domain.canonical import sha256_hex
from rulegen_dagster.domain.errors import LedgerError
from rulegen_dagster.ledger.blobs import BlobStore


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(UPath(tmp_path / "blobs"))


def _files(tmp_path: Path) -> list[Path]:
    return sorted(path for path in (tmp_path / "blobs").rglob("*") if path.is_file())


def test_bytes_come_back_under_their_digest(store: BlobStore) -> None:
    digest = store.put(b"a\x00b")

    assert digest == sha256_hex(b"a\x00b")
    assert store.get(digest) == b"a\x00b"


def test_the_same_bytes_again_change_nothing_but_the_time_that_keeps_them(store: BlobStore, tmp_path: Path) -> None:
    store.put(b"x")
    (path,) = _files(tmp_path)
    before = path.stat().st_ino
    os.utime(path, (1_000, 1_000))

    store.put(b"x")

    assert [(file, file.stat().st_ino, file.read_bytes()) for file in _files(tmp_path)] == [(path, before, b"x")]
    assert path.stat().st_mtime > 1_000


def test_a_listing_names_blobs_and_left_over_partial_files_alone(store: BlobStore, tmp_path: Path) -> None:
    digest = store.put(b"abc")
    folder = tmp_path / "blobs" / digest[:2]
    (folder / f"{digest}.7-7.partial").write_bytes(b"a")
    (folder / "notes.txt").touch()

    found = {(file.digest, file.size) for file in store.files()}

    assert found == {(digest, 3), (None, 1)}


def test_a_blob_that_was_stored_again_meanwhile_is_not_discarded(store: BlobStore, tmp_path: Path) -> None:
    digest = store.put(b"x")
    os.utime(tmp_path / "blobs" / digest[:2] / digest, (1_000, 1_000))
    (listed,) = store.files()
    store.put(b"x")

    discarded = store.discard(listed, unchanged_since=2_000_000)

    assert not discarded
    assert store.get(digest) == b"x"
    assert [file.digest for file in store.files()] == [digest]


def test_a_blob_that_another_collection_has_removed_is_not_counted_twice(store: BlobStore) -> None:
    store.put(b"x")
    (listed,) = store.files()

    first, second = (store.discard(listed, unchanged_since=listed.modified_ms) for _ in range(2))

    assert (first, second) == (True, False)


def test_writers_that_race_with_the_same_bytes_leave_one_whole_blob(store: BlobStore, tmp_path: Path) -> None:
    data = b"x" * 100_000

    with ThreadPoolExecutor(8) as pool:
        digests = set(pool.map(lambda _: store.put(data), range(32)))

    assert len(digests) == 1
    assert store.get(digests.pop()) == data
    assert len(_files(tmp_path)) == 1


def test_a_blob_that_is_missing_or_damaged_is_never_handed_out(store: BlobStore, tmp_path: Path) -> None:
    digest = store.put(b"x")
    (path,) = _files(tmp_path)

    path.write_bytes(b"y")
    with pytest.raises(LedgerError) as damaged:
        store.get(digest)
    path.unlink()
    with pytest.raises(LedgerError) as missing:
        store.get(digest)

    assert (damaged.value.code, missing.value.code) == ("blob_damaged", "blob_missing")


def test_a_missing_blob_names_the_place_that_was_searched_and_what_every_worker_needs(
    store: BlobStore, tmp_path: Path
) -> None:
    with pytest.raises(LedgerError) as caught:
        store.get("0" * 64)

    assert str(tmp_path / "blobs") in caught.value.message
    assert "$RULEGEN_HOME/blobs" in caught.value.message


def test_a_missing_blob_does_not_tell_the_password_of_its_store() -> None:
    with pytest.raises(LedgerError) as caught:
        BlobStore(UPath("memory://ann:hush@blobs-of-a-test/x")).get("0" * 64)

    assert "memory://blobs-of-a-test/x" in caught.value.message
    assert "hush" not in caught.value.message


def _left_aside(store: BlobStore, tmp_path: Path, data: bytes) -> tuple[str, Path]:
    """Leave a blob as a collection does that is killed before it puts it back."""
    digest = store.put(data)
    path = tmp_path / "blobs" / digest[:2] / digest
    return digest, path.rename(path.with_name(f"{digest}.collected.partial"))


def test_a_blob_that_a_killed_collection_left_aside_is_still_found(store: BlobStore, tmp_path: Path) -> None:
    digest, _ = _left_aside(store, tmp_path, b"x")

    assert store.get(digest) == b"x"


def test_a_blob_left_aside_is_listed_under_its_digest_until_it_is_stored_again(
    store: BlobStore, tmp_path: Path
) -> None:
    digest, aside = _left_aside(store, tmp_path, b"x")

    alone = [(file.path.name, file.digest) for file in store.files()]
    store.put(b"x")
    beside = {(file.path.name, file.digest) for file in store.files()}

    assert alone == [(aside.name, digest)]
    assert beside == {(aside.name, None), (digest, digest)}


def test_a_blob_left_aside_is_discarded_like_any_other(store: BlobStore, tmp_path: Path) -> None:
    _left_aside(store, tmp_path, b"x")
    (listed,) = store.files()

    kept = store.discard(listed, unchanged_since=listed.modified_ms - 1)
    gone = store.discard(listed, unchanged_since=listed.modified_ms)

    assert (kept, gone) == (False, True)
    assert _files(tmp_path) == []


def test_a_store_that_cannot_be_written_is_an_error_of_the_ledger(tmp_path: Path) -> None:
    (tmp_path / "blobs").touch()

    with pytest.raises(LedgerError) as caught:
        BlobStore(UPath(tmp_path / "blobs")).put(b"x")

    assert caught.value.code == "blob_store"


def test_a_store_may_live_on_any_file_system_that_fsspec_knows() -> None:
    store = BlobStore(UPath("memory://blobs-of-a-test"))

    assert store.get(store.put(b"x")) == b"x"
