"""Identifies the code of a process: two processes that hand work to each other must run the same."""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from importlib.metadata import version
from pathlib import Path

import cdr_core


@cache
def code_stamp() -> str:
    """Return the versions of cdr, Python and pyspark, and a digest of cdr's own sources.

    The version alone does not tell two states of a checkout apart. Computed once a process, in about 20 ms.
    """
    versions = f"cdr {cdr_core.__version__}, Python {platform.python_version()}, pyspark {version('pyspark')}"
    return f"{versions}, sources {digest(Path(cdr_core.__file__).parent)}"


def digest(package: Path) -> str:
    """Return a digest of the names and bytes of all source files in a folder."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        data = path.read_bytes()
        digest.update(f"{path.relative_to(package)} {len(data)}\n".encode())
        digest.update(data)
    return digest.hexdigest()[:16]
