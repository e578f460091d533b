"""Artefacts that a version of cdr wrote: how they are packed, and how a test gets them back.

Identities, plan hashes, proofs and receipts are computed over absolute paths, so an artefact cannot be moved: it is
recorded below ``ROOT`` and unpacked to the same place. ``occupied`` lets one process at a time use that place. The
host's id is in rows only; a placeholder stands for it in the dumps.

A version's folder holds ``manifest.json`` and ``artefacts.tar.xz``. In the archive each artefact is a folder with
``root`` (everything below ``ROOT`` but the database), ``sqlite.sql`` and ``postgresql.sql`` (schema and rows).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import lzma
import shutil
import sqlite3
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from cdr_core.storage.local import host_id
from tests.support.checkpoints import FIXTURES

VERSIONS = FIXTURES / "versions"
MANIFEST, ARCHIVE = "manifest.json", "artefacts.tar.xz"
FORMAT = 1

ROOT = Path("/tmp/cdr-frozen")
HOME, OUT, SOURCE, EXPORTED = ROOT / "home", ROOT / "out", ROOT / "source" / "chk-1", ROOT / "exported"
SPEC = ROOT / "spec.yaml"
DATABASE = HOME / "cdr.db"
HOST = "cdr-frozen-host"
"""Stands in the dumps for the id of the host."""

_MARKER = ".made-by-the-tests-of-cdr"
_RECORDED_AT = 1_700_000_000
"""The modification time of every packed file, so that the same files give the same archive."""


@dataclass(frozen=True, slots=True)
class Artefact:
    """One stop of one recovery. ``stop`` names the fault point the process died at; empty = it finished.

    ``environment`` are the settings of the recorded process; ``recovery`` is empty where there is more than one;
    ``threads``: tasks ran beside the driver.
    """

    series: str
    stop: str
    command: str
    recovery: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    threads: bool = False

    @property
    def name(self) -> str:
        return f"{self.series}/{self.stop.replace(' then ', '+') or 'finished'}"


@dataclass(frozen=True, slots=True)
class Version:
    """What one version of cdr wrote."""

    folder: Path
    cdr: str
    commit: str
    recorded: str
    artefacts: tuple[Artefact, ...]

    def write(self) -> None:
        value = {"format": FORMAT, "cdr": self.cdr, "commit": self.commit, "recorded": self.recorded}
        entries = [asdict(artefact) for artefact in self.artefacts]
        (self.folder / MANIFEST).write_text(json.dumps({**value, "artefacts": entries}, indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> Version:
        value: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
        assert value["format"] == FORMAT, f"{folder / MANIFEST} has format {value['format']}"
        artefacts = tuple(Artefact(**entry) for entry in value["artefacts"])
        return cls(folder, value["cdr"], value["commit"], value["recorded"], artefacts)


def versions() -> list[Version]:
    """All that were recorded, the oldest first."""
    return sorted((Version.read(file.parent) for file in VERSIONS.glob(f"*/{MANIFEST}")), key=lambda v: v.recorded)


@contextmanager
def occupied() -> Iterator[None]:
    """Hold ``ROOT`` for this process; it is removed at the end. A ``ROOT`` that these tests did not make is refused."""
    lock = Path(tempfile.gettempdir()) / f"{ROOT.name}.lock"
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        try:
            yield
        finally:
            clear()


def clear() -> None:
    """Remove ``ROOT``."""
    if not ROOT.exists():
        return
    assert (ROOT / _MARKER).is_file(), f"{ROOT} was not made by these tests; move it away and run them again"
    shutil.rmtree(ROOT)


def restore(tree: Path | None = None) -> None:
    """Make ``ROOT`` anew with what a tree holds; the database comes by :func:`load_sqlite` or as a file of the tree."""
    clear()
    ROOT.mkdir(mode=0o700)
    (ROOT / _MARKER).touch()
    if tree is not None:
        shutil.copytree(tree, ROOT, dirs_exist_ok=True, symlinks=True)


def dump_sqlite() -> str:
    """The database as SQL, with its own schema and columns by name."""
    with closing(sqlite3.connect(DATABASE)) as connection:
        lines = [f"{sql};" for (sql,) in connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")]
        tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
        for (table,) in connection.execute(tables).fetchall():
            columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
            names, values = ", ".join(f'"{c}"' for c in columns), ", ".join(f'quote("{c}")' for c in columns)
            rows = connection.execute(f'SELECT {values} FROM "{table}" ORDER BY rowid')
            lines += [f'INSERT INTO "{table}" ({names}) VALUES ({", ".join(row)});' for row in rows]
    return "\n".join(lines).replace(host_id(), HOST) + "\n"


def load_sqlite(artefact: Path) -> str:
    """The dump as a database at its recorded place, with its recorded schema; the URL."""
    DATABASE.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(DATABASE)) as connection:
        connection.executescript((artefact / "sqlite.sql").read_text().replace(HOST, host_id()))
        connection.commit()
    return f"sqlite:///{DATABASE}"


def load_postgresql(artefact: Path, url: str) -> None:
    """The dump in an empty database of a PostgreSQL server."""
    script = (artefact / "postgresql.sql").read_text().replace(HOST, host_id())
    with psycopg.connect(url.replace("+psycopg", "", 1), autocommit=True) as connection:
        connection.execute(script.encode())


def pack(staging: Path, archive: Path) -> None:
    """A deterministic archive of a folder; a file that repeats an earlier one becomes a hard link to it."""
    first: dict[str, str] = {}
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9, "dict_size": 1 << 26}]
    with lzma.open(archive, "wb", filters=filters) as out, tarfile.open(fileobj=out, mode="w") as tar:
        for path in sorted(staging.rglob("*")):
            info = tar.gettarinfo(path, str(path.relative_to(staging)))
            info.uid = info.gid = 0
            info.uname = info.gname = ""
            info.mtime = _RECORDED_AT
            info.mode = 0o755 if path.is_dir() else 0o644
            if not path.is_file():
                tar.addfile(info)
                continue
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            if digest in first:
                info.type, info.linkname, info.size = tarfile.LNKTYPE, first[digest], 0
                tar.addfile(info)
                continue
            first[digest] = info.name
            info.type, info.size = tarfile.REGTYPE, path.stat().st_size
            with path.open("rb") as data:
                tar.addfile(info, data)


def unpack(version: Version, to: Path) -> Path:
    """All artefacts of a version, to be copied and not to be changed: equal files are one."""
    with tarfile.open(version.folder / ARCHIVE) as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", None)  # early 3.11 has none; the archives are ours
        tar.extractall(to)
    return to
