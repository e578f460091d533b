"""Commands of cdr in this process."""

from __future__ import annotations

import sys

import pytest

from cdr_core.cli import main


class Shell:
    """Runs commands in this process, as the entry point does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        self._monkeypatch.setattr(sys, "argv", ["cdr", *arguments])
        with pytest.raises(SystemExit) as ended:
            main.run()
        shown = self._capsys.readouterr()
        return int(ended.value.code or 0), shown.out, shown.err
