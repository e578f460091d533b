"""One recovery under ``strace``: every file that a row or a manifest relies on is synced before it gets its name.

``python -m tests.durability.strace_recovery [DIRECTORY]`` recovers a shipped checkpoint with the real command line and
a real Spark server, prints what a power cut could take, and exits with 1 if there is anything (with 3 without strace).
It takes about a minute. ``DIRECTORY``, which must be new or empty, keeps the trace.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.durability.trace import CALLS, History, faults, history
from tests.support.checkpoints import FixtureCheckpoints

NO_STRACE = "strace is not installed: apt-get install strace"


def is_installed() -> bool:
    return shutil.which("strace") is not None


def trace_recovery(root: Path) -> History:
    """Recover below ``root``; return what happened to the files of the recovery and of its target."""
    checkpoint = FixtureCheckpoints(root / "fixtures")("a_p3_thr0", 2)
    home, out, trace = root / "home", root / "out", root / "trace"
    recover = [str(Path(sys.executable).with_name("cdr")), "recover", str(checkpoint.path)]
    recover += ["--spec", str(checkpoint.spec), "--parallelism", "2", "--to", f"parquet:{out}"]
    # With seccomp only the traced calls stop a thread: the Java server runs at nearly its own speed.
    strace = ["strace", "-f", "--seccomp-bpf", "-y", "-s", "0", "-o", str(trace), "-e", f"trace={CALLS}"]
    environment = {**os.environ, "CDR_HOME": str(home), "CDR_CHECKPOINT_INTERVAL": "100ms"}
    environment.pop("CDR_WORKSPACE", None)
    subprocess.run([*strace, *recover], env=environment, check=True, stdout=subprocess.PIPE, timeout=280)
    places = (f"{home}/workspace", str(out))
    above = {str(home), str(root)}
    with trace.open(errors="replace") as lines:
        return history(lines, lambda path: path.startswith(places) or path in above)


def is_needed(path: str) -> bool:
    """Everything below a recovery's attempts and in the target, but what no row and no manifest names: files on their
    way to a name, how far a task is, and which tasks have begun; a later attempt reads none of these. Pins are links to
    the source, whose bytes are somebody else's to sync.
    """
    name = path.rpartition("/")[2]
    passing = ("/spark/", "/running/", "/drain/started", "/read/pins/")
    return not (name.endswith(".tmp") or any(each in path for each in passing))


def main(arguments: list[str]) -> int:
    if not is_installed():
        print(NO_STRACE, file=sys.stderr)
        return 3
    with tempfile.TemporaryDirectory() as scratch:
        seen = trace_recovery(Path(arguments[0] if arguments else scratch).resolve())
    found = faults(seen, is_needed)
    print("\n".join(found) or f"{len(seen.named)} files were synced before they got their names")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
