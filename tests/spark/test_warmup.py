"""Set-up's archive: made once, and never a reason to fail. That it works is shown by every start of a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdr_core.spark import archive, warmup
from cdr_core.spark.java import installed_java


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CDR_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_archive_that_is_there_is_kept(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    java = installed_java()
    assert java is not None
    path = archive.archive_path(home, java)
    path.parent.mkdir(parents=True)
    path.write_text("made before")
    assert warmup.main() == 0
    assert path.read_text() == "made before"
    assert "is there" in capsys.readouterr().out


def test_failure_is_a_warning(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home.mkdir()
    (home / "java").write_text("in the way")
    assert warmup.main() == 0
    assert "warning: not made" in capsys.readouterr().out


def test_without_the_installed_java_it_is_skipped(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(warmup, "installed_java", lambda: None)
    assert warmup.main() == 0
    assert "skipped" in capsys.readouterr().out


def test_remains_of_an_interrupted_recording_are_swept(tmp_path: Path) -> None:
    (tmp_path / ".recording-old" / "server").mkdir(parents=True)
    warmup._sweep(tmp_path)
    assert not list(tmp_path.iterdir())
