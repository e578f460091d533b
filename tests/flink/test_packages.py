"""Where the jars come from, and what a machine is told that cannot have them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.flink.harness import java, packages
from tests.flink.harness.packages import FLINKS, FlinkUnavailable


def test_without_a_network_there_is_one_sentence_and_nothing_half_done(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(FlinkUnavailable) as caught:
        packages.fetch(FLINKS["2.3.0"], tmp_path / "cache")
    assert str(caught.value) == (
        "apache-flink-libraries 2.3.0, which real-Flink tests need, is not here: "
        "the package registry could not be reached; check the network, HTTPS_PROXY or PIP_INDEX_URL."
    )
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["fetch.lock"]


def test_a_flink_that_is_not_pinned_is_refused() -> None:
    with pytest.raises(FlinkUnavailable, match=r"Flink 1.11.0 is not pinned; the harness knows 1.20.5, 2.0.2, 2.3.0"):
        packages.install("1.11.0")


def test_a_program_that_fails_says_why(flink: str, tmp_path: Path) -> None:
    with pytest.raises(java.FlinkFailed, match=r"cdr.Run failed with exit status 1.*missing.json"):
        java.run(flink, "cdr.Run", [str(tmp_path / "missing.json")], 60)


def test_a_program_that_does_not_end_is_ended(flink: str, tmp_path: Path) -> None:
    with pytest.raises(java.FlinkFailed, match=r"took longer than 0\.05 s"):
        java.run(flink, "cdr.Run", [str(tmp_path / "missing.json")], 0.05)


@pytest.mark.soak
@pytest.mark.parametrize("version", FLINKS)
def test_a_machine_without_any_java_compiles_and_runs_with_what_set_up_installs(
    flink: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str
) -> None:
    monkeypatch.setattr(java, "machine_java", lambda: None)
    monkeypatch.setattr(java, "CACHE", tmp_path)  # or the classes that javac made would be found
    monkeypatch.setenv("PATH", str(tmp_path))
    assert shutil.which("javac") is None
    with pytest.raises(java.FlinkFailed, match=r"missing.json"):
        java.run(version, "cdr.Run", [str(tmp_path / "missing.json")], 60)
