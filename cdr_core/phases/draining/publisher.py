"""Publishes recovery checkpoints while the drain goes on: the commit coordinator, in a thread of its own.

A target that is slow or does not answer delays publications and nothing else: the driver hands over what a checkpoint
has completed and goes on. A publication that fails fails the attempt at the driver's next look.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from cdr_core.commit.events import CheckpointComplete, CheckpointCoordinator, CommittableEvent

if TYPE_CHECKING:
    from cdr_core.commit.committable import Committable
    from cdr_core.commit.coordinator import Coordinator

FLUSH_SECONDS = 0.1
"""How often :meth:`Publisher.flush` looks whether a publication has failed."""

STOP_SECONDS = 30.0
"""How long an attempt that has failed waits for a publication under way. One that ends later is still guarded by the
epoch, and found by the next look-up.
"""


class Publisher(AbstractContextManager["Publisher"]):
    """Entering makes the coordinator, which first publishes what an earlier attempt left to publish; leaving it waits
    until everything handed over is published. ``epoch`` is the attempt's.
    """

    def __init__(self, make: Callable[[], Coordinator], epoch: int) -> None:
        self._make, self._epoch = make, epoch
        self._waiting: queue.SimpleQueue[tuple[int, Sequence[Committable]] | threading.Event | None] = (
            queue.SimpleQueue()
        )
        self._restored = threading.Event()
        self._failure: BaseException | None = None
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="cdr-publisher", daemon=True)

    def __enter__(self) -> Publisher:
        self._thread.start()
        self._restored.wait()
        self.check()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._stopped = kind is not None
        self._waiting.put(None)
        self._thread.join(STOP_SECONDS if self._stopped else None)
        if not self._stopped:
            self.check()

    def check(self) -> None:
        """Raise what a publication failed with."""
        if self._failure is not None:
            raise self._failure

    def publish(self, checkpoint: int, entries: Sequence[Committable]) -> None:
        """A checkpoint is complete with these entries, which are durable: publish them, some time."""
        self._waiting.put((checkpoint, entries))

    def flush(self) -> None:
        """Wait until everything that was handed over is published."""
        done = threading.Event()
        self._waiting.put(done)
        while not done.wait(FLUSH_SECONDS):
            self.check()
        self.check()

    def _run(self) -> None:
        try:
            coordinator = self._make()
            self._restored.set()
            while (given := self._waiting.get()) is not None and not self._stopped:
                if isinstance(given, threading.Event):
                    given.set()
                    continue
                checkpoint, entries = given
                coordinator.deliver(CheckpointCoordinator(checkpoint))
                for entry in entries:
                    coordinator.deliver(CommittableEvent(entry, self._epoch))
                coordinator.deliver(CheckpointComplete(checkpoint))
        except BaseException as error:  # belongs to the driver's own thread
            self._failure = error
        finally:
            self._restored.set()
