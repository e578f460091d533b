"""The start-up archive: a Connect server's classes, loaded and linked at set-up so that each start skips the work.

It is an AOT cache of the installed Java (25). The file's name carries a key over everything it depends on: the Java,
the jars with their sizes and times, the flags. A changed key finds no archive. A file that exists but does not
work is set aside by the supervisor, and the server starts without it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from cdr_core.spark.java import Java, installed_java
from cdr_core.spark.launch import JVM_FLAGS, jars

MINIMUM_JAVA_FOR_ARCHIVE = 25
"""The one-step ``-XX:AOTCacheOutput`` came with 25."""


def archive_path(home: Path, java: Java) -> Path:
    """Return where the archive for this Java, this Spark and these flags is, or would be."""
    return home / "java" / f"server-{_key(java)}.aot"


def usable_archive(home: Path) -> tuple[Java, Path] | None:
    """Return the installed Java and the archive that fits it, if there is one."""
    java = installed_java()
    if java is None or java.major < MINIMUM_JAVA_FOR_ARCHIVE:
        return None
    path = archive_path(home, java)
    return (java, path) if path.is_file() else None


def set_aside(path: Path) -> None:
    """Rename a broken archive, so that the next start ignores it and it can still be examined."""
    path.replace(path.with_suffix(".broken"))


def _key(java: Java) -> str:
    digest = hashlib.sha256()
    for file in (java.home / "release", java.home / "lib" / "server" / "libjvm.so", *jars()):
        digest.update(f"{file}\0{_fingerprint(file)}\n".encode())
    digest.update("\n".join(JVM_FLAGS).encode())
    return digest.hexdigest()[:16]


def _fingerprint(file: Path) -> str:
    try:
        stat = file.stat()
    except OSError:
        return "absent"
    return f"{stat.st_size} {stat.st_mtime_ns}"
