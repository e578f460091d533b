"""Everything that is hot.

Numba keeps what it compiled from one process to the next, and compiles a kernel anew when the file of that kernel has
changed; that a kernel in another file changed, which the first one has taken in, it does not notice. So every state of
this package has a cache of its own: after an update no process runs parts of the previous version.
"""

# Numba makes its settings when it is imported, from the environment.
# mypy: disable-error-code="attr-defined"

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from numba.core import config


def state_of(sources: Mapping[str, bytes]) -> str:
    """Return a name for the package as it is, from its modules by their names."""
    digest = hashlib.sha256()
    for name, source in sorted(sources.items()):
        digest.update(f"{name} {len(source)}\n".encode() + source)
    return digest.hexdigest()[:16]


def _sources() -> dict[str, bytes]:
    """Return the package's sources, also from an archive."""
    return {each.name: each.read_bytes() for each in files(__name__).iterdir() if each.name.endswith(".py")}


def kept_in() -> Path | None:
    """Return Numba's cache directory: as configured, else beside the modules, else among the user's other caches, if
    the user has a home.
    """
    if config.CACHE_DIR:
        return Path(config.CACHE_DIR)
    package = Path(__file__).parent
    if os.access(package, os.W_OK):
        return package / "__pycache__"
    try:
        return Path.home() / ".cache" / "cdr-kernels"
    except RuntimeError:
        return None


_kept = kept_in()
if _kept is not None:
    config.CACHE_DIR = str(_kept / state_of(_sources()))
