"""``cdr generate``: a checkpoint in Flink's format with in-flight records, no Flink needed."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from cdr_core.cli.shared import JsonFlag, print_json
from cdr_core.errors import DiskFull, Refused, StorageError

if TYPE_CHECKING:
    from cdr_core.flink.generate import ExchangeShape, Generated, Spread
    from cdr_core.rescale.spec import JobSpec, Partitioner

VERSIONS = (3, 6)


def generate(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="A directory that is new or empty.")],
    spec: Annotated[str, typer.Option("--spec", help="The job spec: a YAML file. Its operators are made up.")],
    parallelism: Annotated[str, typer.Option("--parallelism", help="Of every operator: 3; or by name: gen=4,slow=3.")],
    size: Annotated[str, typer.Option("--bytes", help="Payload in flight, about: 100MB, 1GiB.")],
    seed: Annotated[int, typer.Option("--seed", min=0, help="The same seed and options give the same bytes.")] = 7,
    upstream: Annotated[
        int, typer.Option("--upstream-parallelism", min=0, help="Of operators that are no exchange's downstream.")
    ] = 0,
    max_parallelism: Annotated[int, typer.Option("--max-parallelism", help="Key groups.")] = 128,
    record_bytes: Annotated[
        str, typer.Option("--record-bytes", metavar="MIN-MAX", help="Of a record with a text or bytes field.")
    ] = "100-200",
    keys: Annotated[int, typer.Option("--keys", help="Different keys.")] = 1000,
    skew: Annotated[bool, typer.Option("--skew", help="Few keys have most of the records.")] = False,
    watermarks: Annotated[
        bool, typer.Option("--watermarks/--no-watermarks", help="Among the records, rarely a latency marker too.")
    ] = True,
    timestamps: Annotated[bool, typer.Option("--timestamps", help="Records carry one.")] = False,
    version: Annotated[int, typer.Option("--version", min=VERSIONS[0], max=VERSIONS[1], help="Of _metadata.")] = 6,
    inline: Annotated[bool, typer.Option("--inline", help="All of it inside _metadata.")] = False,
    subtasks_per_file: Annotated[int, typer.Option("--subtasks-per-file", help="That share a file.")] = 5,
    buffer: Annotated[str, typer.Option("--buffer", help="A network buffer, the longest chunk.")] = "32KiB",
    as_json: JsonFlag = False,
) -> None:
    """A checkpoint in Flink's format with in-flight records, no Flink needed.

    Records of hash exchanges wait where their key belongs, those of custom ones anywhere. Forward, rescale and
    broadcast exchanges, and their neighbours at the same operator, have none, as in Flink.
    """
    from cdr_core.flink.generate import Shape, generate
    from cdr_core.rescale.spec import parse_spec, read_spec

    parsed = parse_spec(read_spec(spec))
    shape = Shape(
        exchanges=_exchanges(parsed),
        parallelism=_parallelism(parsed, parallelism, upstream),
        bytes=_size("--bytes", size),
        seed=seed,
        max_parallelism=max_parallelism,
        record_bytes=_range(record_bytes),
        keys=keys,
        skew=skew,
        watermarks=watermarks,
        timestamps=timestamps,
        version=version,
        inline=inline,
        subtasks_per_file=subtasks_per_file,
        buffer=_size("--buffer", buffer),
    )
    path = _new_directory(directory)
    with NewFiles(path) as files:
        generated = generate(shape, files.create)
        files.settle()
        _publish(path, generated)
    _show(path, generated, as_json)


class NewFiles:
    """Files of a directory that are all there when the block ends, or none: a failure takes them away again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._existed = directory.exists()
        self._files: dict[Path, BinaryIO] = {}

    def __enter__(self) -> NewFiles:
        with _explained(self._directory):
            self._directory.mkdir(parents=True, exist_ok=True)
        return self

    def create(self, name: str) -> _Written:
        """A new file of this name, open until the end of the block."""
        path = self._directory / name
        with _explained(path):
            self._files[path] = path.open("xb")
        return _Written(path, self._files[path])

    def settle(self) -> None:
        """Close all files, their bytes on the disk: nothing may name a file that a crash can still cut short."""
        for path, file in self._files.items():
            with _explained(path):
                file.flush()
                os.fsync(file.fileno())
                file.close()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if kind is None:
            return
        for path, file in self._files.items():
            with suppress(OSError):
                file.close()
            path.unlink(missing_ok=True)
        if not self._existed:
            with suppress(OSError):
                self._directory.rmdir()


class _Written:
    """A file whose failures are one sentence."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path, self._file = path, file

    def write(self, data: bytes, /) -> None:
        with _explained(self._path):
            self._file.write(data)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn an operating-system error into one sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise DiskFull(f"no room left to write {path}", hint="free some space or generate less") from error
        if error.errno == errno.EMFILE:
            raise StorageError("too many open files", hint="give a larger --subtasks-per-file") from error
        raise StorageError(f"cannot write {path}: {error.strerror}", hint="check the path") from error


def _new_directory(directory: str) -> Path:
    """The path of a local directory that holds nothing."""
    if "://" in directory and not directory.startswith("file://"):
        raise Refused(f"{directory} is not a local directory", hint="generate the checkpoint here and copy it there")
    path = Path(directory.removeprefix("file://")).expanduser().absolute()
    with _explained(path):
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise Refused(f"{path} exists and is not empty", hint="give a new directory")
    return path


def _publish(path: Path, generated: Generated) -> None:
    """The metadata comes last: before it there is no checkpoint, with it there is a whole one."""
    from cdr_core.flink.checkpoint import METADATA_FILE
    from cdr_core.flink.metadata import write_metadata
    from cdr_core.storage import storage_for

    uri = str(path / METADATA_FILE)
    if not storage_for(uri).create(uri, write_metadata(generated.metadata)):
        raise Refused(f"{uri} appeared meanwhile", hint="give a directory that nobody else writes to")


def _exchanges(spec: JobSpec) -> tuple[ExchangeShape, ...]:
    from cdr_core.flink.generate import ExchangeShape

    return tuple(
        ExchangeShape(e.name, e.upstream, e.partition, e.downstream, e.gate, _spread(e.partitioner), e.record, e.key)
        for e in spec.exchanges
    )


def _spread(partitioner: Partitioner) -> Spread:
    from cdr_core.flink.generate import Spread
    from cdr_core.rescale.mapping import UNMOVABLE
    from cdr_core.rescale.spec import Partitioner

    if partitioner in UNMOVABLE:
        return Spread.NONE
    return {Partitioner.HASH: Spread.KEYED, Partitioner.GLOBAL: Spread.FIRST}.get(partitioner, Spread.ANY)


def _parallelism(spec: JobSpec, text: str, upstream: int) -> dict[str, int]:
    """Of every operator of the spec; ``upstream`` is that of operators which are no exchange's downstream."""
    from cdr_core.rescale.parallelism import parse_parallelism

    wish = parse_parallelism(text)
    operators = dict.fromkeys(name for e in spec.exchanges for name in (e.upstream, e.downstream))
    downstream = {exchange.downstream for exchange in spec.exchanges}
    found = dict(wish.by_operator)
    for name in operators:
        if upstream and name not in downstream:
            found[name] = upstream
        elif wish.everywhere is not None:
            found[name] = wish.everywhere
        elif name not in found:
            raise Refused(
                f"--parallelism {text} says nothing of operator {name}", hint=f"add {name}=3, or give a number"
            )
    return found


def _size(option: str, text: str) -> int:
    from cdr_core.settings import parse_size

    try:
        return parse_size(text)
    except ValueError as error:
        raise Refused(f"{option}: {error}") from None


def _range(text: str) -> tuple[int, int]:
    low, _, high = text.partition("-")
    return _size("--record-bytes", low), _size("--record-bytes", high or low)


def _show(path: Path, generated: Generated, as_json: bool) -> None:
    exchanges = generated.exchanges
    value: dict[str, Any] = {
        "path": str(path),
        "records": sum(exchange.records for exchange in exchanges),
        "elements": sum(exchange.elements for exchange in exchanges),
        "bytes": sum(exchange.bytes for exchange in exchanges),
        "buffers": generated.buffers,
        "files": generated.files + 1,
        "exchanges": [asdict(exchange) for exchange in exchanges],
    }
    if as_json:
        print_json(value)
        return
    typer.echo(value["path"])
    typer.echo(
        f"  {value['records']:,} records and {value['elements'] - value['records']:,} other elements, "
        f"{value['bytes']:,} bytes in flight in {value['buffers']:,} buffers, {value['files']:,} files"
    )
    for exchange in exchanges:
        where = f"{exchange.records:,} records, {exchange.bytes:,} bytes on {exchange.channels:,} channels"
        typer.echo(f"  exchange {exchange.name}: {where if exchange.channels else 'no in-flight data'}")
