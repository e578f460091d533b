"""Set-up on a machine that lacks something: one sentence, a failing exit status, and nothing half done."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.project.conftest import Tool
from tests.project.pythons import fake_python

MAKE = shutil.which("make") or "make"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A PATH of one folder with nothing in it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    return folder


def make(checkout: Path, path: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [MAKE, *arguments],
        cwd=checkout,
        env={"PATH": str(path), "HOME": str(path.parent), **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def sentence(done: subprocess.CompletedProcess[str]) -> str:
    """The one line of the error; make itself adds a line with ***."""
    assert done.returncode != 0
    lines = [line for line in done.stderr.splitlines() if "***" not in line]
    assert len(lines) == 1, done.stderr
    assert lines[0].endswith(".")
    return lines[0]


@pytest.mark.parametrize("target", ["setup", "test", "check", "demo", "up", "lock", "docs"])
def test_a_python_that_is_too_old_is_refused_with_its_version(bare_checkout: Path, path: Path, target: str) -> None:
    fake_python(path, "python3", "3.8.18")
    said = sentence(make(bare_checkout, path, target))
    assert "3.11 to 3.13 is needed" in said
    assert "python3 3.8.18" in said
    assert not (bare_checkout / ".venv").exists()


def test_a_machine_without_python_is_told_what_to_install(bare_checkout: Path, path: Path) -> None:
    assert "none was found" in sentence(make(bare_checkout, path, "setup"))


def test_a_python_without_venv_is_refused_with_the_package_that_has_it(bare_checkout: Path, path: Path) -> None:
    fake_python(path, "python3", "3.11.4", venv=False)
    said = sentence(make(bare_checkout, path, "setup"))
    assert "python3 3.11.4 has no venv module" in said
    assert "python3-venv" in said


@pytest.mark.parametrize(
    ("version", "words"),
    [("3.10.13", "is Python 3.10.13"), ("3.14.0", "is Python 3.14.0"), ("", "is not a Python that runs")],
)
def test_a_python_that_was_asked_for_is_the_only_candidate(
    bare_checkout: Path, path: Path, version: str, words: str
) -> None:
    fake_python(path, "python3", "3.11.7")
    fake_python(path, "chosen", version)
    assert words in sentence(make(bare_checkout, path, "setup", "PYTHON=chosen"))


@pytest.mark.parametrize(
    ("pythons", "found"),
    [
        ({"python3": "3.12.1"}, "python3"),
        ({"python3": "3.9.2", "python3.11": "3.11.9", "python3.13": "3.13.0"}, "python3.11"),
        ({"python3": "3.14.0", "python3.13": "3.13.0"}, "python3.13"),
        ({"python3": "not a version", "python3.12": "3.12.1"}, "python3.12"),
    ],
)
def test_where_python3_does_not_fit_a_named_one_is_found(
    bare_checkout: Path, path: Path, pythons: dict[str, str], found: str
) -> None:
    for name, version in pythons.items():
        fake_python(path, name, version)
    done = subprocess.run(
        [bare_checkout / ".make" / "find-python"],
        cwd=bare_checkout,
        env={"PATH": str(path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == f"{found}\n"


def test_an_environment_keeps_its_python_unless_another_is_asked_for(bare_checkout: Path, path: Path) -> None:
    fake_python(path, "python3", "3.11.7")
    (bare_checkout / ".venv" / "bin").mkdir(parents=True)
    fake_python(bare_checkout / ".venv" / "bin", "python", "3.12.1")
    finder = bare_checkout / ".make" / "find-python"
    for chosen, found in (("", ".venv/bin/python"), ("python3", "python3")):
        env = {"PATH": str(path), "PYTHON": chosen}
        done = subprocess.run([finder], cwd=bare_checkout, env=env, capture_output=True, text=True, check=True)
        assert done.stdout == f"{found}\n"


def test_a_registry_that_cannot_be_reached_is_one_sentence_and_leaves_no_stamp(bare_checkout: Path, path: Path) -> None:
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_CONFIG_FILE": "/dev/null"}
    done = make(bare_checkout, path, "setup", f"PYTHON={sys.executable}", **nowhere)
    assert "the package registry could not be reached" in sentence(done)
    assert "1/6 creating .venv with Python" in done.stdout
    assert not (bare_checkout / ".venv" / "setup.stamp").exists()


def test_ending_what_never_ran_needs_no_set_up(bare_checkout: Path, path: Path) -> None:
    done = make(bare_checkout, path, "down")
    assert (done.returncode, done.stdout) == (0, "nothing is set up here, so nothing runs\n")


def test_make_alone_lists_every_target(bare_checkout: Path) -> None:
    done = make(bare_checkout, Path("/usr/bin:/bin"))
    listed = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("  make ")]
    assert listed == [
        "help",
        "setup",
        "check",
        "test",
        "test-fast",
        "test-slow",
        "test-all",
        "coverage",
        "test-commit",
        "test-wheel",
        "test-flink",
        "test-airflow",
        "test-browser",
        "fuzz",
        "seeds",
        "schedules",
        "mutants",
        "soak-clicks",
        "bench",
        "demo",
        "up",
        "down",
        "lock",
        "docs",
        "site",
        "clean",
    ]


# --- when an environment is up to date -------------------------------------------------------------------------------


@pytest.fixture
def set_up(bare_checkout: Path, tool: Tool) -> ModuleType:
    """The set-up script of a checkout whose environment looks complete."""
    tool("lockfile")
    spec = importlib.util.spec_from_file_location("set_up_under_test", bare_checkout / ".make" / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.PYTHON.parent.mkdir(parents=True)
    module.PYTHON.symlink_to(sys.executable)
    (module.VENV / "pyvenv.cfg").write_text(f"version = {'.'.join(map(str, sys.version_info[:3]))}\n")
    module.STAMP.write_text(module._stamp())
    return module


def up_to_date(set_up: ModuleType) -> bool:
    return bool(set_up._can_stay(replace=False) and set_up.STAMP.read_text() == set_up._stamp())


def test_an_environment_that_fits_is_left_alone(set_up: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    set_up._set_up(replace=False)
    assert ".venv is up to date" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["requirements.lock", ".make/setup.py"])
def test_a_changed_lock_makes_the_environment_stale(set_up: ModuleType, name: str) -> None:
    assert up_to_date(set_up)
    file = set_up.ROOT / name
    file.write_text(file.read_text() + "\n")
    assert not up_to_date(set_up)


def test_only_what_is_installed_counts_in_pyproject(set_up: ModuleType) -> None:
    file = set_up.ROOT / "pyproject.toml"
    text = file.read_text()
    file.write_text(text + "\n[tool.other]\nx = 1\n")
    assert up_to_date(set_up)
    file.write_text(text.replace('version = "', 'version = "9.'))
    assert not up_to_date(set_up)


def test_an_environment_of_another_python_is_replaced_only_when_asked(set_up: ModuleType) -> None:
    (set_up.VENV / "pyvenv.cfg").write_text("version = 3.13.99\n")
    assert set_up._can_stay(replace=False)
    assert not set_up._can_stay(replace=True)


def test_an_environment_that_was_moved_or_lost_its_python_is_made_anew(set_up: ModuleType) -> None:
    stamp = set_up.STAMP.read_text()
    set_up.STAMP.write_text(" ".join([*stamp.split()[:-1], "elsewhere"]))
    assert not set_up._can_stay(replace=False)
    set_up.STAMP.write_text(stamp)
    set_up.PYTHON.unlink()
    assert not set_up._can_stay(replace=False)


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("error: Failed to fetch\n  Caused by: dns error: failed to lookup address", "could not be reached"),
        ("SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED]", "certificate is not trusted"),
        ("× Failed to download\n  Hash mismatch for `numpy==2.4.6`", "do not use that registry"),
        ("OSError: [Errno 28] No space left on device", "the disk is full"),
        ("something\nerror: no such option\nuse --help", "error: no such option"),
        ("", "it said nothing"),
    ],
)
def test_what_a_tool_said_becomes_a_reason(tool: Tool, output: str, words: str) -> None:
    assert words in tool("steps").explain(output)
