"""The project's own tools under .make, which are scripts and not part of any package."""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path
from types import ModuleType
from typing import Protocol

import pytest

ROOT = Path(__file__).resolve().parents[2]


class Tool(Protocol):
    def __call__(self, name: str) -> ModuleType: ...


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Tool:
    """``tool("hygiene")``: a module of .make."""
    monkeypatch.syspath_prepend(str(ROOT / ".make"))
    return importlib.import_module


@pytest.fixture
def bare_checkout(tmp_path: Path) -> Path:
    """What set-up needs of a checkout, in an empty folder."""
    checkout = tmp_path / "checkout"
    shutil.copytree(ROOT / ".make", checkout / ".make", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Makefile", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, checkout / name)
    return checkout
