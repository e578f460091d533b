"""A recovering subtask: its states, its channels, its drainer, and the task that consumes and cuts.

One thread, the task's, starts it, polls it and cuts it, and is the only one that reads or changes its state. The
drainer runs in a thread of its own, or is stepped. What goes wrong there is raised here, on the task's thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence

from cdr_core.drain import cut as cuts
from cdr_core.drain.channel import Key
from cdr_core.drain.cut import Cut
from cdr_core.drain.drainer import Drainer
from cdr_core.drain.inbox import Inbox
from cdr_core.drain.live import LiveView
from cdr_core.drain.pages import Page, PagePool
from cdr_core.drain.remaining import Remaining, Slice
from cdr_core.drain.requests import Requests
from cdr_core.drain.states import ANSWERS, ANSWERS_AFTER_RECOVERY, Answerer, State, move
from cdr_core.drain.tail import Tail
from cdr_core.errors import Closed, Declined, IllegalState, NotReady, Refused, Where
from cdr_core.spill.cursor import end_of
from cdr_core.spill.reader import Reader
from cdr_core.spill.segments import SpillSet


def no_upstream(gate: int, channel: int) -> LiveView:
    """A live view for a channel that has no live input, as in the recovery pipeline."""
    del gate, channel
    return LiveView(ended=True)


def _ignore(_: str) -> None:
    """Nobody watches."""


class RecoveringSubtask:
    """Delivers what ``remaining`` says is left of a sealed set, to ``channels`` given as (gate, channel).

    ``spill_set`` ``None`` = there was no state: every channel is live at once. With ``checkpoints`` off a cut is
    :class:`NotReady` until recovery is over, and a gate goes live when all of its own channels are done. Everything
    outside is injected: ``reader`` (disk), ``clock``, ``live`` (upstreams), ``drainer`` (for tests that break it),
    ``watch`` (told each state and each step of a cut).
    """

    def __init__(
        self,
        spill_set: SpillSet | None,
        reader: Reader,
        channels: Iterable[Key],
        pool: PagePool,
        remaining: Remaining,
        *,
        checkpoints: bool = True,
        live: Callable[[int, int], LiveView] = no_upstream,
        clock: Callable[[], float] = time.monotonic,
        lock: threading.Lock | None = None,
        drainer: type[Drainer] = Drainer,
        watch: Callable[[str], None] = _ignore,
    ) -> None:
        self._set, self._reader, self._pool, self._remaining = spill_set, reader, pool, remaining
        self._keys, self._live = sorted(set(channels)), live
        self._answers = ANSWERS if checkpoints else ANSWERS_AFTER_RECOVERY
        self._requests = Requests(clock)
        self._inbox = Inbox(pool, lock, opens_by_gate=not checkpoints)
        self._drainer_type = drainer
        self._drainer: Drainer | None = None
        self._tail: Tail | None = None
        self._thread: threading.Thread | None = None
        self._task = threading.get_ident()
        self._state = State.INIT
        self._watch = watch

    def __enter__(self) -> RecoveringSubtask:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- life ---

    def start(self, *, threaded: bool = True) -> None:
        """Look at the set, make the channels, then drain: in a thread, or (not ``threaded``) by :attr:`drainer`."""
        self._on_task()
        self._task = threading.get_ident()
        try:
            self._move(State.FETCH)
            if self._set is None:
                self._inbox.add(self._keys, self._live)
                self._inbox.open_live()
                self._move(State.CONSUMED)
                return
            self._tail = tail = self._fetch(self._set)
            self._move(State.CONVERT)
            self._inbox.add(self._keys, self._live)
            self._drainer = self._drainer_type(self._reader, self._inbox, self._pool, tail)
            self._move(State.DRAINING)
        except BaseException as error:
            self._inbox.fail(error)
            self._state = State.FAILED
            raise
        if threaded:
            self._thread = threading.Thread(target=self._drainer.run, name="cdr-drainer", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Free everything in every state: queued pages go back, a drainer that waits ends. Again is harmless.

        Pages that were polled stay with whoever polled them, and the pool with whoever made it.
        """
        for page in self._inbox.close():
            page.recycle()
        self._pool.nudge()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    @property
    def drainer(self) -> Drainer:
        """For whoever steps it."""
        if self._drainer is None:
            raise NotReady("the subtask has nothing to drain yet")
        return self._drainer

    # --- the task's thread ---

    @property
    def state(self) -> State:
        """Where it is; a failure of the drainer shows here as soon as the task looks."""
        self._on_task()
        self._settle()
        return self._state

    @property
    def done(self) -> bool:
        """Every channel has consumed its end marker. Raises what the drainer failed with."""
        self._check()
        return self._state is State.CONSUMED

    @property
    def finished(self) -> bool:
        """Done, and every input has ended: an input that ends during recovery waits for the rest of the recovery."""
        if not self.done:
            return False
        with self._inbox.changed:
            return self._inbox.is_over(None)

    def in_use(self, gate: int, channel: int) -> int:
        """Pages of a channel: in memory, on disk still to come, and live."""
        with self._inbox.changed:
            each = self._inbox.channels[gate, channel]
            to_come = each.parked_bytes + (self._tail.bytes_of(each.key) if self._tail else 0)
            return each.pages + -(-to_come // self._pool.page_size) + each.live.backlog

    def is_live(self, gate: int) -> bool:
        """Whether a gate has left recovery."""
        with self._inbox.changed:
            channels = [each for each in self._inbox.channels.values() if each.gate == gate]
            return all(each.live.is_open for each in channels)

    def poll(self, timeout: float = 0.0, gates: Collection[int] | None = None) -> Page | None:
        """The next page of any channel that has one, or of the selected gates; whoever gets it recycles it.

        ``None`` when the time is over, when nothing more will come from these gates, or when a checkpoint request
        arrived from upstream. Recycle what you hold before you poll again: with every page of the pool in the
        caller's hands there is none for the drainer to fill. Who selects other gates from call to call waits a
        little each time: with one page, what was loaded for a gate is parked again as soon as another is asked for.
        """
        deadline = time.monotonic() + timeout
        try:
            while True:
                self._check()
                with self._inbox.changed:
                    if self._hear():
                        return None
                    page = self._inbox.take(gates)
                    if page is not None or self._inbox.is_over(gates):
                        return page
                    self._inbox.want(gates)
                    left = deadline - time.monotonic()
                    if left <= 0 or self._inbox.failure is not None or self._inbox.closed:
                        break
                    self._inbox.changed.wait(left)
        finally:
            self._settle()
        self._check()
        return None

    def request(self, checkpoint: int, aligned_timeout: float | None = None) -> None:
        """Ask for a checkpoint: at once, or aligned for at most so many seconds."""
        self._on_task()
        self._requests.add(checkpoint, aligned_timeout)

    def due(self) -> tuple[int, ...]:
        """Requests to be cut now, ascending. Those nobody can answer yet wait; cutting one settles all older ones."""
        self._check()
        with self._inbox.changed:
            self._hear()
        if self._answers[self._state] is Answerer.NOT_READY:
            return ()
        return self._requests.due(consumed=self._state is State.CONSUMED)

    def cut(self, checkpoint: int, half_records: Sequence[Slice] = ()) -> Cut:
        """Take a checkpoint. ``half_records``: the end of what was polled that is not yet in the consumer's output.

        Raises :class:`NotReady` (ask again, not counted) or :class:`Declined` (counted; the drain goes on and keeps
        the data for a later checkpoint).
        """
        self._check()
        answerer = self._answers[self._state]
        if answerer is Answerer.NOT_READY:
            raise NotReady(f"checkpoint {checkpoint} was asked for in state {self._state}")
        if checkpoint <= self._requests.last:
            raise Declined(f"checkpoint {checkpoint} is older than checkpoint {self._requests.last}")
        cuts.require_taken(half_records, self._set, self._inbox.channels)
        self._requests.settle(checkpoint)
        if self._set is None or answerer is Answerer.NOTHING:
            cursor = end_of(self._set) if self._set is not None else self._remaining.cursor
            tail = Remaining((), cursor)
            return cuts.build(checkpoint, half_records, (), tail, self._inbox)
        tail = self.drainer.snapshot_and_insert_markers(checkpoint)
        self._watch(f"cut {checkpoint}: markers")
        queued = self._collect(checkpoint)
        self._watch(f"cut {checkpoint}: inputs")
        taken = cuts.build(checkpoint, half_records, queued, tail, self._inbox)
        self._watch(f"cut {checkpoint}: tail")
        return taken

    # --- inside ---

    def _fetch(self, spill_set: SpillSet) -> Tail:
        tail = Tail(spill_set, self._remaining)
        strange = sorted(tail.channels() - set(self._keys))
        if strange:
            gate, channel = strange[0]
            what = "the spill set holds data of a channel that the subtask does not have"
            raise Refused(what, where=Where(subtask=spill_set.subtask, gate=gate, channel=channel))
        return tail

    def _collect(self, checkpoint: int) -> list[Slice]:
        parts: list[Slice] = []
        with self._inbox.changed:
            for channel in self._inbox.channels.values():
                if channel.in_recovery:
                    parts.extend(channel.collect(checkpoint))
        return parts

    def _hear(self) -> bool:
        """Take checkpoint requests that came with priority, before any page. Called with the lock."""
        heard = False
        for channel in self._inbox.take_announced():
            while channel.has_priority:
                try:
                    event = channel.take_priority()
                except IllegalState as error:
                    self._inbox.failure = error
                    raise
                self._requests.add(event.checkpoint, None)
                heard = True
        return heard

    def _check(self) -> None:
        self._on_task()
        self._settle()
        if self._inbox.failure is not None:
            raise self._inbox.failure
        if self._inbox.closed:
            raise Closed("the recovering subtask is closed")

    def _settle(self) -> None:
        """Follow what the drainer and the channels have reached."""
        if self._inbox.failure is not None:
            if self._state is not State.FAILED:
                self._move(State.FAILED)
            return
        if self._state is State.DRAINING and self.drainer.delivered:
            self._move(State.DELIVERED)
        if self._state is State.DELIVERED and self._inbox.in_recovery == 0:
            self._move(State.CONSUMED)

    def _move(self, to: State) -> None:
        self._state = move(self._state, to)
        self._watch(to)

    def _on_task(self) -> None:
        if threading.get_ident() != self._task and self._state is not State.INIT:
            raise IllegalState("a recovering subtask was used by a thread that is not its task's")
