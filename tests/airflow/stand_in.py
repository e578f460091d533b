"""A driver for the operator's tests: takes the driver's arguments and does what the environment says.

``STAND_IN`` is ``ok``, ``exit:CODE:SENTENCE``, ``sleep`` (ends on SIGTERM), ``stubborn`` (ignores SIGTERM, has a child
that ignores it too) or ``litter`` (ends at once, leaves a child that holds its pipes). Pids go to the file
``STAND_IN_PIDS``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

SLEEPER = "import time; time.sleep(60)"
STUBBORN_SLEEPER = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEPER}"


def main() -> int:
    verb, _, rest = os.environ["STAND_IN"].partition(":")
    pids = [os.getpid()]
    print(f"phase {sys.argv[1]} begins")
    print("1 of 2 units", file=sys.stderr)
    if verb == "exit":
        code, _, sentence = rest.partition(":")
        print(sentence, file=sys.stderr)
        return int(code)
    if verb == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        pids.append(subprocess.Popen([sys.executable, "-c", STUBBORN_SLEEPER]).pid)
    if verb == "litter":
        pids.append(subprocess.Popen([sys.executable, "-c", SLEEPER]).pid)
    if file := os.environ.get("STAND_IN_PIDS"):
        Path(file).with_suffix(".part").write_text(" ".join(map(str, pids)))
        Path(file).with_suffix(".part").rename(file)
    if verb in {"sleep", "stubborn"}:
        time.sleep(60)
    print(json.dumps({"arguments": sys.argv[1:], "airflow": [n for n in os.environ if n.startswith("AIRFLOW_")]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
