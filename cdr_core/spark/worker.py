"""The executor's side of a unit: call the function, and pass its error to the driver unchanged.

Spark hands the driver only text. An error of cdr is one marked token in that text, so that the driver raises the same
class with the same place and hint. Spark also retries every failure; where a retry cannot help, the first failed task
leaves a note on its host, and later attempts and units of the same run raise it again at once.
"""

from __future__ import annotations

import base64
import importlib
import json
import os
import re
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdr_core.errors import CdrError, JobFailed, Where

if TYPE_CHECKING:
    import pyarrow as pa

UnitFunction = Callable[[str, str, int], None]
"""``function(payload, unit, task_attempt)``: does the unit and writes its own result manifest."""

NOTES_VARIABLE = "CDR_SPARK_NOTES"
"""Environment of the executors: a directory of this host for notes about runs that are lost; unset = no notes."""

PRELOAD_VARIABLE = "CDR_SPARK_PRELOAD"
"""Environment of the workers' daemon: modules to import before it forks, separated by commas."""

_MARK = re.compile(r"cdr-error:([A-Za-z0-9_=-]+):end")


class UnitFailed(Exception):
    """Raised by a task; its text is the marked token."""


def encode(error: CdrError) -> str:
    """Return the error as one token that survives being quoted, indented and wrapped into other messages."""
    kind = type(error)
    value = {
        "kind": f"{kind.__module__}:{kind.__qualname__}",
        "what": error.what,
        "where": asdict(error.where),
        "hint": error.hint,
    }
    return f"cdr-error:{base64.urlsafe_b64encode(json.dumps(value).encode()).decode()}:end"


def decode(text: str) -> CdrError | None:
    """Return the first error of cdr inside the text, or ``None``; a kind this version does not know becomes
    JobFailed.
    """
    match = _MARK.search(text)
    if match is None:
        return None
    value = json.loads(base64.urlsafe_b64decode(match.group(1)))
    return _kind(value["kind"])(value["what"], where=Where(**value["where"]), hint=value["hint"])


def _kind(path: str) -> type[CdrError]:
    try:
        found = resolve(path)
    except (ImportError, AttributeError, ValueError):
        return JobFailed
    return found if isinstance(found, type) and issubclass(found, CdrError) else JobFailed


def resolve(path: str) -> Any:
    """Return the object of ``package.module:name``; only modules of cdr and tests are accepted."""
    module, _, name = path.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


@dataclass(frozen=True, slots=True)
class UnitTask:
    """The task that Spark sends to the executors: names and paths only, never the bytes of a recovery."""

    function: str
    payload: str
    units: tuple[str, ...]
    run: str
    after: str = ""
    """Called when a task has done its units, also if one failed: it releases what they shared."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Do the units with these numbers. Nothing is returned: a row a unit would double the cost of a small one, and
        the success of the job already means that all are done.
        """
        from pyspark import TaskContext

        context = TaskContext.get()
        attempt = context.attemptNumber() if context else 0
        try:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    self._do(self.units[number], attempt)
        finally:
            if self.after:
                resolve(self.after)()
        return iter(())

    def _do(self, unit: str, attempt: int) -> None:
        note = self._note()
        if note is not None and note.is_file():
            raise UnitFailed(note.read_text())
        try:
            function: UnitFunction = resolve(self.function)
            function(self.payload, unit, attempt)
        except CdrError as error:
            if note is not None and not error.retry_helps:
                _leave(note, encode(error))
            raise UnitFailed(encode(error)) from error
        except Exception as error:
            traceback.print_exc()  # to the executor's log: Spark's own text shows only where it was wrapped
            failed = JobFailed(f"unit {unit} failed: {type(error).__name__}: {error}{_place(error)}")
            raise UnitFailed(encode(failed)) from error

    def _note(self) -> Path | None:
        folder = os.environ.get(NOTES_VARIABLE)
        return Path(folder) / f"{self.run}.failed" if folder else None


def _place(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""


def _leave(note: Path, text: str) -> None:
    """Write a note atomically. Failing to write it costs retries, nothing else."""
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        fresh = note.with_suffix(f".{os.getpid()}")
        fresh.write_text(text)
        fresh.replace(note)
    except OSError:
        return
