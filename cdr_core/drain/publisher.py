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
        self._waiting: queue.SimpleQueue[tuple[int, Sequence[Committable]] | None] = queue.SimpleQueue()
        self._handed_over = self._published = 0
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
        self._handed_over += 1
        self._waiting.put((checkpoint, entries))

    @property
    def is_idle(self) -> bool:
        """Whether everything that was handed over is published."""
        return self._published == self._handed_over

    def _run(self) -> None:
        try:
            coordinator = self._make()
            self._restored.set()
            while (given := self._waiting.get()) is not None and not self._stopped:
                checkpoint, entries = given
                coordinator.deliver(CheckpointCoordinator(checkpoint))
                for entry in entries:
                    coordinator.deliver(CommittableEvent(entry, self._epoch))
                coordinator.deliver(CheckpointComplete(checkpoint))
                self._published += 1
        except BaseException as error:  # belongs to the driver's own thread
            self._failure = error
        finally:
            self._restored.set()
