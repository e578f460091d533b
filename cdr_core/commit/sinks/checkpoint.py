"""``checkpoint:DIR``, local or ``s3://``: a checkpoint in Flink's format, with one publication for ever.

Files of channel state and of other state lie in ``DIR`` under names that no other attempt has; what makes them a
checkpoint is ``DIR/_metadata``, which is created last and exclusively. Its bytes carry no name of who wrote it, so a
*claim* ``DIR/_cdr/<SHA-256 of _metadata>.json`` is there before: a ``_metadata`` with our claim is ours, whichever of
our attempts wrote it, and any other is foreign.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, NoReturn

import msgspec
import numpy as np
import pyarrow as pa

from cdr_core.commit.committable import Chunks, PreparedFile
from cdr_core.commit.sinks.base import COMMIT_ID, COMMIT_USER, PROOF, LookUp, Publication, Published
from cdr_core.commit.sinks.parquet import place_for
from cdr_core.commit.sinks.prepared_files import Output, Summed, require_files
from cdr_core.errors import CommitConflict, CommitUnknown, IllegalState, Refused, StorageError, Unreadable
from cdr_core.faults import reach
from cdr_core.flink.channel_state import LENGTH_SIZE, STREAM_VERSION
from cdr_core.flink.channel_writer import LONGEST_CHUNK, ChunkBatch
from cdr_core.flink.checkpoint import METADATA_FILE
from cdr_core.kernels import channel_batches
from cdr_core.storage import Storage, join, storage_for

CLAIM_VERSION = 1
RECEIPT_FILE, LEDGER_BESIDE = "cdr-receipt.json", "cdr-ledger.parquet"
CLAIMS = "_cdr"

_NOTHING = "nothing"
"""The base of every publication: there is no checkpoint yet."""


STREAM_HEADER = STREAM_VERSION.to_bytes(4, "big")


class ChannelFile:
    """One file of channel state that is being written; ``prepared`` is known after a clean exit."""

    def __init__(self, output: Output, path: str) -> None:
        self._output, self._path = output, path
        self._summed = Summed(output)
        self._summed.write(STREAM_HEADER)
        self._chunks: list[tuple[Any, ...]] = []
        self._records = 0
        self.prepared: PreparedFile | None = None

    def append(self, batch: ChunkBatch) -> None:
        """Chunks of whole elements, each with its length field."""
        lengths = batch.ends - batch.begins + LENGTH_SIZE
        if len(lengths) and lengths.max() > LONGEST_CHUNK:
            raise Refused(f"a chunk of {lengths.max()} bytes is longer than its length field can say")
        data = np.empty(int(lengths.sum()), np.uint8)
        channel_batches.frame_chunks(batch.data, batch.begins, batch.ends, data)
        offsets = self._summed.size + np.cumsum(lengths) - lengths
        self._chunks.append((batch.channel, batch.output, offsets, lengths))
        self._summed.write(data.tobytes())
        self._records += batch.records

    def close(self) -> None:
        self._output.finish()
        empty = np.zeros(0, np.int64)
        columns = [np.concatenate([empty, *(chunk[place] for chunk in self._chunks)]) for place in range(4)]
        chunks = Chunks(columns[0], columns[1].astype(bool), columns[2], columns[3])
        file = PreparedFile(self._path, self._records, self._summed.size, self._summed.crc32c)
        self.prepared = file.with_chunks(chunks)

    def discard(self) -> None:
        self._output.discard()


class CheckpointSink:
    """See :class:`cdr_core.commit.sinks.base.Sink`. To publish, it must be :meth:`holding` what is to be published."""

    stores = True

    def __init__(self, directory: str, metadata: bytes | None = None, facts: Mapping[str, Any] | None = None) -> None:
        self.directory = directory.rstrip("/")
        self._storage: Storage = storage_for(directory)
        self._place = place_for(directory)
        self._metadata, self._facts = metadata, dict(facts or {})

    def holding(self, metadata: bytes, facts: Mapping[str, Any]) -> CheckpointSink:
        """The same sink, ready to publish a ``_metadata``; ``facts`` go into its claim."""
        return CheckpointSink(self.directory, metadata, facts)

    def refuse_early(self, schema: pa.Schema | None = None) -> None:
        self._place.refuse(self.directory)
        self._shown()

    def refuse_other_source(self, metadata_sha256: str) -> None:
        """Raise if a checkpoint is there that was made from another one than this."""
        shown = self._shown()
        if shown is not None and shown["source_metadata_sha256"] != metadata_sha256:
            raise Refused(
                f"{self.directory} holds what recovery {shown['properties'].get('cdr.recovery')} made of another"
                " checkpoint",
                hint="name another directory",
            )

    def columns(self) -> None:
        """A checkpoint has none."""

    def create(self, schema: pa.Schema) -> None:
        """Directories come with the first file."""

    def writer(self, name: str, schema: pa.Schema, row_group: int = 0) -> NoReturn:
        raise IllegalState("a checkpoint has no rows")

    def channel_file(self, name: str) -> AbstractContextManager[ChannelFile]:
        """A new file of channel state, durable after a clean exit and gone after any other."""
        path = file_name(name)
        return _making(ChannelFile(self._place.output(self.uri(path)), path))

    def uri(self, path: str) -> str:
        """Where a file that ``_metadata`` names is."""
        return join(self.directory, path)

    def size(self, path: str) -> int | None:
        """Bytes of a file that ``_metadata`` names; ``None`` if it is not there."""
        return self._place.size(self.uri(path))

    def output(self, path: str) -> Output:
        """A new file of any other content."""
        return self._place.output(self.uri(path))

    def look_up(self, commit_user: str) -> LookUp:
        shown = self._shown()
        if shown is None:
            return LookUp(_NOTHING, (), frozenset({_NOTHING}))
        properties = shown["properties"]
        if properties[COMMIT_USER] != commit_user:
            raise Refused(
                f"{self.directory} holds the checkpoint of another recovery, {properties.get('cdr.recovery')}",
                hint="recover to another directory",
            )
        sha256 = shown["metadata_sha256"]
        published = Published(int(properties[COMMIT_ID]), self._uri_of_metadata, sha256, properties.get(PROOF))
        return LookUp(sha256, (published,), frozenset({_NOTHING, sha256}))

    def publish(self, base: str, publication: Publication) -> Published:
        if self._metadata is None:
            raise IllegalState("there is no _metadata to publish")
        if base != _NOTHING:
            raise CommitConflict(f"{self._uri_of_metadata} is there already", hint="look up again")
        files = msgspec.convert(self._facts["files"], tuple[PreparedFile, ...])
        require_files(files, lambda file: self.size(file.path))
        sha256 = hashlib.sha256(self._metadata).hexdigest()
        claim = {
            "version": CLAIM_VERSION,
            "metadata_sha256": sha256,
            **self._facts,
            "files": [{"path": file.path, "bytes": file.bytes, "crc32c": file.crc32c} for file in files],
            "properties": dict(publication.properties),
        }
        if not self._storage.create(self._claim(sha256), json.dumps(claim, indent=1).encode()):
            # An earlier attempt wanted to publish the very same bytes; another recovery must not be taken for it.
            theirs = self._read_claim(self._claim(sha256))["properties"]
            if theirs[COMMIT_USER] != publication.properties[COMMIT_USER]:
                raise Refused(
                    f"recovery {theirs.get('cdr.recovery')} is publishing the same checkpoint to {self.directory}",
                    hint="recover to another directory",
                )
        publication.permit()
        reach("publish.before")
        try:
            created = self._storage.create(self._uri_of_metadata, self._metadata)
        except StorageError as error:
            raise CommitUnknown(f"it is not known whether {self._uri_of_metadata} was created: {error.what}") from error
        reach("publish.after")
        if not created:
            raise CommitConflict(f"{self._uri_of_metadata} was written by another process", hint="look up again")
        return Published(publication.commit_id, self._uri_of_metadata, sha256)

    def claim(self) -> Mapping[str, Any]:
        """What the claim of the published checkpoint says."""
        shown = self._shown()
        if shown is None:
            raise Unreadable(f"{self.directory} holds no checkpoint", hint="run commit again")
        return shown

    def write_receipt(self, receipt: Mapping[str, Any]) -> None:
        """Beside the checkpoint; the database has it too, and nothing is decided by this copy."""
        self._storage.replace(self.uri(RECEIPT_FILE), json.dumps(receipt, indent=1, default=str).encode())

    def open_file(self, file: PreparedFile) -> pa.NativeFile:
        return self._place.open(self.uri(file.path), file)

    def delete(self, path: str) -> None:
        """Remove a file that no ``_metadata`` names."""
        self._storage.delete(self.uri(path))

    @property
    def _uri_of_metadata(self) -> str:
        return join(self.directory, METADATA_FILE)

    def _claim(self, sha256: str) -> str:
        return join(self.directory, CLAIMS, f"{sha256}.json")

    def _shown(self) -> Mapping[str, Any] | None:
        """The claim of the ``_metadata`` that is there; ``None`` if there is none. One without a claim is refused."""
        if not self._storage.exists(self._uri_of_metadata):
            return None
        sha256 = hashlib.sha256(self._storage.read(self._uri_of_metadata)).hexdigest()
        uri = self._claim(sha256)
        if not self._storage.exists(uri):
            raise Refused(
                f"{self.directory} holds a checkpoint that cdr did not write", hint="name an empty or new directory"
            )
        return self._read_claim(uri)

    def _read_claim(self, uri: str) -> Mapping[str, Any]:
        try:
            claim: Mapping[str, Any] = json.loads(self._storage.read(uri))
            version = claim["version"]
            _ = claim["metadata_sha256"], claim["source_metadata_sha256"]
            _ = claim["properties"][COMMIT_USER], int(claim["properties"][COMMIT_ID])
        except (ValueError, KeyError, TypeError, AttributeError):
            hint = "it was damaged: restore it, or recover to another directory"
            raise Unreadable(f"{uri} is no claim of a publication", hint=hint) from None
        if version != CLAIM_VERSION:
            raise Refused(f"{uri} has version {version}, this cdr reads {CLAIM_VERSION}")
        return claim


def file_name(name: str) -> str:
    """A flat name for ``RECOVERY/eEPOCH-…``: it tells who made it, and is unique."""
    return f"cdr-{name.replace('/', '-')}"


@contextmanager
def _making(file: ChannelFile) -> Iterator[ChannelFile]:
    try:
        yield file
        file.close()
    except BaseException:
        with suppress(Exception):
            file.discard()
        raise
