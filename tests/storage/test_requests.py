"""What goes over the wire to S3: one request per try, bounded answers, copies in parts that do not outlast a read."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError

from cdr_core.errors import StorageError
from cdr_core.storage import s3, server_copy, upload
from cdr_core.storage.s3 import S3Storage
from tests.support.bucket import Bucket, CountingClient


@pytest.fixture
def failing_server() -> Iterator[tuple[str, list[str]]]:
    """Answers 503 to everything, and notes what was asked."""
    asked: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(503)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Nothing to stderr."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_library_tries_nothing_again_by_itself(
    bucket: Bucket, failing_server: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two layers of retries would multiply."""
    endpoint, asked = failing_server
    for name, value in {**bucket.environment, "CDR_S3_ENDPOINT": endpoint}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(s3, "FIRST_PAUSE", 0.0)
    with pytest.raises(StorageError):
        S3Storage().read("s3://cdr/object", 0, 10)
    assert len(asked) == s3.TRIES


class Endless(io.RawIOBase):
    """A body that never ends, for a server that knows no ranges."""

    taken = 0

    def read(self, size: int = -1) -> bytes:
        assert size >= 0, "all of it would be read"
        self.taken += size
        return b"x" * size


def test_no_more_is_read_than_was_asked_for(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "FIRST_PAUSE", 0.0)
    body = Endless()
    uri = f"{bucket.uri()}/object"
    bucket.put(uri, b"0123456789")
    client = CountingClient(bucket.client, after=lambda _name, _arguments, answer: {**answer, "Body": body})
    with pytest.raises(StorageError, match="answered with"):
        S3Storage(client).read(uri, 0, 10)
    assert body.taken == s3.TRIES * 11


def _passing(client: CountingClient, *names: str) -> None:
    """Fail the first request of each of these names once."""
    left = list(names)

    def fail(name: str, _arguments: dict[str, Any]) -> None:
        if name in left:
            left.remove(name)
            raise ClientError({"Error": {"Code": "SlowDown"}}, name)

    client.before = fail


def test_a_large_object_is_copied_in_parts_and_every_request_may_fail_once(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "FIRST_PAUSE", 0.0)
    monkeypatch.setattr(server_copy, "LARGEST", 5 << 20)
    base, data = bucket.uri(), bytes(range(256)) * (11 << 12)
    bucket.put(f"{base}/source", data)
    client = CountingClient(bucket.client)
    _passing(client, "create_multipart_upload", "upload_part_copy", "complete_multipart_upload")
    S3Storage(client).copy(f"{base}/source", f"{base}/target")
    assert bucket.get(f"{base}/target") == data
    assert (client.requests["create_multipart_upload"], client.requests["upload_part_copy"]) == (2, 4)
    assert client.requests["get_object"] == 0


def test_a_copy_whose_last_answer_was_lost_is_recognised(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "FIRST_PAUSE", 0.0)
    monkeypatch.setattr(server_copy, "LARGEST", 5 << 20)
    base, data = bucket.uri(), bytes(range(256)) * (6 << 12)
    bucket.put(f"{base}/source", data)

    def lose(name: str, _arguments: dict[str, Any], answer: Any) -> Any:
        if name == "complete_multipart_upload" and client.requests[name] == 1:
            raise ReadTimeoutError(endpoint_url="x")
        return answer

    client = CountingClient(bucket.client, after=lose)
    S3Storage(client).copy(f"{base}/source", f"{base}/target")
    assert bucket.get(f"{base}/target") == data


def test_an_upload_of_several_parts_has_its_end(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "PART", 5 << 20)
    data = bytes(range(256)) * (11 << 12)
    made = upload.Upload(bucket.client, f"{bucket.uri()}/object")
    for begin in range(0, len(data), 1 << 20):
        made.write(data[begin : begin + (1 << 20)])
    made.finish()
    assert bucket.get(made.uri) == data
