"""``.ci/other-pythons``: one line for every supported Python of the machine, and a failing status where one failed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.project.pythons import fake_python

ROOT = Path(__file__).resolve().parents[2]
MAKEFILE = """
setup:
\t@case "$(PYTHON)" in */python3.13) echo 'setup: a package has no wheel for it.' >&2; exit 1;; esac
demo:
\t@true
test-fast:
\t@echo '==== 5 passed in 1.00s ===='
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository whose targets only say that they ran, with Python 3.11.7 in its environment."""
    folder = tmp_path / "checkout"
    (folder / ".ci").mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "other-pythons", folder / ".ci")
    (folder / "Makefile").write_text(MAKEFILE)
    git = ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@t"]
    for command in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", "all"]):
        subprocess.run([*git, *command], check=True)
    (folder / ".venv" / "bin").mkdir(parents=True)
    fake_python(folder / ".venv" / "bin", "python", "3.11.7")
    return folder


def run(checkout: Path, **pythons: tuple[str, bool]) -> subprocess.CompletedProcess[str]:
    path = checkout.parent / "bin"
    path.mkdir()
    for name, (version, venv) in pythons.items():
        fake_python(path, name.replace("_", "."), version, venv=venv)
    env = {"PATH": f"{path}:/usr/bin:/bin", "HOME": str(checkout.parent), "TMPDIR": str(checkout.parent)}
    return subprocess.run([checkout / ".ci" / "other-pythons"], env=env, capture_output=True, text=True, check=False)


def lines(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """What is told of each Python; the machine's own is among them."""
    told = (line.removeprefix("ci: Python ").partition(": ") for line in done.stdout.splitlines())
    return {version: text for version, _, text in told}


def test_each_other_python_has_a_line_with_its_tests(checkout: Path) -> None:
    done = run(checkout, python3_11=("3.11.7", True), python3_12=("3.12.9", True))
    told = lines(done)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3.11.7" not in told, "the environment's own Python runs all tests elsewhere"
    assert told["3.12.9"].startswith("set-up "), done.stdout + done.stderr
    assert "5 passed" in told["3.12.9"]
    assert not list(checkout.parent.glob("tmp.*")), "no clone is left"


def test_a_python_without_the_packages_is_named_with_the_reason(checkout: Path) -> None:
    done = run(checkout, python3_12=("3.12.9", False), python3_13=("3.13.1", True))
    told = lines(done)
    assert done.returncode == 1
    assert "setup: a package has no wheel for it." in told["3.13.1"]
    assert "has no venv module" in told["3.12.9"]
