"""Local disk and a real S3 server behind one interface: the same promises on both."""

from __future__ import annotations

import io
import os
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, ReadTimeoutError

from cdr_core.errors import Refused, SettingsRefused, StorageError, Unreadable
from cdr_core.storage import local, s3, storage_for
from cdr_core.storage.atomic_write import making
from cdr_core.storage.base import Storage
from cdr_core.storage.s3 import S3Storage
from tests.support.bucket import Bucket


@pytest.fixture
def client(bucket: Bucket) -> Any:
    return bucket.client


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.s3)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Storage, str]:
    if request.param == "local":
        return storage_for(str(tmp_path)), str(tmp_path)
    return S3Storage(request.getfixturevalue("client")), f"s3://cdr/{uuid.uuid4().hex}"


def test_an_object_is_read_back_whole_and_by_range(place: tuple[Storage, str]) -> None:
    storage, base = place
    data = bytes(range(256)) * 300
    assert storage.create(f"{base}/a/object", data)
    assert storage.size(f"{base}/a/object") == len(data)
    assert storage.read(f"{base}/a/object") == data
    assert storage.read(f"{base}/a/object", 1000, 5000) == data[1000:6000]
    assert storage.read(f"{base}/a/object", 10, 0) == b""


def test_a_name_is_created_once(place: tuple[Storage, str]) -> None:
    storage, base = place
    assert storage.create(f"{base}/once", b"first")
    assert not storage.create(f"{base}/once", b"second")
    assert storage.read(f"{base}/once") == b"first"


def test_of_many_who_create_a_name_at_once_one_wins(place: tuple[Storage, str]) -> None:
    storage, base = place
    won: list[int] = []

    def create(number: int) -> None:
        if storage.create(f"{base}/race", str(number).encode()):
            won.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert storage.read(f"{base}/race") == str(won[0]).encode()


def test_what_is_missing_is_unreadable_and_never_empty(place: tuple[Storage, str]) -> None:
    storage, base = place
    with pytest.raises(Unreadable):
        storage.read(f"{base}/nothing")
    with pytest.raises(Unreadable):
        storage.size(f"{base}/nothing")
    assert not storage.exists(f"{base}/nothing")
    assert storage.list(f"{base}/nowhere") == []
    storage.delete(f"{base}/nothing")


def test_fewer_bytes_than_asked_for_are_an_error(place: tuple[Storage, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "FIRST_PAUSE", 0.0)
    storage, base = place
    storage.create(f"{base}/short", b"0123456789")
    with pytest.raises(StorageError):
        storage.read(f"{base}/short", 5, 10)


def test_an_object_with_another_tag_is_not_the_one_that_was_asked_for(place: tuple[Storage, str]) -> None:
    storage, base = place
    storage.create(f"{base}/tagged", b"0123456789")
    found = storage.stat(f"{base}/tagged")
    assert (found.size, found.modified.tzinfo is not None) == (10, True)
    assert storage.read(f"{base}/tagged", 2, 5, tag=found.tag) == b"23456"
    with pytest.raises(Unreadable, match="changed while it was being read"):
        storage.read(f"{base}/tagged", 2, 5, tag='"another"')


def test_a_range_behind_the_end_is_never_empty(place: tuple[Storage, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "FIRST_PAUSE", 0.0)
    storage, base = place
    storage.create(f"{base}/short", b"0123456789")
    with pytest.raises((Unreadable, StorageError)):
        storage.read(f"{base}/short", 20, 5)


def test_a_file_that_is_being_written_is_not_listed(tmp_path: Path) -> None:
    with local.temporary_beside(tmp_path / "object") as temporary:
        temporary.touch()
        assert storage_for(str(tmp_path)).list(str(tmp_path)) == []


def test_a_name_that_another_takes_while_it_is_made_is_an_error(tmp_path: Path) -> None:
    def make() -> None:
        with making(str(tmp_path / "object"), tmp_path) as temporary:
            temporary.write_bytes(b"mine")
            assert storage_for(str(tmp_path)).create(str(tmp_path / "object"), b"theirs")

    with pytest.raises(StorageError, match="was taken by another process"):
        make()
    assert (tmp_path / "object").read_bytes() == b"theirs"


@pytest.mark.parametrize("at_once", [10, 3])
def test_memory_is_filled_however_few_bytes_come_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """A file that ends before is an error."""
    (tmp_path / "file").write_bytes(b"0123456789")
    real = os.preadv
    monkeypatch.setattr(os, "preadv", lambda file, parts, offset: real(file, [parts[0][:at_once]], offset))
    target = memoryview(bytearray(8))
    local.read_into(tmp_path / "file", 1, target)
    assert bytes(target) == b"12345678"
    with pytest.raises(StorageError, match="ended after 5 of 8 bytes from offset 5"):
        local.read_into(tmp_path / "file", 5, target)


def test_a_listing_names_what_is_directly_there(place: tuple[Storage, str]) -> None:
    storage, base = place
    for name in ("b", "a", "deeper/c"):
        storage.create(f"{base}/dir/{name}", b"x")
    assert storage.list(f"{base}/dir") == [f"{base}/dir/a", f"{base}/dir/b"]
    storage.delete(f"{base}/dir/a")
    assert storage.list(f"{base}/dir") == [f"{base}/dir/b"]


class Faulty:
    """A client that fails in a planned way before it obeys."""

    def __init__(self, real: Any, faults: list[Any]) -> None:
        self._real, self.faults, self.calls = real, faults, 0

    def __getattr__(self, name: str) -> Any:
        def call(**arguments: Any) -> Any:
            self.calls += 1
            fault = self.faults.pop(0) if self.faults else None
            if isinstance(fault, Exception):
                raise fault
            answer = getattr(self._real, name)(**arguments)
            return fault(answer) if fault else answer

        return call


def slow_down() -> ClientError:
    return ClientError({"Error": {"Code": "SlowDown", "Message": "…"}}, "GetObject")


def cut_short(answer: dict[str, Any]) -> dict[str, Any]:
    return {**answer, "Body": io.BytesIO(answer["Body"].read()[:-3])}


def too_long(answer: dict[str, Any]) -> dict[str, Any]:
    return {**answer, "Body": io.BytesIO(answer["Body"].read() + b"extra")}


PASSING = {
    "503": [slow_down(), slow_down()],
    "timeout": [ReadTimeoutError(endpoint_url="x"), EndpointConnectionError(endpoint_url="x")],
    "short read": [cut_short],
    "wrong length": [too_long],
}


@pytest.mark.parametrize("fault", PASSING)
def test_a_fault_that_passes_is_asked_again(client: Any, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    monkeypatch.setattr(s3, "FIRST_PAUSE", 0.0)
    uri = f"s3://cdr/{uuid.uuid4().hex}"
    S3Storage(client).create(uri, b"0123456789")
    faulty = Faulty(client, list(PASSING[fault]))
    assert S3Storage(faulty).read(uri, 0, 10) == b"0123456789"
    assert faulty.faults == []


@pytest.mark.seed("E04")
def test_patience_has_an_end(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounded, and then a failure; never empty."""
    monkeypatch.setattr(s3, "FIRST_PAUSE", 0.0)
    faulty = Faulty(client, [slow_down() for _ in range(100)])
    with pytest.raises(StorageError, match="SlowDown"):
        S3Storage(faulty).read("s3://cdr/x", 0, 1)
    assert faulty.calls == s3.TRIES


def test_a_refusal_is_not_asked_again(client: Any) -> None:
    denied = ClientError({"Error": {"Code": "AccessDenied", "Message": "…"}}, "GetObject")
    faulty = Faulty(client, [denied])
    with pytest.raises(Refused, match="AccessDenied"):
        S3Storage(faulty).read("s3://cdr/x", 0, 1)
    assert faulty.calls == 1


def test_a_create_whose_answer_was_lost_is_recognised_as_ours(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "FIRST_PAUSE", 0.0)

    def lose(_: Any) -> Any:
        raise ReadTimeoutError(endpoint_url="x")

    uri = f"s3://cdr/{uuid.uuid4().hex}"
    assert S3Storage(Faulty(client, [lose])).create(uri, b"mine")
    assert not S3Storage(Faulty(client, [ReadTimeoutError(endpoint_url="x")])).create(uri, b"other")
    assert S3Storage(client).read(uri) == b"mine"


def test_an_address_without_a_bucket_is_refused() -> None:
    with pytest.raises(Refused):
        s3.split("s3://")


@pytest.mark.parametrize(
    ("variables", "endpoint", "said"),
    [
        ({"AWS_PROFILE": "nobodys"}, "", "nobodys"),
        ({"AWS_ACCESS_KEY_ID": "key"}, "", "AWS_SECRET_ACCESS_KEY"),
        ({}, "user:secret@host", "CDR_S3_ENDPOINT=http://HOST:PORT"),
    ],
)
def test_a_client_that_cannot_be_made_is_a_setting_to_correct(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], endpoint: str, said: str
) -> None:
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingsRefused) as refused:
        s3._client.__wrapped__(endpoint)
    assert said in str(refused.value)
    assert "secret@" not in str(refused.value)


def test_a_bucket_that_no_server_can_have_is_refused_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "TRIES", 1)
    real = s3._client.__wrapped__("http://127.0.0.1:9")
    with pytest.raises(Refused, match="check the bucket's name"):
        S3Storage(real).read("s3://no bucket/key")


@pytest.mark.parametrize(("machine", "named"), [("0123abcd\n", "0123abcd"), ("\n", None), ("uninitialized\n", None)])
def test_a_host_without_an_id_of_its_own_is_known_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str, named: str | None
) -> None:
    """Many images have the file and nothing in it: all hosts would be one, and each would take the others' disks."""
    (tmp_path / "machine-id").write_text(machine)
    monkeypatch.setattr(local, "MACHINE_ID", tmp_path / "machine-id")
    monkeypatch.setattr("socket.gethostname", lambda: "worker-3")
    assert local.host_id() == (named or "worker-3")
    monkeypatch.setattr(local, "MACHINE_ID", tmp_path / "none")
    assert local.host_id() == "worker-3"
