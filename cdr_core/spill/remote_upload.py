"""Spill sets for a workspace on S3: files are made in a scratch directory and go up, one by one, when they are full."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cdr_core.errors import CdrError, StorageError
from cdr_core.faults import reach
from cdr_core.storage import is_local, join, storage_for


@contextmanager
def shipping(directory: Path, home: str) -> Iterator[Callable[[str], str]]:
    """What tells where a finished file lies from now on: at the set's ``home``, under the name it was made with.

    On a disk it stays where it is. For S3 it is uploaded and the local one removed, so that scratch space is one file
    and the records' positions. Leaving by an error removes what went up; what cannot be removed is swept.
    """
    if is_local(home):
        yield str
        return
    shipped: list[str] = []
    storage = storage_for(home)

    def ship(path: str) -> str:
        uri = join(home, Path(path).name)
        if not storage.create_from(uri, Path(path)):
            raise StorageError(f"{uri} was taken by another process", hint="run it again")
        shipped.append(uri)
        Path(path).unlink()
        reach("spill.shipped")
        return uri

    try:
        yield ship
    except BaseException:
        for uri in shipped:
            with suppress(CdrError):
                storage.delete(uri)
        raise
    finally:
        shutil.rmtree(directory, ignore_errors=True)
