"""``cdr generate s3://…``: the very bytes of a local run, streamed in parts; nothing is left of one that fails."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError

from cdr_core.cli.generate import generate
from cdr_core.errors import Refused, StorageError
from cdr_core.storage import s3, upload
from cdr_core.storage.s3 import S3Storage
from tests.flink_formats.generate.made import exchange, make, spec_of
from tests.support.bucket import NAME, Bucket, CountingClient, key_of

SPEC = spec_of(exchange("main", "gen", "slow", "TUPLE<LONG, STRING>"))
MEBIBYTE = 1 << 20


@pytest.fixture
def client(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> CountingClient:
    counting = CountingClient(bucket.client)
    monkeypatch.setattr(s3, "_client", lambda _endpoint: counting)
    monkeypatch.setattr(s3, "FIRST_PAUSE", 0.0)
    return counting


def unfinished(bucket: Bucket, uri: str) -> list[str]:
    found = bucket.client.list_multipart_uploads(Bucket=NAME).get("Uploads", [])
    return [each["Key"] for each in found if each["Key"].startswith(key_of(uri))]


def test_the_same_seed_makes_the_same_bytes_there_as_here(
    bucket: Bucket, client: CountingClient, tmp_path: Path
) -> None:
    here = make(tmp_path / "chk-1", SPEC, "2", "30MiB", subtasks_per_file=2).path
    uri = bucket.uri()
    tracemalloc.start()
    generate(uri, SPEC, "2", "30MiB", subtasks_per_file=2)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert {key.rpartition("/")[2]: bucket.get(f"s3://{NAME}/{key}") for key in bucket.keys(uri)} == {
        path.name: path.read_bytes() for path in here.iterdir()
    }
    assert client.requests["upload_part"] > client.requests["create_multipart_upload"] == 2
    assert peak < 30 * MEBIBYTE + 2 * upload.PART, "the pool of records and a part or two of each file"


def test_a_prefix_with_something_in_it_is_refused_and_left_alone(bucket: Bucket, client: CountingClient) -> None:
    uri = bucket.uri()
    bucket.put(f"{uri}/mine", b"x")
    with pytest.raises(Refused, match="not empty"):
        generate(uri, SPEC, "2", "100kB")
    assert bucket.keys(uri) == [key_of(f"{uri}/mine")]


def test_a_failure_leaves_neither_objects_nor_half_uploads(bucket: Bucket, client: CountingClient) -> None:
    uri = bucket.uri()

    def fail_at_metadata(name: str, _arguments: dict[str, Any]) -> None:
        if name == "put_object":
            raise ClientError({"Error": {"Code": "SlowDown", "Message": "…"}}, "PutObject")

    client.before = fail_at_metadata
    with pytest.raises(StorageError, match="SlowDown"):
        generate(uri, SPEC, "2", "100kB")
    assert bucket.keys(uri) == []

    def fail_at_second_completion(name: str, _arguments: dict[str, Any]) -> None:
        if name == "complete_multipart_upload" and client.requests[name] > 1:
            raise ClientError({"Error": {"Code": "AccessDenied", "Message": "…"}}, name)

    client.requests.clear()
    client.before = fail_at_second_completion
    with pytest.raises(Refused, match="AccessDenied"):
        generate(uri, SPEC, "2", "100kB", subtasks_per_file=1)
    assert bucket.keys(uri) == []
    assert unfinished(bucket, uri) == []


def test_parts_that_fail_at_first_are_sent_again(bucket: Bucket, client: CountingClient) -> None:
    uri = bucket.uri()
    failed: set[str] = set()

    def fail_once(name: str, _arguments: dict[str, Any]) -> None:
        if name not in failed:
            failed.add(name)
            raise ReadTimeoutError(endpoint_url="x")

    client.before = fail_once
    generate(uri, SPEC, "2", "100kB")
    assert {"create_multipart_upload", "upload_part", "complete_multipart_upload", "put_object"} <= failed
    assert f"{key_of(uri)}/_metadata" in bucket.keys(uri)


def test_a_completion_whose_answer_was_lost_is_recognised(bucket: Bucket, client: CountingClient) -> None:
    uri = f"{bucket.uri()}/object"

    def lose_once(name: str, _arguments: dict[str, Any], answer: Any) -> Any:
        if name == "complete_multipart_upload" and client.requests[name] == 1:
            raise ReadTimeoutError(endpoint_url="x")
        return answer

    client.after = lose_once
    written = S3Storage(client).upload(uri)
    written.write(b"0123456789")
    written.finish()
    assert client.requests["complete_multipart_upload"] == 2
    assert bucket.get(uri) == b"0123456789"
