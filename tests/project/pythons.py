"""Pythons of any version that only tell it."""

from __future__ import annotations

from pathlib import Path


def fake_python(path: Path, name: str, version: str, *, venv: bool = True) -> None:
    """A Python as far as set-up asks before it uses one: its version and whether it has venv."""
    script = path / name
    script.write_text(
        f'#!/bin/sh\ncase "$2" in *version_info*) echo {version};; *ensurepip*) exit {0 if venv else 1};; esac\n'
    )
    script.chmod(0o755)
