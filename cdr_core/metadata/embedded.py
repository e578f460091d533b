"""Opening the metadata database; one of this host is made and upgraded on first use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cdr_core.errors import Refused

if TYPE_CHECKING:
    from cdr_core.metadata.repository import Repository


@contextmanager
def open_repository(url: str) -> Iterator[Repository]:
    """Yield the metadata database. A file of this host is made and upgraded on first use, a shared one on demand."""
    from cdr_core.metadata.migrate import upgrade
    from cdr_core.metadata.repository import Repository

    embedded = url.startswith("sqlite:///")
    if embedded:
        prepare_home(Path(url.removeprefix("sqlite:///")).parent)
    try:
        repository = Repository.open(url)
    except Refused:
        if not embedded:
            raise
        upgrade(url)
        repository = Repository.open(url)
    with repository:
        yield repository


def prepare_home(home: Path) -> None:
    """Make the directory of the embedded database."""
    from cdr_core.storage.local import make_directories  # numpy, which most commands need only later

    try:
        make_directories(home, 0o700)  # it will hold records
    except OSError as error:
        raise Refused(f"cannot make {home}: {error.strerror}", hint="set CDR_HOME to a place you can write") from None
