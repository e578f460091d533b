"""An S3 object written as it is made: parts go up while later bytes are still being made, and it appears whole at the
end or not at all."""

from __future__ import annotations

from typing import Any, Final

from cdr_core.errors import Refused
from cdr_core.storage.s3 import CHANGED, error_code, patiently, split

PART: Final = 8 * 1024 * 1024
"""Bytes of a part, and so what is held of an object in memory. S3 takes parts from 5 MiB and 10 000 of them."""
MOST_PARTS: Final = 10_000
GONE: Final = frozenset({"NoSuchUpload"})


class Upload:
    """One object that is being written. Takes a name that is free: one that is taken by the end is refused.

    Every part is tried as often as any other request. What is neither finished nor given up costs money until the
    bucket's own rules remove it, so :meth:`abort` is called on every way out but the good one.
    """

    def __init__(self, client: Any, uri: str) -> None:
        self._client, self.uri = client, uri
        bucket, key = split(uri)
        self._place = {"Bucket": bucket, "Key": key}
        answer = patiently(uri, lambda: client.create_multipart_upload(**self._place))
        self._place_of_part = {**self._place, "UploadId": answer["UploadId"]}
        self._parts: list[dict[str, Any]] = []
        self._held = bytearray()
        self._size = 0

    def write(self, data: bytes, /) -> None:
        """All of it is taken; parts that are full go up before this returns."""
        self._held += data
        self._size += len(data)
        while len(self._held) >= (part := self._part_size()):
            self._send(bytes(self._held[:part]))
            del self._held[:part]

    def finish(self) -> None:
        """The object appears, durable, with everything that was written."""
        if self._held or not self._parts:
            self._send(bytes(self._held))
            self._held.clear()
        doubtful = False

        def complete() -> None:
            nonlocal doubtful
            try:
                self._client.complete_multipart_upload(
                    **self._place_of_part, MultipartUpload={"Parts": self._parts}, IfNoneMatch="*"
                )
            except Exception as error:
                if doubtful and error_code(error) in GONE | CHANGED and self._is_there():
                    return
                doubtful = True
                raise

        patiently(self.uri, complete)

    def abort(self) -> None:
        """Give it up; nothing was ever visible."""
        patiently(self.uri, lambda: self._client.abort_multipart_upload(**self._place_of_part))

    def _is_there(self) -> bool:
        """After a lost answer: the upload is gone because it became the object, or because it was removed."""
        return int(self._client.head_object(**self._place)["ContentLength"]) == self._size

    def _send(self, data: bytes) -> None:
        number = len(self._parts) + 1
        if number > MOST_PARTS:
            raise Refused(f"{self.uri} is too large for S3", hint="write more and smaller objects")
        place = {**self._place_of_part, "PartNumber": number}
        answer = patiently(self.uri, lambda: self._client.upload_part(**place, Body=data))
        self._parts.append({"PartNumber": number, "ETag": answer["ETag"]})

    def _part_size(self) -> int:
        """Larger after every thousand, so that the number of parts bounds nothing that anybody writes."""
        return PART * (1 + len(self._parts) // 1000)
