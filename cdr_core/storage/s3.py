"""Objects on S3 by boto3: reads by range, exclusive creates by ``If-None-Match``, bounded retries with jitter.

The library's own retries are off: they do not cover a body that breaks off, and two layers of retries multiply.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, NoCredentialsError
from urllib3.exceptions import HTTPError

from cdr_core import settings
from cdr_core.errors import CdrError, Refused, StorageError, Unreadable

TRIES = 6
FIRST_PAUSE = 0.1
"""Seconds before the second try; doubles each time, times a random factor so that many readers do not march in step."""

RANGE_BYTES = 16 * 1024 * 1024
"""Largest range of one request: large enough to hide its latency, small enough to be fetched again."""

PASSING = frozenset(
    {"SlowDown", "ServiceUnavailable", "InternalError", "RequestTimeout", "RequestTimeTooSkewed", "Throttling", "500"}
    | {"503", "502", "504", "429", "ConditionalRequestConflict", "OperationAborted"}
)
"""Answers after which the same request may succeed."""

MISSING = frozenset({"NoSuchKey", "NoSuchBucket", "404"})
T = TypeVar("T")


class S3Storage:
    """See :class:`cdr_core.storage.access.Storage`."""

    def __init__(self, client: Any = None) -> None:
        self._client = client or _client(settings.load().s3_endpoint)

    def read(self, uri: str, offset: int = 0, length: int | None = None) -> bytes:
        if length is None:
            length = self.size(uri) - offset
        parts, at, end = [], offset, offset + length
        while at < end:
            parts.append(self._range(uri, at, min(RANGE_BYTES, end - at)))
            at += len(parts[-1])
        return b"".join(parts)

    def size(self, uri: str) -> int:
        bucket, key = split(uri)
        return int(_patiently(uri, lambda: self._client.head_object(Bucket=bucket, Key=key))["ContentLength"])

    def exists(self, uri: str) -> bool:
        try:
            self.size(uri)
        except Unreadable:
            return False
        return True

    def create(self, uri: str, data: bytes) -> bool:
        """A refused create after an attempt whose answer was lost may be our own: then the bytes decide."""
        bucket, key = split(uri)
        doubtful = False

        def put() -> bool:
            nonlocal doubtful
            try:
                self._client.put_object(Bucket=bucket, Key=key, Body=data, IfNoneMatch="*")
            except ClientError as error:
                if _code(error) in {"PreconditionFailed", "412"}:
                    return doubtful and self.read(uri) == data
                doubtful = True
                raise
            except (BotoCoreError, HTTPError):
                doubtful = True
                raise
            return True

        return _patiently(uri, put)

    def list(self, uri: str) -> list[str]:
        bucket, prefix = split(uri.rstrip("/") + "/")
        found: list[str] = []
        wanted = {"Bucket": bucket, "Prefix": prefix, "Delimiter": "/"}
        while True:
            page = _patiently(uri, partial(self._client.list_objects_v2, **wanted))
            found += [f"s3://{bucket}/{entry['Key']}" for entry in page.get("Contents", []) if entry["Key"] != prefix]
            if not page.get("IsTruncated"):
                return sorted(found)
            wanted["ContinuationToken"] = page["NextContinuationToken"]

    def delete(self, uri: str) -> None:
        bucket, key = split(uri)
        _patiently(uri, lambda: self._client.delete_object(Bucket=bucket, Key=key))

    def _range(self, uri: str, offset: int, length: int) -> bytes:
        bucket, key = split(uri)

        def get() -> bytes:
            answer = self._client.get_object(Bucket=bucket, Key=key, Range=f"bytes={offset}-{offset + length - 1}")
            data: bytes = answer["Body"].read()
            if len(data) != length:
                raise StorageError(f"{uri} answered with {len(data)} of {length} bytes from offset {offset}")
            return data

        return _patiently(uri, get)


def split(uri: str) -> tuple[str, str]:
    """Bucket and key of an ``s3://`` URI."""
    bucket, slash, key = uri.removeprefix("s3://").partition("/")
    if not bucket or not slash:
        raise Refused(f"{uri} is not s3://BUCKET/KEY", hint="correct the address")
    return bucket, key


@lru_cache(maxsize=8)
def _client(endpoint: str) -> Any:
    """One client per endpoint and process; credentials come from the library's own chain (environment, files, role)."""
    config = Config(retries={"max_attempts": 1, "mode": "standard"}, connect_timeout=5, read_timeout=30)
    return boto3.session.Session().client("s3", endpoint_url=endpoint or None, config=config)


def _patiently(uri: str, call: Callable[[], T]) -> T:
    """The call's answer, asked for up to ``TRIES`` times while the failure is one that may pass."""
    for attempt in range(TRIES):
        try:
            with _explained(uri):
                return call()
        except Unreadable:
            raise
        except StorageError:
            if attempt == TRIES - 1:
                raise
            time.sleep(FIRST_PAUSE * 2**attempt * (0.5 + random.random()))
    raise AssertionError("the last try returns or raises")


@contextmanager
def _explained(uri: str) -> Iterator[None]:
    """The library's errors as ours: missing, refused for good, or worth another try. No credential is in the text."""
    try:
        yield
    except CdrError:
        raise
    except NoCredentialsError:
        raise Refused(f"there are no credentials to reach {uri}", hint="set AWS_ACCESS_KEY_ID or a profile") from None
    except ClientError as error:
        code = _code(error)
        if code in MISSING:
            raise Unreadable(f"{uri} does not exist", hint="check the address") from None
        if code in PASSING:
            raise StorageError(f"S3 could not serve {uri}: {code}", hint="run it again later") from error
        raise Refused(f"S3 refused {uri}: {code}", hint="check address, credentials and permissions") from error
    except (BotoCoreError, HTTPClientError, HTTPError, OSError) as error:
        raise StorageError(
            f"S3 did not answer for {uri}: {type(error).__name__}", hint="check CDR_S3_ENDPOINT"
        ) from error


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
