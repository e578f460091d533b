"""Units for the tests: executors import them by name."""

from __future__ import annotations

import os
import time
from pathlib import Path

from cdr_core.errors import CorruptChannelState, StorageError, Where


def leave_file(folder: str, unit: str, attempt: int) -> None:
    Path(folder, f"{unit}.{attempt}").write_text(str(os.getpid()))


def work_for_long(folder: str, unit: str, attempt: int) -> None:
    """A minute of pure Python that never sleeps; the file's text grows as long as it runs."""
    end = time.monotonic() + 60
    with Path(folder, f"{unit}.running").open("a") as out:
        while time.monotonic() < end:
            sum(range(50_000))
            out.write(".")
            out.flush()


def sleep_for_long(folder: str, unit: str, attempt: int) -> None:
    """A minute inside one system call, of which nothing in Python can be interrupted."""
    Path(folder, f"{unit}.sleeping").write_text(str(os.getpid()))
    time.sleep(60)


def is_corrupt(folder: str, unit: str, attempt: int) -> None:
    Path(folder, f"{unit}.{attempt}").touch()
    raise CorruptChannelState(
        "the frame does not end where the channel does",
        where=Where(checkpoint="chk-7", operator='agg "ä"', subtask=3, offset=12),
        hint="run cdr salvage",
    )


def storage_fails_at_first(folder: str, unit: str, attempt: int) -> None:
    Path(folder, f"{unit}.{attempt}").touch()
    if attempt == 0:
        raise StorageError("the disk hiccuped")


def divide_by_zero(folder: str, unit: str, attempt: int) -> None:
    raise ZeroDivisionError("nothing to divide by")


def die(folder: str, unit: str, attempt: int) -> None:
    os._exit(9)
