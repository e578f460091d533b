"""Writes docs/settings.md from cdr_core.settings, and tells when it is out of date."""

from __future__ import annotations

from pathlib import Path

from cdr_core.settings import SETTINGS, Setting

PAGE = Path(__file__).resolve().parent.parent / "docs" / "settings.md"

_HEAD = """\
# Settings

<!-- Generated from cdr_core/settings.py by `make docs`; edit there. -->

A setting is taken from the environment, else from `cdr.toml`, else it has its default. `cdr.toml` is the file that
`CDR_CONFIG` names, else the one in the current folder, else the one in `CDR_HOME`; in it a setting goes by its name in
lower case without `CDR_`. A malformed value or unknown name is refused when a command starts, with the name and where
it came from (exit status 3). `cdr settings` shows what is in force and why; passwords inside URLs are masked.

| variable | in `cdr.toml` | default | unit | what for |
|---|---|---|---|---|
"""

_TAIL = """
Sizes are bytes or a number with `kB`, `MB`, `GB`, `TB` (powers of 1000) or `KiB`, `MiB`, `GiB`, `TiB` (powers of 1024).
Durations are seconds or a number with `ms`, `s`, `m`, `h`, `d`.
"""


def page() -> str:
    return _HEAD + "".join(_row(setting) for setting in SETTINGS) + _TAIL


def _row(setting: Setting) -> str:
    default = f"`{setting.default}`" if setting.default else ""
    cells = (f"`{setting.variable}`", f"`{setting.field}`", default, setting.unit, setting.reason)
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |\n"


def difference() -> str:
    """What is wrong with the page as it lies there; nothing when it is what would be written."""
    if PAGE.is_file() and PAGE.read_text() == page():
        return ""
    return f"docs/{PAGE.name} is not what the settings say; make docs writes it anew"


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"docs/{PAGE.name} written")
