"""Rules about the project's files: the lock, names that belong to one machine, the folders."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.project.conftest import ROOT, Tool


def test_every_package_is_locked_with_hashes_and_no_address(tool: Tool) -> None:
    pins = tool("lockfile").read_lock(ROOT / "requirements.lock")
    assert len(pins) > 150
    assert all(pin.hashes for group in pins.values() for pin in group)
    assert "://" not in (ROOT / "requirements.lock").read_text()
    assert list(tool("hygiene").faults_of_lock()) == []


@pytest.mark.parametrize("name", ["uv", "setuptools", "hatchling"])
def test_what_installs_and_builds_is_locked_too(tool: Tool, name: str) -> None:
    assert len(tool("lockfile").read_lock(ROOT / "requirements.lock")[name]) == 1


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("# from https" + "://somewhere/simple\n", "names an address"),
        ("bare==1.0\n", "bare has no hash"),
    ],
)
def test_a_lock_with_an_address_or_without_a_hash_is_found(
    tool: Tool, bare_checkout: Path, line: str, fault: str
) -> None:
    with (bare_checkout / "requirements.lock").open("a") as lock:
        lock.write(line)
    assert [fault in found for found in tool("hygiene").faults_of_lock(bare_checkout)] == [True]


@pytest.mark.parametrize("line", ["loose>=1.0\n", "-e .\n", "--index" + "-url x\n", "a==1 \\\n    --hash=md5:00\n"])
def test_a_lock_with_any_other_line_is_refused(tool: Tool, tmp_path: Path, line: str) -> None:
    lock = tmp_path / "requirements.lock"
    lock.write_text(line)
    with pytest.raises(ValueError, match="neither a pin nor a hash"):
        tool("lockfile").read_lock(lock)


def test_a_dependency_that_was_not_locked_is_found(tool: Tool, bare_checkout: Path) -> None:
    file = bare_checkout / "pyproject.toml"
    file.write_text(file.read_text().replace('"numpy>=2"', '"numpy>=999",\n  "not-there"'))
    faults = list(tool("hygiene").faults_of_lock(bare_checkout))
    assert any("not-there is in pyproject.toml and not in" in fault for fault in faults)
    assert any(fault.startswith("numpy ") and ">=999" in fault for fault in faults)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("see https:" + "//my.registry.example/simple", "the host of a package registry"),
        ("see https:" + "//files.python" + "hosted.org/x", "the host of a package registry"),
        ("pip install --extra-index" + "-url x", "an option that names a registry"),
        ("cd /ho" + "me/alice/cdr", "a home directory"),
        ("cat /ro" + "ot/.bashrc", "a home directory"),
        ("{root}/cdr_core", "the path of this checkout"),
    ],
)
def test_a_file_that_names_a_machine_or_a_registry_is_found(
    tool: Tool, bare_checkout: Path, line: str, what: str
) -> None:
    (bare_checkout / "docs").mkdir()
    (bare_checkout / "docs" / "page.md").write_text(f"fine\n{line.replace('{root}', str(bare_checkout))}\n")
    assert list(tool("hygiene").faults_of_files(bare_checkout)) == [f"docs/page.md:2 names {what}"]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("from tests.phases.test_" + "thread import compare", True),
        ("    from tests.phases import test_" + "thread", True),
        ("import tests.phases.test_" + "thread as other", True),
        ("from .test_" + "thread import compare", True),
        ("from tests.support.comparing import compare", False),
        ("from cdr_core.latest_news import test_" + "tube as tube", False),
    ],
)
def test_an_import_out_of_a_test_file_is_found(tool: Tool, tmp_path: Path, line: str, found: bool) -> None:
    folder = tmp_path / "tests" / "phases"
    folder.mkdir(parents=True)
    (folder / "helper.py").write_text(f"{line}\n")
    faults = list(tool("hygiene").faults_of_imports(tmp_path))
    assert [fault.partition(" ")[0] for fault in faults] == (["tests/phases/helper.py:1"] if found else [])


def test_what_is_committed_lies_in_the_agreed_folders() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    folders = {line.split("/")[0] for line in listed.stdout.splitlines() if "/" in line}
    agreed = {"cdr_core", "dags", "docker", "docs", "plugins", "sql", "tests"}
    assert {name for name in folders if not name.startswith(".")} <= agreed


@pytest.mark.parametrize(("script", "shell"), [(".ci/run", "bash"), (".make/find-python", "sh")])
def test_shell_scripts_parse_and_can_be_run(script: str, shell: str) -> None:
    assert (ROOT / script).stat().st_mode & 0o111
    subprocess.run([shell, "-n", ROOT / script], check=True, timeout=60)
