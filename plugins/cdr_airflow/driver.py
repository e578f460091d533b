"""One driver process: started in its own process group, read line by line, ended as a whole."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO, Any, Self

from cdr_airflow.die_with_parent import tethered

MAXIMUM_LINE = 64 * 1024
"""A line longer than this is cut into several: a driver gone wild must not fill the memory of the task."""

MAXIMUM_LEFTOVER_READS = 1024
"""Reads after the driver's end: more than a pipe holds, but bounded, even if a grandchild never stops writing."""

GRACE_SECONDS = 2.0
"""Seconds that a driver whose time is over gets to stop by itself."""

POLL_SECONDS = 0.2
"""Seconds until the driver's end is noticed if a grandchild still holds its pipes open; normally their end shows it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a driver ended: exit status (negative: the signal that killed it) and its last lines."""

    exit_code: int
    last_output: str
    last_error: str

    @property
    def result(self) -> dict[str, Any]:
        """Return the JSON object on the last line of standard output; empty where there is none."""
        try:
            value = json.loads(self.last_output)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}

    @property
    def kind(self) -> str:
        """Return the class of the error that ended it, as the driver names it; empty where it could not."""
        kind = self.result.get("kind")
        return kind if isinstance(kind, str) and self.exit_code else ""

    @property
    def remedy(self) -> tuple[str, ...]:
        """Return options with which the same recovery would continue, as the driver names them."""
        options = self.result.get("remedy")
        return tuple(map(str, options)) if isinstance(options, list) and self.exit_code else ()

    @property
    def sentence(self) -> str:
        """Return what went wrong: the driver's own message, else its last line, else how its process ended."""
        sentence = self.result.get("error")
        if isinstance(sentence, str) and sentence:
            return sentence
        if self.last_error:
            return self.last_error.removeprefix("cdr: ")
        how = f"was killed by signal {-self.exit_code}" if self.exit_code < 0 else f"ended with {self.exit_code}"
        return f"the driver {how} and left no message"


class Driver:
    """A running driver. It dies with the thread that started it, so start it where the task itself lives."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @classmethod
    def start(cls, command: list[str], environment: Mapping[str, str]) -> Self:
        """Start ``command`` in a session of its own.

        Standard input is empty and the pipes are private: a driver that inherited the task's channels to Airflow would
        hide the task's death from it.
        """
        process = subprocess.Popen(
            tethered(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment),
            start_new_session=True,
        )
        return cls(process)

    @property
    def pid(self) -> int:
        """Return the process id, which is also the id of the process group."""
        return self._process.pid

    def follow(
        self, on_line: Callable[[str], None], clean: Callable[[str], str] = str, *, seconds: float | None = None
    ) -> Outcome:
        """Hand over every line as it comes, until the driver has ended; one that works for longer than ``seconds`` is
        ended.

        ``clean`` removes secrets: from the lines, and so from the outcome, which is made of them.
        """
        until = None if seconds is None else time.monotonic() + seconds
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        output, error = _Lines(on_line, clean), _Lines(on_line, clean)
        with selectors.DefaultSelector() as selector:
            for pipe, lines in ((self._process.stdout, output), (self._process.stderr, error)):
                os.set_blocking(pipe.fileno(), False)
                selector.register(pipe, selectors.EVENT_READ, lines)
            while selector.get_map() and (self._process.poll() is None):
                _read_ready(selector, POLL_SECONDS)
                if until is not None and time.monotonic() > until:
                    self.end(GRACE_SECONDS)
            # The output before the end is still in the pipes; their end may never come, see POLL_SECONDS.
            for _ in range(MAXIMUM_LEFTOVER_READS):
                if not selector.get_map() or not _read_ready(selector, 0):
                    break
        while self._process.poll() is None:
            time.sleep(POLL_SECONDS / 10)
        for pipe, lines in ((self._process.stdout, output), (self._process.stderr, error)):
            pipe.close()
            lines.finish()
        return Outcome(self._process.returncode, output.last, error.last)

    def terminate(self) -> None:
        """Ask the whole group to end."""
        self._signal(signal.SIGTERM)

    def end(self, grace: float) -> None:
        """End the whole group: ask, wait at most ``grace`` seconds, kill. Harmless when it has ended."""
        if not self._alive():
            return
        self.terminate()
        if not self._gone_within(grace):
            self._signal(signal.SIGKILL)
            self._gone_within(1.0)

    def _gone_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self._alive():
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.02)
        return True

    def _alive(self) -> bool:
        # Reap first: a dead leader that was not waited for still counts as a member of its group.
        self._process.poll()
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return


class _Lines:
    """Splits bytes into lines; remembers the last non-empty line."""

    def __init__(self, on_line: Callable[[str], None], clean: Callable[[str], str]) -> None:
        self._on_line = on_line
        self._clean = clean
        self._rest = b""
        self.last = ""

    def feed(self, chunk: bytes) -> None:
        *whole, self._rest = (self._rest + chunk).split(b"\n")
        for line in whole:
            self._emit(line)
        while len(self._rest) > MAXIMUM_LINE:
            self._emit(self._rest[:MAXIMUM_LINE])
            self._rest = self._rest[MAXIMUM_LINE:]

    def finish(self) -> None:
        self._emit(self._rest)
        self._rest = b""

    def _emit(self, line: bytes) -> None:
        text = self._clean(line.decode(errors="replace").rstrip())
        if text:
            self.last = text
            self._on_line(text)


def _read_ready(selector: selectors.BaseSelector, timeout: float) -> bool:
    """Feed the bytes that have arrived; return whether there were any."""
    ready = selector.select(timeout)
    for key, _ in ready:
        pipe: IO[bytes] = key.fileobj  # type: ignore[assignment] # registered above as file objects
        chunk = os.read(pipe.fileno(), MAXIMUM_LINE)
        if chunk:
            key.data.feed(chunk)
        else:
            selector.unregister(pipe)
    return bool(ready)
