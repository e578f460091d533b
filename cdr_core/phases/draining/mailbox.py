"""How the drain's driver and its tasks talk: small files in the attempt's own directory, each created exclusively.

``requests/N.json`` asks every subtask for recovery checkpoint N; ``answers/N/UNIT.json`` is a subtask's answer, and
whoever creates it first has given it: a task, or the driver for a subtask that does not run. ``started/UNIT`` says
that a task has begun with a subtask.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from cdr_core.drain.checkpoints import Answer, Outcome
from cdr_core.phases.workspace import read_json, write_json
from cdr_core.storage import join, storage_for

NOTHING_SAID: Mapping[str, Any] = {"watermark": None, "idle": False}
"""Of a subtask that has not begun: every other one waits for its watermark."""

REMEMBERED = 4096
"""Answers kept in memory, at most."""


@dataclass(frozen=True, slots=True)
class Request:
    """Asks for a checkpoint; an aligned one lets the data in flight pass first, for at most ``aligned_timeout``."""

    checkpoint: int
    aligned_timeout: float | None = None


class Mailbox:
    """The mail of one drain attempt."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._storage = storage_for(directory)
        self._read: dict[str, Answer] = {}

    def ask(self, request: Request) -> None:
        write_json(join(self._directory, "requests", f"{request.checkpoint:06d}.json"), asdict(request))

    def requests_after(self, checkpoint: int) -> list[Request]:
        """Requests with a higher number, ascending."""
        numbered = [(_number(uri), uri) for uri in self._storage.list(join(self._directory, "requests"))]
        return [Request(**read_json(uri)) for number, uri in sorted(numbered) if number > checkpoint]

    def answer(self, unit: str, answer: Answer) -> bool:
        """``False`` if this subtask's answer has been given already."""
        return write_json(self._answer(answer.checkpoint, unit), answer.to_json())

    def given(self, checkpoint: int, unit: str) -> Answer:
        """The answer that is there. It never changes, so it is read once; the driver asks at every look."""
        uri = self._answer(checkpoint, unit)
        if uri not in self._read:
            if len(self._read) >= REMEMBERED:
                self._read.clear()
            self._read[uri] = Answer.from_json(read_json(uri))
        return self._read[uri]

    def answered(self, checkpoint: int) -> list[str]:
        """Units whose answer to a checkpoint is there."""
        found = self._storage.list(join(self._directory, "answers", f"{checkpoint:06d}"))
        return [uri.rpartition("/")[2].removesuffix(".json") for uri in found]

    def latest_cut(self, unit: str) -> Answer | None:
        """The last cut that was answered for a subtask in this attempt: where a task that takes it over goes on."""
        for request in reversed(self.requests_after(0)):
            if self._storage.exists(self._answer(request.checkpoint, unit)):
                answer = self.given(request.checkpoint, unit)
                if answer.outcome is Outcome.CUT:
                    return answer
        return None

    def start(self, unit: str) -> None:
        # Not durable: nothing of this attempt is asked for after a power failure.
        uri = join(self._directory, "started", unit)
        self._storage.replace(uri, b"")

    def started(self) -> set[str]:
        return {uri.rpartition("/")[2] for uri in self._storage.list(join(self._directory, "started"))}

    def _answer(self, checkpoint: int, unit: str) -> str:
        return join(self._directory, "answers", f"{checkpoint:06d}", f"{unit}.json")


def _number(uri: str) -> int:
    return int(uri.rpartition("/")[2].removesuffix(".json"))


def cut_body(
    files: list[dict[str, Any]], manifest: str, said: Mapping[str, Any] = NOTHING_SAID, columns: str = ""
) -> dict[str, Any]:
    """What a cut leaves: output prepared since the last one, its spill set, what the input said of its watermark, and
    the columns of :meth:`~cdr_core.drain.state.DrainState.to_columns`; none = nothing was delivered.
    """
    return {"files": files, "manifest": manifest, "said": dict(said), "columns": columns}
