"""Whether a container does what it is there for: ``health.py airflow PART | http PORT | port PORT``; 0 or 1.

With the standard library alone: it runs every few seconds, and importing Airflow takes longer than that.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import urllib.request

SECONDS = 4.0


def is_healthy(kind: str, what: str) -> bool:
    """Ask; whatever goes wrong means no."""
    try:
        if kind == "airflow":
            return part_status(what) == "healthy"
        if kind == "http":
            with urllib.request.urlopen(f"http://{socket.gethostname()}:{what}/", timeout=SECONDS) as answer:
                return bool(answer.status == 200)
        if kind == "port":
            with socket.create_connection((socket.gethostname(), int(what)), timeout=SECONDS):
                return True
    except (OSError, ValueError):
        return False
    return False


def part_status(part: str) -> str | None:
    """What Airflow's API server knows of a part: metadatabase, scheduler, dag_processor, triggerer."""
    address = os.environ.get("AIRFLOW_HEALTH", "http://api-server:8080/api/v2/monitor/health")
    with urllib.request.urlopen(address, timeout=SECONDS) as answer:
        parts = json.load(answer)
    status = (parts.get(part) or {}).get("status")
    return status if isinstance(status, str) else None


if __name__ == "__main__":
    sys.exit(0 if len(sys.argv) == 3 and is_healthy(sys.argv[1], sys.argv[2]) else 1)
