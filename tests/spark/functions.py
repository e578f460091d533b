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


def make_an_array(folder: str, unit: str, attempt: int) -> None:
    """What every unit that writes a table does; names the modules that came with it."""
    import sys

    import pyarrow as pa

    assert pa.array([1, 2]).to_pylist() == [1, 2]
    assert os.environ["NUMBA_CACHE_DIR"]
    heavy = [name for name in ("sqlalchemy", "numba", "pyarrow", "pyspark.sql.connect") if name in sys.modules]
    Path(folder, unit).write_text(" ".join(heavy))
