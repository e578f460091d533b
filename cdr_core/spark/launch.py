"""The command that starts a Connect server's JVM, as pure data.

The JVM is started directly rather than through Spark's shell scripts: those start a second JVM only to print this very
command line (0.7 s), set SPARK_HOME, which makes Python workers import pyspark from a zip without compiled files (about
1 s a worker), and ask for a module that the installed Java lacks. The arguments of those scripts are listed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from cdr_core.errors import Refused

MAIN_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"

_OPENED_PACKAGES = (
    "java.base/java.lang",
    "java.base/java.lang.invoke",
    "java.base/java.lang.reflect",
    "java.base/java.io",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.base/sun.nio.cs",
    "java.base/sun.security.action",
    "java.base/sun.util.calendar",
    "java.security.jgss/sun.security.krb5",
)

JVM_FLAGS = (
    # The JVM only schedules: the work is done in Python workers. The quick compiler and the plain collector start
    # faster and take half the CPU of a short recovery.
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    # A server out of memory must end and be noticed.
    "-XX:+ExitOnOutOfMemoryError",
    "-XX:-UsePerfData",
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED_PACKAGES),
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
)

SESSION_CONF: Mapping[str, str] = {
    # Time between the kill of a task and the SIGKILL of the Python worker that runs it.
    "spark.python.task.killTimeout": "500ms",
    "spark.python.daemon.module": "cdr_core.spark.daemon",
    "spark.python.worker.faulthandler.enabled": "true",
    # Over TCP every task waits 40 ms for a delayed acknowledgement; a task of a small unit takes 4.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.ui.port": "0",
    "spark.ui.killEnabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.retainedTasks": "10000",
    # One task per unit; Spark must not merge them by size.
    "spark.sql.adaptive.enabled": "false",
    # Compiling generated code costs more than it saves on a row per unit.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.locality.wait": "0s",
}
"""For every session, also a classic one."""

SERVER_CONF: Mapping[str, str] = {
    "spark.app.name": "cdr",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
    # A client that died silently: the server itself gives up its job after both of these, if no other process
    # interrupts it before. A dead client is noticed only where its stream would have to be renewed; a living one is
    # detached only for the moment in which it does so.
    "spark.connect.execute.reattachable.senderMaxStreamDuration": "15s",
    "spark.connect.execute.manager.detachedTimeout": "30s",
    "spark.connect.execute.manager.maintenanceInterval": "5s",
    # The session lives as long as the server: clients of later phases attach to it by its id.
    "spark.connect.session.manager.defaultSessionTimeout": "3650d",
}

LONGEST_SOCKET_FOLDER = 60
"""Characters: the system allows 104 for a socket's path, of which its name takes 42. Beyond, TCP works, only later."""

LOG_CONFIG = """\
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.target = SYSTEM_ERR
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{yyyy-MM-dd HH:mm:ss.SSS} %p %c{1}: %m%n%ex
# The two lines that tell the supervisor which ports were given.
logger.server.name = org.apache.spark.sql.connect.service.SparkConnectServer
logger.server.level = info
logger.utils.name = org.apache.spark.util.Utils
logger.utils.level = info
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
logger.conf.name = org.apache.spark.SparkConf
logger.conf.level = error
"""


def jars() -> list[Path]:
    """Return Spark's jars in a fixed order: an archive is valid only for the very same class path."""
    spec = find_spec("pyspark")
    folder = Path(next(iter(spec.submodule_search_locations or ()))) / "jars" if spec else None
    found = sorted(folder.glob("*.jar")) if folder else []
    if not found:
        raise Refused("the package pyspark is not installed with its jars", hint="reinstall cdr with its dependencies")
    return found


def class_path() -> str:
    return ":".join(str(jar) for jar in jars())


def arguments(conf: Mapping[str, str], *, heap: str, scratch: Path, log_config: Path) -> list[str]:
    """Return all arguments of ``java`` but the archive and the main class."""
    places = {
        "java.io.tmpdir": str(scratch),
        "log4j2.configurationFile": log_config.as_uri(),
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
    }
    if len(str(scratch)) > LONGEST_SOCKET_FOLDER:
        places["spark.python.unix.domain.socket.enabled"] = "false"
    properties = {**SESSION_CONF, **SERVER_CONF, **conf, **places}
    defined = [f"-D{name}={value}" for name, value in properties.items()]
    # A small first heap keeps the server some 60 MB smaller at no cost in time.
    return ["-cp", class_path(), "-Xms64m", f"-Xmx{heap}", *JVM_FLAGS, *defined]


def argument_file(arguments: list[str]) -> str:
    """Return the arguments as the text of a java ``@file``: quoted, so that paths with spaces and brackets survive."""
    return "".join('"' + argument.replace("\\", "\\\\").replace('"', '\\"') + '"\n' for argument in arguments)
