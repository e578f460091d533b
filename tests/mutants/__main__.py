"""Puts every mutant into a copy of the tree and runs the tests that must fail: ``python -m tests.mutants``.

Ends with 1 if fewer than 96 % are killed, if one that survives is not explained, or if one does not fit the code.
"""

from __future__ import annotations

import argparse
import queue
import random
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.catalogue import Mutant, catalogue, faults
from tests.mutants.record import renew, this_run
from tests.mutants.running import Copy, Outcome, Verdict

LEAST_KILLED = 0.96


def main() -> int:
    arguments = _arguments()
    mutants = chosen(catalogue(), arguments.only, arguments.sample, arguments.seed)
    wrong = [*faults(mutants)] if mutants else ["no mutant has such an id or area"]
    if wrong:
        print(*wrong, sep="\n")
        return 1
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="cdr-mutants-") as directory:
        verdicts = judged(mutants, arguments.jobs, Path(directory))
    if verdicts is None:
        return 1
    run = this_run(
        " ".join(["python -m tests.mutants", *sys.argv[1:]]), arguments.seed, verdicts, time.monotonic() - began
    )
    others = [each for each in verdicts if each.outcome is not Outcome.KILLED]
    print(f"{len(verdicts)} mutants, {len(verdicts) - len(others)} killed, in {run.seconds} s")
    for each in others:
        print(f"  {each.mutant.id}: {each.outcome}, {each.mutant.explained or 'not explained'}")
    if arguments.record is not None:
        record = renew(arguments.record, run, verdicts)
        print(f"recorded: {record.killed} of {record.mutants} killed, {record.not_run} never run")
    return 0 if is_enough(verdicts) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", action="append", metavar="ID|AREA", help="these and no others; may be repeated")
    parser.add_argument("--sample", type=int, metavar="N", help="so many of them, chosen by the seed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="copies of the tree that are tested at once")
    parser.add_argument("--record", type=Path, metavar="FILE", help="renew the results that are kept there, as JSON")
    return parser.parse_args()


def chosen(mutants: Sequence[Mutant], only: Sequence[str] | None, sample: int | None, seed: int) -> list[Mutant]:
    """The mutants that a command asks for."""
    found = [mutant for mutant in mutants if only is None or mutant.id in only or mutant.area in only]
    if sample is None or sample >= len(found):
        return found
    picked = set(random.Random(seed).sample([mutant.id for mutant in found], sample))
    return [mutant for mutant in found if mutant.id in picked]


def judged(mutants: Sequence[Mutant], jobs: int, directory: Path) -> list[Verdict] | None:
    """The verdict on each, in their order; ``None`` if tests fail without any fault."""
    bench = _Bench(mutants)
    copies = [Copy(directory / str(number)) for number in range(min(jobs, len(mutants)))]
    threads = [threading.Thread(target=bench.work, args=(copy,)) for copy in copies]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except KeyboardInterrupt:
        bench.failed.append("interrupted")
        for copy in copies:
            copy.stop()
        for thread in threads:
            thread.join()
        raise
    if bench.failed:
        print(bench.failed[0], "These tests must pass without any mutant.", sep="\n")
        return None
    return [bench.verdicts[mutant.id] for mutant in mutants]


class _Bench:
    """The mutants that wait for a copy of the tree, and the verdicts on the others."""

    def __init__(self, mutants: Sequence[Mutant]) -> None:
        self._tests = {test for mutant in mutants for test in mutant.tests}
        self._waiting: queue.SimpleQueue[Mutant] = queue.SimpleQueue()
        for mutant in mutants:
            self._waiting.put(mutant)
        self.verdicts: dict[str, Verdict] = {}
        self.failed: list[str] = []

    def work(self, copy: Copy) -> None:
        """Judge one mutant after another in a copy, unless tests fail there without any."""
        said = copy.baseline(self._tests)
        if said is not None:
            self.failed.append(said)
        while not self.failed:
            try:
                mutant = self._waiting.get_nowait()
            except queue.Empty:
                return
            verdict = self.verdicts[mutant.id] = copy.judge(mutant)
            print(f"{mutant.id}: {verdict.outcome} {verdict.by} ({verdict.seconds:.1f} s)", flush=True)


def is_enough(verdicts: Sequence[Verdict]) -> bool:
    """Whether enough were killed, and the others are explained."""
    others = [verdict for verdict in verdicts if verdict.outcome is not Outcome.KILLED]
    explained = all(each.outcome is Outcome.SURVIVED and each.mutant.explained for each in others)
    return explained and len(verdicts) - len(others) >= LEAST_KILLED * len(verdicts)


if __name__ == "__main__":
    sys.exit(main())
