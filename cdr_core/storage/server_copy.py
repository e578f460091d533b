"""Copies that an S3 server makes by itself: nothing is fetched."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any, Final

from cdr_core.storage.base import Stat
from cdr_core.storage.s3 import error_code, patiently, split
from cdr_core.storage.upload import GONE, MOST_PARTS

LARGEST: Final = 64 * 1024 * 1024
"""Bytes of one request, unless the object needs more parts than S3 takes: a server says nothing while it copies, and
a caller that hears nothing for as long as a read may take gives up."""


def copy_object(client: Any, source: str, target: str, stat: Stat) -> None:
    """What is at the target is replaced: the caller knows that it is free, because S3 makes no conditional copies.

    A source that is no longer the one of ``stat`` is Unreadable.
    """
    place = dict(zip(("Bucket", "Key"), split(target), strict=True))
    wanted = {
        "CopySource": dict(zip(("Bucket", "Key"), split(source), strict=True)),
        "CopySourceIfMatch": stat.tag,
    }
    if stat.size <= LARGEST:
        patiently(source, lambda: client.copy_object(**place, **wanted))
        return
    place["UploadId"] = patiently(target, lambda: client.create_multipart_upload(**place))["UploadId"]
    try:
        parts = []
        size = max(LARGEST, -(-stat.size // MOST_PARTS))
        for number, at in enumerate(range(0, stat.size, size), 1):
            part = {"CopySourceRange": f"bytes={at}-{min(at + size, stat.size) - 1}", "PartNumber": number}
            answer = patiently(source, partial(client.upload_part_copy, **place, **wanted, **part))
            parts.append({"PartNumber": number, "ETag": answer["CopyPartResult"]["ETag"]})
        _complete(client, target, {**place, "MultipartUpload": {"Parts": parts}}, stat.size)
    except BaseException:
        with suppress(Exception):
            client.abort_multipart_upload(**place)
        raise


def _complete(client: Any, target: str, ended: dict[str, Any], size: int) -> None:
    """After a lost answer the upload may be gone because it became the object."""
    doubtful = False

    def complete() -> None:
        nonlocal doubtful
        try:
            client.complete_multipart_upload(**ended)
        except Exception as error:
            place = {name: ended[name] for name in ("Bucket", "Key")}
            there = doubtful and error_code(error) in GONE
            if there and int(client.head_object(**place)["ContentLength"]) == size:
                return
            doubtful = True
            raise

    patiently(target, complete)
