"""The Python path of a process in another directory: this library and the user's PYTHONPATH."""

from __future__ import annotations

import os
from pathlib import Path

import cdr_core


def source_root() -> str:
    """Return the directory that this library is imported from."""
    return str(Path(cdr_core.__file__).parent.parent)


def python_path(given: str) -> str:
    """Return this library first, then each entry of ``given`` made absolute: a server has a directory of its own."""
    root = source_root()
    inherited = [str(Path(path).absolute()) for path in given.split(os.pathsep) if path]
    return os.pathsep.join(dict.fromkeys([root, *inherited]))
