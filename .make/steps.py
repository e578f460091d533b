"""Runs the tools of set-up, prints what they do, and reports a failure in one sentence."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

SIGN_OF_LIFE_SECONDS = 15.0

_WORTH_SAYING = (
    "Downloading ",
    "Building ",
    "Built ",
    "Resolved ",
    "Prepared ",
    "Installed ",
    "spark start-up archive",
)

_REASONS = (
    ("No space left on device", "the disk is full; about 4 GB are needed for packages and their cache"),
    ("CERTIFICATE_VERIFY_FAILED", "the package registry's certificate is not trusted; set SSL_CERT_FILE and PIP_CERT"),
    ("invalid peer certificate", "the package registry's certificate is not trusted; set SSL_CERT_FILE and PIP_CERT"),
    ("Hash mismatch", "a package differs from the hash in requirements.lock; do not use that registry"),
    ("DO NOT MATCH THE HASHES", "a package differs from the hash in requirements.lock; do not use that registry"),
    ("Permission denied", "a file may not be written"),
)

_UNREACHABLE = (
    "error sending request",
    "dns error",
    "Name or service not known",
    "name resolution",
    "NewConnectionError",
    "Connection refused",
    "ConnectTimeout",
    "Max retries exceeded",
    "Network is unreachable",
    "operation timed out",
    "No matching distribution found",
    "Could not find a version",
)


class Failed(Exception):
    """A step could not be done; the message is the one sentence the user gets."""


def say(words: str, *, file: IO[str] | None = None) -> None:
    print(f"setup: {words}", file=file or sys.stdout, flush=True)


def run(doing: str, command: Sequence[str], *, env: Mapping[str, str], log: Path, seconds: float = 3600.0) -> None:
    """Run a tool with its output in the log, saying what is worth it; :class:`Failed` if it fails or takes longer."""
    output: list[str] = []
    with (
        log.open("a") as record,
        subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process,
        _bound(process, seconds),
        _sign_of_life(),
    ):
        record.write(f"$ {' '.join(command)}\n")
        assert process.stdout is not None
        for line in process.stdout:
            record.write(line)
            output.append(line)
            if line.startswith(_WORTH_SAYING):
                say(f"    {line.rstrip()}")
    if process.returncode < 0:
        raise Failed(f"{doing} was ended by signal {-process.returncode} (its bound is {seconds:.0f} s)")
    if process.returncode > 0:
        raise Failed(f"{doing} failed: {explain(''.join(output))} (details in {log.parent.name}/{log.name})")


@contextmanager
def _bound(process: subprocess.Popen[str], seconds: float) -> Iterator[None]:
    timer = threading.Timer(seconds, process.kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def _sign_of_life() -> Iterator[None]:
    """Prints the elapsed time now and then, so that a slow download does not look like a hang."""
    over = threading.Event()
    begun = time.monotonic()

    def tick() -> None:
        while not over.wait(SIGN_OF_LIFE_SECONDS):
            say(f"    … {time.monotonic() - begun:.0f} s so far")

    threading.Thread(target=tick, daemon=True).start()
    try:
        yield
    finally:
        over.set()


def explain(output: str) -> str:
    """Why a tool failed, as far as its output tells."""
    for sign, reason in _REASONS:
        if sign in output:
            return reason
    if any(sign in output for sign in _UNREACHABLE):
        return "the package registry could not be reached; check the network, HTTPS_PROXY or PIP_INDEX_URL"
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith(("error", "×"))]
    return (errors or lines[-1:] or ["it said nothing"])[-1].rstrip(".")
