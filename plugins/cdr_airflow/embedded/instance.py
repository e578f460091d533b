"""One embedded Airflow as a whole: up, down, status."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cdr_airflow.embedded import rest, services, setup, spark_servers
from cdr_airflow.embedded.config import LOOPBACK
from cdr_airflow.embedded.console import Console
from cdr_airflow.embedded.home import USER, Home, keep_password, write_private
from cdr_core.errors import CdrError, NotReady, Refused

UP_SECONDS = 240.0
"""Given up after this; on two quiet cores it takes about a tenth."""

PARTS = ("metadatabase", "scheduler", "dag_processor", "triggerer")


@dataclass(frozen=True, slots=True)
class Started:
    """A running instance: its address, and whether its password is a new one."""

    url: str
    password: str
    is_new_password: bool


def address(home: Home) -> str | None:
    """Return the address of the instance, if one was started and not stopped."""
    file = home.run / "address.json"
    if not file.is_file() or not services.running(home):
        return None
    return str(json.loads(file.read_text())["url"])


def up(home: Home, port: int | None, console: Console) -> Started:
    """Start those of the four services that do not run, and wait until Airflow knows the DAG."""
    with setup.locked(home, "make up"):
        if (url := address(home)) and len(services.running(home)) == len(services.SERVICES):
            return Started(url, *keep_password(home))
        services.stop(home)
        chosen = setup.choose_port(port)
        setup.prepare(home, chosen, console)
        started = Started(f"http://{LOOPBACK}:{chosen}", *keep_password(home))
        write_private(home.run / "address.json", json.dumps({"url": started.url}))
        try:
            with console.step("Starting Airflow: API server, scheduler, DAG processor, triggerer"):
                for name in services.SERVICES:
                    services.start(home, name)
                wait_until_ready(home, started)
        except BaseException:
            # Also for Ctrl-C: an instance runs as a whole or not at all.
            services.stop(home)
            raise
        return started


def wait_until_ready(home: Home, started: Started) -> None:
    """Return when every part is healthy and the DAG can be triggered; refuse when a service has ended."""
    deadline = time.monotonic() + UP_SECONDS
    while time.monotonic() < deadline:
        for service in services.known(home):
            if not service.is_running:
                log = services.log_file(home, service.name)
                raise Refused(f"Airflow's {service.name} ended while starting", hint=f"its log is {log}")
        if is_healthy(rest.health(started.url)) and _knows_the_dag(started):
            return
        time.sleep(0.3)
    raise NotReady(f"Airflow was not ready within {UP_SECONDS:.0f} seconds", hint=f"its logs are in {home.logs}")


def is_healthy(parts: Mapping[str, str]) -> bool:
    return all(parts.get(name) == "healthy" for name in PARTS)


def _knows_the_dag(started: Started) -> bool:
    try:
        client = rest.Client.login(started.url, USER, started.password)
        return not client.call("GET", f"dags/{rest.DAG}")["is_paused"]
    except CdrError:
        return False


def down(home: Home, console: Console) -> int:
    """Stop the services and every recovery's Spark server; return how many processes were ended. None is left."""
    with setup.locked(home, "make down"), console.step("Stopping Airflow and the recoveries' Spark servers"):
        ended = services.stop(home)
        (home.run / "address.json").unlink(missing_ok=True)
        return ended + spark_servers.stop(home.root)


def status(home: Home) -> dict[str, Any]:
    """Return the running parts as a value for printing or for programs."""
    url = address(home)
    return {
        "home": str(home.root),
        "url": url,
        "healthy": bool(url) and is_healthy(rest.health(url or "")),
        "services": {service.name: service.pid if service.is_running else None for service in services.known(home)},
        "spark_servers": len(spark_servers.running(home.root)),
    }
