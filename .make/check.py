"""Every check, one line each; the output of those that fail comes after their line. Exit status 1 when any failed.

All of them run, also after a failure: one look tells everything that is to be done.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import hygiene
import links
import seeds_reference
import settings_reference

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent

Check = Callable[[], str]
"""Gives the output of a failed check, and nothing when all is well."""


def _tool(name: str, *arguments: str) -> Check:
    def run() -> str:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(("plugins", ".", ".make")), "NO_COLOR": "1"}
        done = subprocess.run(
            [BIN / name, *arguments],
            cwd=ROOT,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return "" if done.returncode == 0 else done.stdout or f"exit status {done.returncode}"

    return run


def _rule(faults: Callable[[], Iterator[str]]) -> Check:
    return lambda: "\n".join(faults())


CHECKS: tuple[tuple[str, Check], ...] = (
    ("format", _tool("ruff", "format", "--check", ".")),
    ("lint", _tool("ruff", "check", ".")),
    ("types", _tool("mypy")),
    ("import contract", _tool("lint-imports", "--no-logo", "--no-cache")),
    ("lock: hashes, no address", _rule(hygiene.faults_of_lock)),
    ("no file names a machine or a registry", _rule(hygiene.faults_of_files)),
    ("no import out of a test file", _rule(hygiene.faults_of_imports)),
    ("links between pages", _rule(links.faults_of_links)),
    ("docs/settings.md is up to date", lambda: settings_reference.difference()),
    ("docs/seeds.md is complete and up to date", lambda: seeds_reference.difference()),
)


def main() -> int:
    failed = 0
    for name, check in CHECKS:
        begun = time.monotonic()
        output = check()
        verdict = "failed" if output else "ok"
        print(f"check: {name:<40} {verdict:<7} {time.monotonic() - begun:5.1f} s", flush=True)
        if output:
            failed += 1
            print("\n".join(f"    {line}" for line in output.splitlines()), flush=True)
    print(f"check: {failed} of {len(CHECKS)} failed" if failed else f"check: all {len(CHECKS)} ok")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
