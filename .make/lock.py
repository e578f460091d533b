"""Resolves pyproject.toml anew into requirements.lock: every version with its hashes, and no address of any registry.

What is pinned stays pinned unless pyproject.toml no longer allows it; ``--upgrade`` moves everything.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from setup import environment

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    command = [
        str(ROOT / ".venv" / "bin" / "uv"),
        *(
            "pip",
            "compile",
            "pyproject.toml",
            "--all-extras",
            "--group",
            "dev",
            "--output-file",
            "requirements.lock",
            "--quiet",
        ),
        # One lock for every supported Python and platform, resolved from the oldest.
        *("--universal", "--python-version", "3.11"),
        *("--generate-hashes", "--no-emit-index-url", "--no-annotate", "--custom-compile-command", "make lock"),
        *sys.argv[1:],
    ]
    return subprocess.run(command, cwd=ROOT, env=environment(), check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
