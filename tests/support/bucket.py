"""A bucket of the real S3 server, the settings that lead to it, and a client that counts and can be made to fail."""

from __future__ import annotations

import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
from botocore.exceptions import ClientError

from tests.support.s3 import ACCESS_KEY, SECRET_KEY, running_s3

NAME = "cdr"


@dataclass(frozen=True)
class Bucket:
    """A bucket that every test of the session shares; ``uri()`` gives a place of one's own in it."""

    endpoint: str
    client: Any

    @property
    def environment(self) -> dict[str, str]:
        return {
            "CDR_S3_ENDPOINT": self.endpoint,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def uri(self) -> str:
        return f"s3://{NAME}/{uuid.uuid4().hex}"

    def upload(self, folder: Path) -> str:
        """A copy of a directory's files; its address."""
        uri = self.uri()
        for path in folder.rglob("*"):
            if path.is_file():
                self.put(f"{uri}/{path.relative_to(folder).as_posix()}", path.read_bytes())
        return uri

    def put(self, uri: str, data: bytes) -> None:
        self.client.put_object(Bucket=NAME, Key=key_of(uri), Body=data)

    def get(self, uri: str) -> bytes:
        data: bytes = self.client.get_object(Bucket=NAME, Key=key_of(uri))["Body"].read()
        return data

    def keys(self, uri: str) -> list[str]:
        page = self.client.list_objects_v2(Bucket=NAME, Prefix=key_of(uri))
        return [entry["Key"] for entry in page.get("Contents", [])]

    def delete(self, uri: str) -> None:
        self.client.delete_object(Bucket=NAME, Key=key_of(uri))


def key_of(uri: str) -> str:
    return uri.removeprefix(f"s3://{NAME}/")


@contextmanager
def running_bucket(folder: Path) -> Iterator[Bucket]:
    """A bucket of a server that ends with the block."""
    with running_s3(folder) as endpoint:
        session = boto3.session.Session(ACCESS_KEY, SECRET_KEY, region_name="us-east-1")
        client = session.client("s3", endpoint_url=endpoint)
        for attempt in range(30):  # the port answers before the server takes writes
            try:
                client.create_bucket(Bucket=NAME)
                break
            except ClientError:
                assert attempt < 29
                threading.Event().wait(0.5)
        yield Bucket(endpoint, client)


@dataclass
class CountingClient:
    """The client that cdr uses, counting requests, and bytes by key; ``before`` may raise in place of an answer."""

    real: Any
    before: Callable[[str, dict[str, Any]], None] = lambda _name, _arguments: None
    after: Callable[[str, dict[str, Any], Any], Any] = lambda _name, _arguments, answer: answer
    requests: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    bytes: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    ranges: list[tuple[str, int, int]] = field(default_factory=list)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(**arguments: Any) -> Any:
            self.requests[name] += 1
            self.before(name, arguments)
            answer = getattr(self.real, name)(**arguments)
            if name == "get_object":
                self.bytes[arguments["Key"]] += int(answer["ContentLength"])
                first, last = arguments["Range"].removeprefix("bytes=").split("-")
                self.ranges.append((arguments["Key"], int(first), int(last) + 1))
            return self.after(name, arguments, answer)

        return call
