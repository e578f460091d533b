"""Comparison of everything that is not in flight with the checkpoint that it was written from.

A rewrite must keep version, id, hooks, properties, operators with their names and coordinators, and, if an operator
keeps its parallelism, every handle and every byte of its state. Redistributed state can only be compared with the sums
that were stored when it was written (see ``published``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

from cdr_core.errors import CdrError
from cdr_core.storage import storage_for
from cdr_core.verify.channel_handles import Handle, Place
from cdr_core.verify.checkpoint import Checkpoint, plain_address
from cdr_core.verify.handles import State, Stream
from cdr_core.verify.metadata import Metadata, Operator
from cdr_core.verify.report import Difference, Kind

_PIECE = 16 * 1024 * 1024
_NOTHING = State(bytes(10))
"""No handle of any of the four kinds: two counts and two tags of zero."""


def compare_frame(source: Metadata, target: Metadata, parallelism: Mapping[str, int]) -> Iterator[Difference]:
    """Compare ``_metadata`` except the state; ``parallelism`` by operator id is the wanted one, if it is known."""
    for name in ("version", "checkpoint_id"):
        if getattr(source, name) != getattr(target, name):
            what = f"_metadata has {name} {getattr(target, name)} instead of {getattr(source, name)}"
            yield Difference(Kind.CHANGED, what)
    if source.master != target.master:
        yield Difference(Kind.CHANGED, "the state of the job's hooks is not the source's")
    if source.tail != target.tail:
        yield Difference(Kind.CHANGED, "the checkpoint's properties are not the source's")
    before, after = ({operator.id: operator for operator in each.operators} for each in (source, target))
    for missing in sorted(before.keys() - after.keys()):
        yield Difference(Kind.MISSING, f"the output does not have operator {before[missing].label}")
    for extra in sorted(after.keys() - before.keys()):
        yield Difference(Kind.EXTRA, f"the output has operator {after[extra].label}, which the source does not have")
    if len(target.operators) != len(after):
        yield Difference(Kind.EXTRA, "the output has an operator twice")
    pairs = [(before[both], after[both]) for both in sorted(before.keys() & after.keys())]
    marked = all(old.parallelism == new.parallelism for old, new in pairs)
    for old, new in pairs:
        yield from _compare_operators(old, new, parallelism.get(old.id), marked=marked)


def _compare_operators(old: Operator, new: Operator, wanted: int | None, *, marked: bool) -> Iterator[Difference]:
    """Compare two operators. ``marked``: nothing was rescaled, so finished subtasks are marked as in the source."""
    for name in ("name", "uid", "max_parallelism"):
        if getattr(old, name) != getattr(new, name):
            what = f"operator {old.label} has {name} {getattr(new, name)!r} instead of {getattr(old, name)!r}"
            yield Difference(Kind.CHANGED, what)
    if wanted is not None and new.parallelism != wanted:
        what = f"operator {old.label} has parallelism {new.parallelism} instead of {wanted}"
        yield Difference(Kind.CHANGED, what)
    if bool(old.ended) != bool(new.ended) or (old.parallelism == new.parallelism and old.ended != new.ended):
        yield Difference(Kind.CHANGED, f"operator {old.label} has finished, or has not, where it is otherwise")
    if new.finished != (old.finished if marked else set()):
        yield Difference(Kind.CHANGED, f"of operator {old.label} other subtasks have finished than in the source")
    there, every = {*new.states, *new.finished}, {*old.states, *old.finished} == {*range(old.parallelism)}
    if not there <= {*range(new.parallelism)} or (every and there != {*range(new.parallelism)}):
        what = f"operator {old.label} has parallelism {new.parallelism} and {len(there)} subtasks that do not fit it"
        yield Difference(Kind.CHANGED, what)
    for stated, added in new.totals:
        if stated != added:
            yield Difference(
                Kind.CHANGED, f"channels of operator {old.label} have {stated} bytes by their handle, not {added}"
            )


def compare_state(source: Checkpoint, target: Checkpoint) -> Iterator[Difference]:
    """Compare coordinators, and the state of all operators whose parallelism is the same."""
    before = {operator.id: operator for operator in source.metadata.operators}
    for new in target.metadata.operators:
        old = before.get(new.id)
        if old is None:
            continue
        name = f"the coordinator of operator {old.label}"
        yield from _compare(source, target, old.coordinator, new.coordinator, name)
        if old.parallelism != new.parallelism:
            continue
        for index in sorted(old.states.keys() | new.states.keys()):
            name = f"subtask {index} of operator {old.label}"
            states = old.states.get(index, _NOTHING), new.states.get(index, _NOTHING)
            yield from _compare(source, target, *states, name)


def moved_state(source: Metadata, target: Metadata) -> list[str]:
    """Return operators whose state was redistributed: it cannot be compared with the source handle by handle."""
    new = {operator.id: operator.parallelism for operator in target.operators}
    return [
        each.label
        for each in source.operators
        if new.get(each.id, each.parallelism) != each.parallelism
        and any(state != _NOTHING for state in each.states.values())
    ]


def _compare(source: Checkpoint, target: Checkpoint, old: State, new: State, name: str) -> Iterator[Difference]:
    labels = [[stream.label for stream in state.streams] for state in (old, new)]
    if old.shape != new.shape or labels[0] != labels[1]:
        yield Difference(Kind.CHANGED, f"the state of {name} is described otherwise than in the source")
        return
    for ours, theirs in zip(old.streams, new.streams, strict=True):
        if _same_file(source, target, ours, theirs):
            if ours.size != theirs.size:
                yield Difference(Kind.CHANGED, f"the state of {name} has another size than in the source")
            continue
        if problem := _different(source, target, ours, theirs):
            yield Difference(Kind.CHANGED, f"the state of {name} {problem}")


def _same_file(source: Checkpoint, target: Checkpoint, ours: Stream, theirs: Stream) -> bool:
    """Return whether both streams are the same bytes of the same file, so that there is nothing to compare."""
    if ours.inline is not None or theirs.inline is not None:
        return ours.inline == theirs.inline
    if (ours.start, ours.length) != (theirs.start, theirs.length):
        return False
    elsewhere = ours.path == theirs.path and not ours.relative and not theirs.relative
    return elsewhere or source.address(ours) == target.address(theirs)


def _different(source: Checkpoint, target: Checkpoint, ours: Stream, theirs: Stream) -> str:
    """Return how the bytes of a stream differ from the source's; empty if they are equal. The source must
    be readable.
    """
    before = source.data(ours)
    begin, end = _bounds(ours, len(before))
    where = target.address(theirs) if theirs.inline is None else "_metadata itself"
    try:
        after = target.data(theirs)
    except CdrError as error:
        return f"cannot be read: {error.what}"
    first, last = _bounds(theirs, len(after))
    if last - first != end - begin:
        return f"has {last - first} bytes in {where} instead of {end - begin}"
    for at in range(0, end - begin, _PIECE):
        step = min(_PIECE, end - begin - at)
        if before[begin + at : begin + at + step] != after[first + at : first + at + step]:
            return f"is not the source's: other bytes are in {where}"
    return ""


def _bounds(stream: Stream, size: int) -> tuple[int, int]:
    end = size if stream.length is None else min(stream.start + stream.length, size)
    return stream.start, max(end, stream.start)


def check_streams(source: Metadata, target: Checkpoint) -> Iterator[Difference]:
    """Require that every file that the checkpoint names exists and has the stated size.

    Files elsewhere that the source names in the same way are not the output's: see :func:`missing_elsewhere`.
    """
    seen = {_place(stream) for stream in _streams(source) if not stream.relative}
    for stream in _streams(target.metadata):
        if stream.inline is None and _place(stream) not in seen:
            seen.add(_place(stream))
            end = 0 if stream.length is None else stream.start + stream.length
            yield from _check_file(target.address(stream), stream.size, end)


def _place(stream: Stream) -> tuple[str, int | None, int, int | None]:
    return stream.path, stream.size, stream.start, stream.length


def _check_file(address: str, stated: int | None, end: int) -> Iterator[Difference]:
    size = _size(address)
    if size is None:
        yield Difference(Kind.MISSING, f"{address!r} is needed and cannot be found")
    elif size != (size if stated is None else stated) or size < end:
        what = f"{address} has {size} bytes, _metadata states {end if stated is None else stated}"
        yield Difference(Kind.CHANGED, what)


def _size(address: str) -> int | None:
    try:
        return storage_for(address).size(address)
    except (CdrError, ValueError):  # Python itself refuses a name with a NUL
        return None


def missing_elsewhere(target: Checkpoint) -> list[str]:
    """Return files outside the checkpoint's directory that its state depends on and that cannot be found from here."""
    return sorted(path for path in state_files(target.metadata) if _size(plain_address(path)) is None)


def _streams(metadata: Metadata) -> Iterator[Stream]:
    for operator in metadata.operators:
        yield from operator.coordinator.streams
        for state in operator.states.values():
            yield from state.streams
        yield from operator.inputs.streams
        yield from operator.outputs.streams


def relative_files(metadata: Metadata) -> set[str]:
    """Return the names of the files beside ``_metadata`` that it needs."""
    return {stream.path for stream in _streams(metadata) if stream.relative}


def state_files(metadata: Metadata) -> set[str]:
    """Return files elsewhere that hold state which is not in flight."""
    states = (state for operator in metadata.operators for state in operator.states.values())
    return {s.path for state in states for s in state.streams if s.inline is None and not s.relative}


def check_sizes(source: Checkpoint, target: Checkpoint) -> Iterator[Difference]:
    """Compare the sizes that channel handles state. Some writers define the size differently; theirs are
    not compared.
    """
    if any(_misstated(source)):
        return
    for operator, place, stated, actual in _misstated(target):
        what = f"channel ({place.a}, {place.b}) of subtask {place.subtask} of operator {operator.label}"
        yield Difference(Kind.CHANGED, f"{what} has {stated} bytes by its handle, it has {actual}")


def _misstated(checkpoint: Checkpoint) -> Iterator[tuple[Operator, Place, int, int]]:
    for operator in checkpoint.metadata.operators:
        for place, handle in chain(operator.inputs.items(), operator.outputs.items()):
            actual = _chunk_bytes(checkpoint, handle)
            if actual is not None and actual != handle.size:
                yield operator, place, handle.size, actual


def _chunk_bytes(checkpoint: Checkpoint, handle: Handle) -> int | None:
    """Return their bytes with length fields; ``None`` if they cannot be read, which reading the channel reports."""
    try:
        data = checkpoint.data(handle.stream)
    except CdrError:
        return None
    starts = [handle.stream.start + offset for offset in handle.offsets]
    return sum(4 + int.from_bytes(data[at : at + 4], "big", signed=True) for at in starts)
