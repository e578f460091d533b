"""A real S3 server on loopback for the tests (SeaweedFS, which comes with the test packages)."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support import lanes

ACCESS_KEY, SECRET_KEY = "cdr-tests", "cdr-tests-secret"
START_SECONDS = 60.0


@contextmanager
def running_s3(folder: Path) -> Iterator[str]:
    """The endpoint of a server that keeps its data in ``folder`` and ends with the block."""
    lanes.require("s3")
    ports = _free_ports(4)
    keys = '{"identities":[{"name":"t","credentials":[{"accessKey":"%s","secretKey":"%s"}],"actions":["Admin"]}]}'
    (folder / "s3.json").write_text(keys % (ACCESS_KEY, SECRET_KEY))
    command = [str(Path(sys.executable).with_name("weed")), "-logtostderr=true", "server", f"-dir={folder}"]
    command += ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3", f"-s3.port={ports[0]}", f"-s3.config={folder}/s3.json"]
    command += [f"-master.port={ports[1]}", f"-volume.port={ports[2]}", f"-filer.port={ports[3]}", "-volume.max=20"]
    command += ["-master.volumeSizeLimitMB=64"]
    command += ["-s3.port.iceberg=0", "-s3.port.lance=0"]  # of fixed numbers, which a second server would find taken
    with ExitStack() as stack:
        log = stack.enter_context((folder / "weed.log").open("wb"))
        server = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=folder)
        stack.callback(_end, server)
        _wait(ports[0], server, folder / "weed.log")
        yield f"http://127.0.0.1:{ports[0]}"


def _free_ports(count: int) -> list[int]:
    """SeaweedFS also listens at each port + 10000, so both must be free, and neither one that the system gives out to
    whoever connects somewhere (from 32768 on): that may be taken a moment later.
    """
    found: list[int] = []
    for port in random.sample(range(12000, 22700, 7), 1500):  # at random: two servers may be starting at once
        if len(found) == count:
            break
        if _free(port) and _free(port + 10000):
            found.append(port)
    return found


def _free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def _wait(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while _free(port):
        assert server.poll() is None, f"the S3 server ended: {log.read_text()[-2000:]}"
        assert time.monotonic() < deadline, "the S3 server did not start"
        time.sleep(0.1)


def _end(server: subprocess.Popen[bytes]) -> None:
    server.kill()  # its orderly end takes ten seconds, and what it keeps is thrown away anyway
    server.wait()
