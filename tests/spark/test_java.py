"""Which Java is taken, and that the command line says what Spark's own scripts would."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from cdr_core.errors import Refused
from cdr_core.spark import java, launch


def fake_java(home: Path, version: str) -> Path:
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2020-01-01' >&2\n")
    executable.chmod(0o755)
    return home


def test_java_home_of_the_machine_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = fake_java(tmp_path / "jdk", "21.0.2")
    monkeypatch.setenv("JAVA_HOME", str(mine))
    assert java.java_home(tmp_path / "home") == mine


def test_java_on_the_path_is_found_through_its_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = fake_java(tmp_path / "jdk", "17.0.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(mine / "bin" / "java")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin")
    assert java.java_home(tmp_path / "home") == mine


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.20"])
def test_too_old_java_of_the_machine_gives_way_to_the_installed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "jdk", version)))
    monkeypatch.setenv("PATH", "/nonexistent")
    home = java.java_home(tmp_path / "home")
    assert home == tmp_path / "home" / "java"
    said = subprocess.run(
        [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin:/bin"},
    ).stderr
    assert 'version "25' in said


def test_no_java_at_all_is_refused_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(java, "find_spec", lambda name: None)
    with pytest.raises(Refused, match="no Java 17 or later"):
        java.java_home(tmp_path)
    with pytest.raises(Refused, match="no Java 17 or later"):
        java.embedded_java(prefer_installed=True)


def test_flags_are_those_of_sparks_own_launcher(tmp_path: Path) -> None:
    """A new Spark that opens other packages must be noticed here, not as a strange failure of a server."""
    found = java.installed_java()
    assert found is not None
    folder = launch.jars()[0].parent
    printed = subprocess.run(
        [found.executable, "-cp", f"{folder}/*", "org.apache.spark.launcher.Main", "a.b.C"],
        capture_output=True,
        text=True,
        check=True,
        env={"SPARK_HOME": str(folder.parent), "SPARK_SCALA_VERSION": "2.13", "PATH": os.environ["PATH"]},
    ).stdout.split("\0")
    wanted = {argument for argument in printed if argument.startswith(("--add-opens", "-Dio.", "--enable", "--sun"))}
    assert wanted
    assert wanted <= set(launch.JVM_FLAGS)


def test_argument_file_keeps_odd_paths_whole(tmp_path: Path) -> None:
    text = launch.argument_file(["-Da=C:\\x y", '-Db="q"'])
    file = tmp_path / "args"
    file.write_text(text)
    found = java.installed_java()
    assert found is not None
    said = subprocess.run(
        [found.executable, f"@{file}", "-XshowSettings:properties", "-version"],
        capture_output=True,
        text=True,
        check=True,
    ).stderr
    assert "a = C:\\x y" in said
    assert 'b = "q"' in said
