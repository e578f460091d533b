"""What was compiled of one state of the kernels is never run with another."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from numba import config

from cdr_core import kernels

CALLEE = "from numba import njit\n\n@njit(cache=True)\ndef number():\n    return {}\n"
CALLER = (
    "from numba import njit\nfrom package.callee import number\n\n"
    "@njit(cache=True)\ndef twice():\n    return 2 * number()\n\nprint(twice())\n"
)


def ask(folder: Path, cache: Path | None) -> int:
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environment |= {} if cache is None else {"NUMBA_CACHE_DIR": str(cache)}
    command = [sys.executable, "-c", "import package.caller"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize(("keeper", "second"), [(Path(kernels.__file__), 14), (None, 4)])
def test_a_kernel_is_compiled_anew_when_one_that_it_took_in_has_changed(
    tmp_path: Path, told: bool, keeper: Path | None, second: int
) -> None:
    """Without what the package does, Numba goes on with the old one: that is the fault, and here it shows."""
    package = tmp_path / "package"
    package.mkdir()
    if keeper is None:
        (package / "__init__.py").touch()
    else:
        shutil.copy(keeper, package / "__init__.py")
    (package / "caller.py").write_text(CALLER)
    (package / "callee.py").write_text(CALLEE.format(2))
    cache = tmp_path / "cache" if told else None
    assert ask(tmp_path, cache) == 4
    (package / "callee.py").write_text(CALLEE.format(7))
    assert ask(tmp_path, cache) == second


def test_a_state_has_a_name_that_any_change_of_any_module_changes() -> None:
    sources = {"a.py": b"one", "b.py": b"two"}
    states = [
        kernels.state_of(each)
        for each in (
            sources,
            {**sources, "b.py": b"tvo"},
            {"a.py": b"one"},
            {"a.py": b"onetwo"},
            {"c.py": b"one", "b.py": b"two"},
        )
    ]
    assert len(set(states)) == len(states)
    assert kernels.state_of(dict(reversed(sources.items()))) == states[0]


def test_who_can_write_nowhere_and_has_no_home_is_left_to_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs under a number that is no user's: importing the kernels must not fail."""

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(config, "CACHE_DIR", "")
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert kernels.kept_in() == Path.home() / ".cache" / "cdr-kernels"
    monkeypatch.setattr(Path, "home", homeless)
    assert kernels.kept_in() is None
