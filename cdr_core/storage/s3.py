"""Objects on S3 by boto3: reads by range, exclusive creates by ``If-None-Match``, bounded retries with jitter.

The library's own retries are off: they do not cover a body that breaks off, and two layers of retries multiply.
"""

from __future__ import annotations

import io
import logging
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    HTTPClientError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
)
from urllib3.exceptions import HTTPError

from cdr_core import settings
from cdr_core.addresses import canonical
from cdr_core.errors import CdrError, Refused, SettingsRefused, StorageError, Unreadable
from cdr_core.log import with_fields
from cdr_core.storage.base import Stat

log = logging.getLogger(__name__)

TRIES = 8
"""About 13 seconds of patience in all; a task that lost it is tried again as a whole."""
FIRST_PAUSE = 0.1
"""Seconds before the second try; doubles each time, times a random factor so that many readers do not march in step."""

RANGE_BYTES = 16 * 1024 * 1024
"""Largest range of one request: large enough to hide its latency, small enough to be fetched again."""

LARGEST_PUT = 1024 * 1024 * 1024
"""Bytes of a file that goes up by one request; S3 takes five times as many."""

PASSING = frozenset(
    {"SlowDown", "ServiceUnavailable", "InternalError", "RequestTimeout", "RequestTimeTooSkewed", "Throttling", "500"}
    | {"503", "502", "504", "429", "ConditionalRequestConflict", "OperationAborted"}
)
"""Answers after which the same request may succeed."""

NO_BUCKET = "NoSuchBucket"
MISSING = frozenset({"NoSuchKey", "404"})
"""What HEAD answers (404) does not tell a missing bucket from a missing object."""
CHANGED = frozenset({"PreconditionFailed", "412"})
BEYOND = frozenset({"InvalidRange", "416"})
T = TypeVar("T")

if TYPE_CHECKING:
    from cdr_core.storage.upload import Upload


class S3Storage:
    """See :class:`cdr_core.storage.base.Storage`."""

    def __init__(self, client: Any = None) -> None:
        self._client = client or _client(settings.load().s3_endpoint)

    def read(self, uri: str, offset: int = 0, length: int | None = None, *, tag: str = "") -> bytes:
        if length is None:
            found = self.stat(uri)
            length, tag = found.size - offset, tag or found.tag
        parts, at, end = [], offset, offset + length
        while at < end:
            parts.append(self._range(uri, at, min(RANGE_BYTES, end - at), tag))
            at += len(parts[-1])
        return b"".join(parts)

    def size(self, uri: str) -> int:
        return self.stat(uri).size

    def stat(self, uri: str) -> Stat:
        bucket, key = split(uri)
        answer = patiently(uri, lambda: self._client.head_object(Bucket=bucket, Key=key))
        return Stat(int(answer["ContentLength"]), answer["LastModified"], str(answer["ETag"]))

    def exists(self, uri: str) -> bool:
        try:
            self.size(uri)
        except Unreadable:
            return False
        return True

    def create(self, uri: str, data: bytes) -> bool:
        """A refused create after an attempt whose answer was lost may be our own: then the bytes decide."""
        return self._create(uri, lambda: io.BytesIO(data), lambda: self.read(uri) == data)

    def create_from(self, uri: str, file: Path) -> bool:
        """By one request, so that nothing of it is left behind where it breaks off. Our own by its size: no other
        process has the name, which was drawn for this very file.
        """
        size = file.stat().st_size
        if size > LARGEST_PUT:
            return self._create_large(uri, file)
        return self._create(uri, lambda: file.open("rb"), lambda: self.size(uri) == size)

    def _create_large(self, uri: str, file: Path) -> bool:
        if self.exists(uri):
            return False
        upload = self.upload(uri)
        try:
            with file.open("rb") as source:
                while piece := source.read(RANGE_BYTES):
                    upload.write(piece)
            upload.finish()
        except BaseException:
            with suppress(CdrError):
                upload.abort()
            raise
        return True

    def replace(self, uri: str, data: bytes) -> None:
        bucket, key = split(uri)
        patiently(uri, lambda: self._client.put_object(Bucket=bucket, Key=key, Body=data))

    def _create(self, uri: str, body: Callable[[], IO[bytes]], is_ours: Callable[[], bool]) -> bool:
        bucket, key = split(uri)
        doubtful = False

        def put() -> bool:
            nonlocal doubtful
            try:
                with body() as data:
                    self._client.put_object(Bucket=bucket, Key=key, Body=data, IfNoneMatch="*")
            except ClientError as error:
                if error_code(error) in CHANGED:
                    return doubtful and is_ours()
                doubtful = True
                raise
            except (BotoCoreError, HTTPError):
                doubtful = True
                raise
            return True

        return patiently(uri, put)

    def upload(self, uri: str) -> Upload:
        """A new object, written piece by piece."""
        from cdr_core.storage.upload import Upload

        return Upload(self._client, uri)

    def copy(self, source: str, target: str) -> None:
        """Copy an object without fetching it; see :func:`cdr_core.storage.server_copy.copy_object`."""
        from cdr_core.storage.server_copy import copy_object

        copy_object(self._client, source, target, self.stat(source))

    def list(self, uri: str) -> list[str]:
        bucket, prefix = split(uri.rstrip("/") + "/")
        entries = [entry["Key"] for page in self._pages(uri, "/") for entry in page.get("Contents", [])]
        return sorted(f"s3://{bucket}/{key}" for key in entries if key != prefix)

    def directories(self, uri: str) -> Sequence[str]:
        """URIs of the directories directly under one, sorted, without a slash at their end."""
        bucket, _ = split(uri.rstrip("/") + "/")
        prefixes = [entry["Prefix"] for page in self._pages(uri, "/") for entry in page.get("CommonPrefixes", [])]
        return sorted(f"s3://{bucket}/{prefix.rstrip('/')}" for prefix in prefixes)

    def walk(self, uri: str) -> Iterator[tuple[str, int]]:
        """URI and size of every object below a directory, however deep."""
        bucket, _ = split(uri.rstrip("/") + "/")
        for page in self._pages(uri):
            yield from ((f"s3://{bucket}/{entry['Key']}", int(entry["Size"])) for entry in page.get("Contents", []))

    def _pages(self, uri: str, delimiter: str = "") -> Iterator[dict[str, Any]]:
        bucket, prefix = split(uri.rstrip("/") + "/")
        wanted = {"Bucket": bucket, "Prefix": prefix, **({"Delimiter": delimiter} if delimiter else {})}
        while True:
            page = patiently(uri, partial(self._client.list_objects_v2, **wanted))
            yield page
            if not page.get("IsTruncated"):
                return
            wanted["ContinuationToken"] = page["NextContinuationToken"]

    def delete(self, uri: str) -> None:
        bucket, key = split(uri)
        patiently(uri, lambda: self._client.delete_object(Bucket=bucket, Key=key))

    def _range(self, uri: str, offset: int, length: int, tag: str) -> bytes:
        bucket, key = split(uri)
        wanted = {"Bucket": bucket, "Key": key, "Range": f"bytes={offset}-{offset + length - 1}"}
        if tag:
            wanted["IfMatch"] = tag

        def get() -> bytes:
            answer = self._client.get_object(**wanted)
            data: bytes = answer["Body"].read(length + 1)  # a server that knows no ranges would send all there is
            if len(data) != length:
                raise StorageError(f"{uri} answered with {len(data)} of {length} bytes from offset {offset}")
            return data

        return patiently(uri, get)


def split(uri: str) -> tuple[str, str]:
    """Bucket and key of an ``s3://`` URI, whichever of Flink's clients it is written for."""
    bucket, slash, key = canonical(uri).removeprefix("s3://").partition("/")
    if not bucket or not slash:
        raise Refused(f"{uri} is not s3://BUCKET/KEY", hint="correct the address")
    try:
        key.encode()
    except UnicodeEncodeError:
        raise Unreadable(f"{uri!a} is no name that an object can have", hint="check the address") from None
    return bucket, key


@lru_cache(maxsize=8)
def _client(endpoint: str) -> Any:
    """One client per endpoint and process; credentials come from the library's own chain (environment, files, role)."""
    # "max_attempts" would be the number of retries, not of attempts.
    config = Config(retries={"total_max_attempts": 1, "mode": "standard"}, connect_timeout=5, read_timeout=30)
    try:
        return boto3.session.Session().client("s3", endpoint_url=endpoint or None, config=config)
    except (ProfileNotFound, PartialCredentialsError) as error:
        raise SettingsRefused(f"S3 cannot be asked: {error}", hint="correct AWS_… or the profile") from None
    except ValueError:  # not shown: an address may hold a password
        raise SettingsRefused(
            "the endpoint of S3 is no address", hint="write CDR_S3_ENDPOINT=http://HOST:PORT, or leave it out"
        ) from None


# A forked process that spoke over its parent's connections would read answers to the parent's questions.
os.register_at_fork(after_in_child=_client.cache_clear)


def patiently(uri: str, call: Callable[[], T]) -> T:
    """The call's answer, asked for up to ``TRIES`` times while the failure is one that may pass."""
    for attempt in range(TRIES):
        try:
            with _explained(uri):
                return call()
        except Unreadable:
            raise
        except StorageError as error:
            if attempt == TRIES - 1:
                raise
            log.debug("tried again: %s", error.what, extra=with_fields(attempt=attempt + 1))
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
    except ParamValidationError:  # nothing was sent, and nothing will be
        raise Refused(f"{uri} is no address that S3 can have", hint="check the bucket's name") from None
    except ClientError as error:
        raise _answered(uri, error) from error
    except (BotoCoreError, HTTPClientError, HTTPError, OSError) as error:
        raise StorageError(
            f"S3 did not answer for {uri}: {type(error).__name__}", hint="check CDR_S3_ENDPOINT"
        ) from error


def _answered(uri: str, error: ClientError) -> CdrError:
    """What an answer of S3 that is an error means."""
    code = error_code(error)
    if code == NO_BUCKET:
        bucket, _ = split(uri)
        return Unreadable(f"there is no bucket {bucket!r} to hold {uri}", hint="check the address and CDR_S3_ENDPOINT")
    if code in MISSING:
        return Unreadable(f"{uri} does not exist", hint="check the address")
    if code in CHANGED:
        return Unreadable(f"{uri} changed while it was being read", hint="use an object at rest")
    if code in BEYOND:
        return Unreadable(f"{uri} ends before the bytes that were asked for", hint="use a complete one")
    if code in PASSING:
        return StorageError(f"S3 could not serve {uri}: {code}", hint="run it again later")
    return Refused(f"S3 refused {uri}: {code}", hint="check address, credentials and permissions")


def error_code(error: BaseException) -> str:
    """What S3 calls the failure; empty where it did not answer."""
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, ClientError) else ""
