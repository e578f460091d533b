"""Hostile bytes by the hundred thousand: ``make fuzz``, or ``python -m tests.flink_formats.fuzz --examples 200000``.

An example is a number. The seed and the number decide which file is taken, what is done to it, and so everything else:
a finding is repeated with ``--example NUMBER``. A run notes how far it came and goes on from there when it is started
again. What must hold of every example:

* metadata: a clean error with a place in it, or a value that is written back to exactly those bytes;
* channel state: a clean error, or elements that frame back to the bytes of their channel, chunk by chunk; the same
  whether the file is at hand as a whole or in stretches; records in it decode, and have key groups, or a clean error;
* on a disk, the whole checkpoint goes the way of ``cdr elements`` (one of five examples): a plan at some parallelism
  and every element of every channel, or a clean error;
* cut short inside of anything that is referenced, a file is an error;
* no example takes longer than a few seconds, or more than 64 MiB above its own size.

Memory is weighed in one of ten examples, all of which go that way; in the others nobody gets a gigabyte.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import random
import resource
import signal
import sys
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from tests.flink_formats.hostile import corpus, mutate
from tests.flink_formats.hostile.check import Broken, check

SEED = 20261116
SECONDS = 5.0
"""An example may take this long, of the processor's time; they take milliseconds."""
STUCK = 600.0
"""Seconds of a batch after which the process ends itself: compiled code does not answer a signal."""
BATCH = 200
THROUGH = 5
"""One in so many examples is also read from a disk, which takes as long as all the rest."""
WEIGHED = 2 * THROUGH
"""One in so many examples is done under a memory count, which makes it slow."""
MOST_ABOVE = 64 * 1024 * 1024
ROOM = 1 << 30
"""By how much the address space may grow: whoever believes a number and asks for more is refused, and found."""


def run(seed: int, first: int, count: int) -> list[str]:
    """Do examples; the sentences of those that broke a rule."""
    findings = []
    _warm_up()
    with little_room():
        for number in range(first, first + count):
            if (number - first) % BATCH == 0:
                faulthandler.dump_traceback_later(STUCK, exit=True, file=2)
            try:
                example(seed, number)
            except Exception as error:
                findings.append(f"--seed {seed} --example {number}: {type(error).__name__}: {error}")
    faulthandler.cancel_dump_traceback_later()
    return findings


@cache
def _warm_up() -> None:
    """Kernels are compiled when first used, and nobody's example should pay for that."""
    for item in corpus.items():
        check(item, item.data, mutate.Damage(None))


@contextmanager
def little_room() -> Iterator[None]:
    """Nobody gets much more address space than there is now; not on systems that do not tell how much that is."""
    sizes = Path("/proc/self/statm")
    if not sizes.is_file():
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    size = int(sizes.read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + ROOM, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def example(seed: int, number: int) -> None:
    """One example; raises what it finds."""
    rng = random.Random(f"{seed}:{number}")
    item = corpus.choose(rng)
    data, damage = mutate.mutate(item, rng)
    wish = number // THROUGH if number % THROUGH == 0 else None
    with in_time():
        if number % WEIGHED == 0:
            with _in_memory(len(data)):
                check(item, data, damage, wish)
        else:
            check(item, data, damage, wish)


@contextmanager
def in_time() -> Iterator[None]:
    def stop(_signal: int, _frame: Any) -> None:
        raise Broken(f"took longer than {SECONDS} s")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@contextmanager
def _in_memory(size: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    if peak > size + MOST_ABOVE:
        raise Broken(f"{peak} bytes of memory for a file of {size}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Hostile bytes.")
    parser.add_argument("--examples", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--example", type=int, help="do this one and nothing else")
    parser.add_argument("--state", type=Path, default=Path(".cdr/fuzz.json"), help="how far earlier runs came")
    parser.add_argument("--record", type=Path, help="write there what came out, as docs/fuzz-runs.json has it")
    options = parser.parse_args(arguments)
    if options.example is not None:
        example(options.seed, options.example)
        print("it holds")
        return 0
    outcome = _go_on(options.seed, options.examples, options.state)
    if options.record:
        _record(options.seed, options.state, options.record)
    return outcome


def _record(seed: int, state: Path, record: Path) -> None:
    """What has been done with this seed so far, whichever runs did it."""
    mine = json.loads(state.read_text())[str(seed)]
    value = {
        "version": 1,
        "date": datetime.now(UTC).date().isoformat(),
        "seed": seed,
        "examples": mine["done"],
        "read_from_a_disk": -(-mine["done"] // THROUGH),
        "weighed": -(-mine["done"] // WEIGHED),
        "findings": mine["findings"],
    }
    record.write_text(json.dumps(value, indent=2) + "\n")


def _go_on(seed: int, examples: int, state: Path) -> int:
    known = json.loads(state.read_text()) if state.exists() else {}
    mine = known.setdefault(str(seed), {"done": 0, "findings": []})
    if mine["done"] >= examples:
        mine.update(done=0, findings=[])
    print(f"seed {seed}: examples {mine['done']} to {examples}; kept in {state}", flush=True)
    started, before = time.monotonic(), mine["done"]
    while mine["done"] < examples:
        count = min(10 * BATCH, examples - mine["done"])
        found = run(seed, mine["done"], count)
        mine["done"] += count
        mine["findings"] += found
        state.parent.mkdir(parents=True, exist_ok=True)
        state.write_text(json.dumps(known, indent=1))
        for finding in found:
            print(finding, flush=True)
    seconds = time.monotonic() - started
    print(f"seed {seed}: {mine['done'] - before} examples in {seconds:.0f} s, {len(mine['findings'])} findings")
    return 1 if mine["findings"] else 0


if __name__ == "__main__":
    sys.exit(main())
