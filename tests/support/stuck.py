"""Targets that stop answering: a frozen file system, and an S3 server behind a proxy that holds uploads back."""

from __future__ import annotations

import re
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

IMAGE_BYTES = 64 << 20


class FrozenDisk:
    """A file system of its own; while it is frozen, everything that writes to it waits."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._frozen = False

    def freeze(self) -> None:
        subprocess.run(["fsfreeze", "--freeze", self.path], check=True)
        self._frozen = True

    def thaw(self) -> None:
        if self._frozen:
            subprocess.run(["fsfreeze", "--unfreeze", self.path], check=True)
            self._frozen = False


@contextmanager
def frozen_disk(folder: Path) -> Iterator[FrozenDisk]:
    """Skips the test where this user may not make and mount a file system."""
    image, path = folder / "disk.img", folder / "disk"
    path.mkdir()
    with image.open("wb") as file:
        file.truncate(IMAGE_BYTES)
    with suppress(FileNotFoundError):
        made = subprocess.run(["mkfs.ext4", "-q", image], capture_output=True)
        mounted = subprocess.run(["mount", "-o", "loop", image, path], capture_output=True)
        if made.returncode == mounted.returncode == 0:
            disk = FrozenDisk(path)
            try:
                yield disk
            finally:
                disk.thaw()
                subprocess.run(["umount", "-l", path], check=True)
            return
    pytest.skip("no file system can be made and mounted here")


_FETCH = re.compile(rb"^GET /(\S+?)(?:\?\S*)? HTTP/.*?\r\nrange: *bytes=(\d+)-(\d+)\r\n", re.DOTALL | re.IGNORECASE)


class HoldingProxy:
    """Passes bytes between clients and a server on loopback; while it holds, requests that upload wait.

    ``fetched`` are the ranges that were asked for: the key with its bucket, the first byte, and one behind the last.
    """

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._released = threading.Event()
        self._released.set()
        self.held = threading.Event()
        self.fetched: list[tuple[str, int, int]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def hold(self) -> None:
        self._released.clear()

    def release(self) -> None:
        self._released.set()

    def close(self) -> None:
        self.release()
        for each in self._sockets:
            with suppress(OSError):
                each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._server_port))
                self._sockets += [client, server]
                threading.Thread(target=self._pump, args=(client, server, True), daemon=True).start()
                threading.Thread(target=self._pump, args=(server, client, False), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, requests: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if requests and (fetch := _FETCH.search(data)):
                    self.fetched.append((fetch.group(1).decode(), int(fetch.group(2)), int(fetch.group(3)) + 1))
                if requests and data.startswith(b"PUT ") and not self._released.is_set():
                    self.held.set()
                    self._released.wait()
                target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
