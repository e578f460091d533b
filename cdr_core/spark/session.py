"""A Spark session for one phase: attached to the recovery's embedded server, or a classic one of its own.

``connect`` attaches to a running server by its session id and leaves it running. ``local[N,F]`` starts a JVM under this
process. ``spark://HOST:PORT`` does so too (client mode) and uses the cluster's executors, which need cdr installed and
must see the workspace; standalone is tested, other cluster managers are not. ``docs/cluster.md`` lists what its
operator provides.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdr_core import settings
from cdr_core.errors import CdrError, JobFailed, Refused
from cdr_core.spark.heartbeat import Heartbeat
from cdr_core.spark.java import java_home
from cdr_core.spark.launch import SESSION_CONF
from cdr_core.spark.python_path import python_path, source_root
from cdr_core.spark.server import ServerHandle, is_alive
from cdr_core.spark.worker import NOTES_VARIABLE, PRELOAD_VARIABLE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

USER = "cdr"
"""Connect keeps sessions by (user, session id); every client that attaches must use the same user."""

_RETRIES: dict[str, Any] = {"max_retries": 3, "initial_backoff": 100, "backoff_multiplier": 3.0, "max_backoff": 1000}
"""About 1.3 s in all: on loopback a server that does not answer is dead, and a longer wait is useless."""


@contextlib.contextmanager
def open_session(
    spark: str, *, home: Path, handle: ServerHandle | None = None, conf: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Yield a session for ``connect`` (give the server's handle) or for a Spark master.

    Leaving the block closes what this process holds: a Connect server and its session go on, a classic session stops.
    Refused: ``connect`` without a handle, a token the server does not accept. :class:`JobFailed` within seconds if the
    server is dead.
    """
    if spark != "connect":
        with _classic(spark, home, conf or {}) as classic:
            yield classic
        return
    if handle is None:
        raise Refused("a Connect session needs the handle of a running server", hint="call ensure_server first")
    with Heartbeat(Path(handle.directory)), attach(handle) as session:
        for name, value in (conf or {}).items():
            session.conf.set(name, value)
        yield session


def preload() -> threading.Thread:
    """Import the Connect client in the background (2 s, most of it pandas), while the driver still reads and plans."""
    thread = threading.Thread(target=_import_client, name="cdr-spark-import", daemon=True)
    thread.start()
    return thread


def _import_client() -> Any:
    # Not in a block that restores the filters: those are the process's, and this may run beside the driver.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas")  # users cannot act on it
    warnings.filterwarnings("ignore", r"\[RETRIES_EXCEEDED\]")  # it is raised as well
    import pyspark.sql.connect.session as client

    return client


@contextlib.contextmanager
def attach(handle: ServerHandle) -> Iterator[SparkSession]:
    """Yield a client of the server's one session."""
    if not is_alive(handle):
        raise _gone(handle)
    session = _connect(handle)
    previous = os.environ.get("SPARK_CONNECT_MODE_ENABLED")
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"  # pyspark.sql.functions looks here for the kind of session
    try:
        yield session
    finally:
        if previous is None:
            os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)
        with contextlib.suppress(Exception):
            session.stop()


def _connect(handle: ServerHandle) -> Any:
    client = _import_client()
    from pyspark.sql.connect.client import DefaultChannelBuilder
    from pyspark.sql.connect.client.retries import DefaultPolicy

    # "localhost" and nothing else: with a token and any other spelling the client insists on TLS.
    builder = DefaultChannelBuilder(f"sc://localhost:{handle.port}", [("grpc.enable_http_proxy", 0)])
    try:
        builder.set("token", handle.token_file.read_text())
    except OSError:
        raise _gone(handle) from None
    builder.set("session_id", handle.session_id)
    builder.set("user_id", USER)
    session = client.SparkSession(connection=builder)
    session.release_session_on_close = False  # later phases attach to the same session
    session.client.set_retry_policies([DefaultPolicy(**_RETRIES)])
    try:
        session.version  # noqa: B018  the first call that reaches the server
    except Exception as error:
        with contextlib.suppress(Exception):
            session.client.close()
        raise _refusal(handle, error) from error
    return session


def _refusal(handle: ServerHandle, error: Exception) -> CdrError:
    if "UNAUTHENTICATED" in str(error) or "Invalid authentication token" in str(error):
        return Refused("the Spark server refused the token", hint=f"it must be the one in {handle.token_file}")
    return _gone(handle)


def _gone(handle: ServerHandle) -> JobFailed:
    return JobFailed(
        f"the Spark server of this recovery (process {handle.pid}) is gone",
        hint=f"run the phase again, a new one is started; the old one's log is {handle.log_file}",
    )


@contextlib.contextmanager
def _classic(master: str, home: Path, conf: Mapping[str, str]) -> Iterator[SparkSession]:
    """Yield a session in a JVM under this process; executors of a cluster find cdr at their own path, or at ours."""
    from pyspark.sql import SparkSession

    for name in ("SPARK_CONNECT_MODE_ENABLED", "SPARK_REMOTE"):
        os.environ.pop(name, None)  # left by a Connect client that started this process: they would make us one, too
    with tempfile.TemporaryDirectory(prefix="cdr-spark-") as notes:
        os.environ.update({**_classic_environment(master, home), NOTES_VARIABLE: notes})
        builder = SparkSession.builder.master(_with_retries(master)).appName("cdr")
        cluster = {} if master.startswith("local") else EXECUTOR_CONF
        for name, value in {**SESSION_CONF, **cluster, **executor_environment(os.environ), **conf}.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("WARN")
        try:
            yield session
        finally:
            session.stop()


EXECUTOR_CONF = {
    # As for the embedded server: an executor's JVM only schedules tasks, Python does the work.
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
"""For a cluster's executors."""

SHARED_VARIABLES = ("CDR_S3_ENDPOINT", "AWS_REGION", "AWS_DEFAULT_REGION")
"""Variables of the driver's environment that executors get. No credentials: Spark would show them on the command line
of the driver's JVM. The operator gives those to the workers directly.
"""


def executor_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return Spark settings by which executors of a cluster find cdr and the S3 server, and load the kernels once."""
    shared = {name: environment[name] for name in SHARED_VARIABLES if environment.get(name)}
    # it may come from cdr.toml, which executors do not see
    shared["CDR_S3_ENDPOINT"] = settings.load(environment).s3_endpoint
    values = {**shared, "PYTHONPATH": source_root(), PRELOAD_VARIABLE: "cdr_core.recovery.kernel_warmup"}
    return {f"spark.executorEnv.{name}": value for name, value in values.items() if value}


def _with_retries(master: str) -> str:
    """Return the master with four attempts a task, as on a cluster; Spark gives plain ``local[N]`` a single one."""
    if master == "local":
        return "local[1,4]"
    return master if not master.startswith("local[") or "," in master else f"{master[:-1]},4]"


def _classic_environment(master: str, home: Path) -> dict[str, str]:
    is_local = master.startswith("local")
    # Executors of a cluster have to reach this process, and may have their Python elsewhere.
    address = os.environ.get("SPARK_LOCAL_IP", "127.0.0.1" if is_local else "")
    python = sys.executable if is_local else os.environ.get("PYSPARK_PYTHON", sys.executable)
    return {
        "JAVA_HOME": str(java_home(home)),
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": python_path(os.environ.get("PYTHONPATH", "")),
        **({"SPARK_LOCAL_IP": address} if address else {}),
        "SPARK_SUBMIT_OPTS": os.environ.get("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"),
    }
