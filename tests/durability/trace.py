"""What an ``strace -f -y`` says about durability: which files were given a name before their bytes were on the disk.

Only completed calls count, at the place where they completed; a link or rename counts from where it began.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath

CALLS = (
    "open,openat,creat,link,linkat,rename,renameat,renameat2,mkdir,mkdirat,fsync,fdatasync,"
    "write,writev,pwrite64,pwritev,ftruncate,copy_file_range,sendfile"
)
"""The system calls that have to be traced."""

_LINE = re.compile(r"^(\d+) +(?:(\w+)\((.*)|<\.\.\. (\w+) resumed>(.*))$")
_DESCRIPTOR = re.compile(r"^(?:\d+|AT_FDCWD)<([^>]*)>")
_PATH = re.compile(r'"((?:[^"\\]|\\.)*)"')
_DONE = re.compile(r"\) += (-?\d+)")
_UNFINISHED = "<unfinished ...>"
_WRITES = frozenset({"write", "writev", "pwrite64", "pwritev", "pwritev2", "ftruncate", "copy_file_range", "sendfile"})
_READS = frozenset({"read", "readv", "pread64", "preadv", "preadv2"})
_OFFSET = re.compile(r", (\d+)\) += \d+")
_OFFSET_BEFORE_FLAGS = re.compile(r", (\d+), \w+\) += \d+")


@dataclass(frozen=True, slots=True)
class Call:
    """One system call that succeeded: where in the trace it began and ended, the paths it was given, what it returned,
    and its last argument if that is a number: of a read or write at a place, the place.
    """

    name: str
    paths: tuple[str, ...]
    began: int
    ended: int
    creates: bool
    returned: int = 0
    offset: int = -1


@dataclass(slots=True)
class History:
    """What happened to the paths below one root, by position in the trace."""

    created: dict[str, int] = field(default_factory=dict)
    written: dict[str, int] = field(default_factory=dict)
    synced: dict[str, list[int]] = field(default_factory=dict)
    named: list[Call] = field(default_factory=list)
    directories: dict[str, int] = field(default_factory=dict)

    def is_synced(self, path: str, after: int, before: float = float("inf")) -> bool:
        return any(after < at < before for at in self.synced.get(path, ()))


def calls(lines: Iterable[str]) -> Iterator[Call]:
    """The calls that succeeded. A thread that was interrupted by another's line goes on where it says *resumed*."""
    waiting: dict[str, tuple[str, str, int]] = {}
    for number, line in enumerate(lines):
        match = _LINE.match(line.rstrip("\n"))
        if match is None:
            continue
        thread, name, arguments, _, rest = match.groups()
        if name is not None and arguments.endswith(_UNFINISHED):
            waiting[thread] = (name, arguments.removesuffix(_UNFINISHED), number)
            continue
        began = number
        if name is None:
            if thread not in waiting:
                continue
            name, first, began = waiting.pop(thread)
            arguments = first + rest
        done = _DONE.search(arguments)
        if done is not None and int(done.group(1)) >= 0:
            descriptor = _DESCRIPTOR.match(arguments)
            found = _PATH.findall(arguments) if name not in _WRITES | _READS and "sync" not in name else []
            paths = tuple(found) or ((descriptor.group(1),) if descriptor else ())
            place = (_OFFSET_BEFORE_FLAGS if name.endswith("v2") else _OFFSET).search(arguments)
            creates = "O_CREAT" in arguments or name == "creat"
            offset = int(place.group(1)) if place else -1
            yield Call(name, paths, began, number, creates, int(done.group(1)), offset)


def history(lines: Iterable[str], is_ours: Callable[[str], bool]) -> History:
    """The history of the paths that are ours."""
    seen = History()
    for call in calls(lines):
        if not call.paths or not is_ours(call.paths[-1]):
            continue
        path = call.paths[-1]
        if call.name in _WRITES:
            seen.written[path] = call.ended
        elif "sync" in call.name:
            seen.synced.setdefault(path, []).append(call.ended)
        elif call.name.startswith(("link", "rename")):
            seen.named.append(call)
        elif call.name.startswith("mkdir"):
            seen.directories[path] = call.ended
        elif call.creates:
            seen.created.setdefault(path, call.ended)
    return seen


def faults(seen: History, is_needed: Callable[[str], bool]) -> list[str]:
    """What a power cut could take of the files that are needed, one sentence each; empty = nothing."""
    found = []
    final: dict[str, int] = {}
    for call in seen.named:
        old, new = call.paths
        if not is_needed(new):
            continue
        final[new] = call.ended
        if not seen.is_synced(old, seen.written.get(old, seen.created.get(old, -1)), call.began):
            found.append(f"{new} got its name before its bytes were synced")
    sources = {call.paths[0] for call in seen.named}
    for path, at in seen.created.items():
        if path in sources or not is_needed(path):
            continue
        final[path] = at
        if not seen.is_synced(path, seen.written.get(path, at)):
            found.append(f"{path} was written and never synced")
    found += [f"{p} has a name that was never synced" for p, at in final.items() if not seen.is_synced(_parent(p), at)]
    above = {str(parent) for path in final for parent in PurePosixPath(path).parents}
    return found + [
        f"directory {path} has a name that was never synced"
        for path, at in seen.directories.items()
        if path in above and not seen.is_synced(_parent(path), at)
    ]


def _parent(path: str) -> str:
    return str(PurePosixPath(path).parent)
