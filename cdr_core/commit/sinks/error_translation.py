"""What table libraries raise, as one sentence of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cdr_core.errors import CdrError, StorageError


@contextmanager
def explained(doing: str, hint: str) -> Iterator[None]:
    """Whatever a library or its database raises becomes an error after which a retry may help."""
    try:
        yield
    except CdrError:
        raise
    except Exception as error:
        said = str(error).partition("\n")[0] or type(error).__name__
        raise StorageError(f"cannot {doing}: {said}", hint=hint) from error
