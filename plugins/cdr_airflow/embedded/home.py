"""The embedded Airflow's home: its files, its secrets, and the environment of its processes."""

from __future__ import annotations

import base64
import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from cdr_airflow.demo_checkpoint import REPOSITORY

USER = "admin"


@dataclass(frozen=True, slots=True)
class Home:
    """``CDR_HOME`` of the embedded Airflow."""

    root: Path

    @property
    def airflow(self) -> Path:
        return self.root / "airflow"

    @property
    def config(self) -> Path:
        return self.airflow / "airflow.cfg"

    @property
    def database(self) -> Path:
        return self.airflow / "airflow.db"

    @property
    def passwords(self) -> Path:
        return self.airflow / "passwords.json"

    @property
    def secrets(self) -> Path:
        return self.airflow / "secrets.json"

    @property
    def migrated(self) -> Path:
        """Return the file with the version of the database's schema."""
        return self.airflow / "migrated"

    @property
    def lock(self) -> Path:
        """Return the lock file, held by a process that starts, stops or runs something here."""
        return self.airflow / "lock"

    @property
    def run(self) -> Path:
        """Return the folder with one file per running service, and the address."""
        return self.airflow / "run"

    @property
    def logs(self) -> Path:
        return self.airflow / "logs"

    def environment(self) -> dict[str, str]:
        """Return the environment of every process of this Airflow: the caller's, without another Airflow's settings."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW_", "_AIRFLOW"))}
        if kept.pop("PYTHONDONTWRITEBYTECODE", ""):
            # Compiling Airflow in each of its processes takes longer than their work. The source tree stays clean
            # nevertheless.
            kept.setdefault("PYTHONPYCACHEPREFIX", str(self.root / "pycache"))
        paths = [str(REPOSITORY), str(REPOSITORY / "plugins")]
        paths += [path for path in kept.get("PYTHONPATH", "").split(os.pathsep) if path]
        return kept | {
            "AIRFLOW_HOME": str(self.airflow),
            "CDR_HOME": str(self.root),
            "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
            "PYTHONUNBUFFERED": "1",
        }


@dataclass(frozen=True, slots=True)
class Secrets:
    """Secrets that the processes of one Airflow share."""

    fernet_key: str
    jwt_secret: str
    session_key: str


def keep_secrets(home: Home) -> Secrets:
    """Return the home's secrets, drawn at the first call."""
    if not home.secrets.is_file():
        drawn = {
            "fernet_key": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
            "jwt_secret": secrets.token_urlsafe(48),
            "session_key": secrets.token_urlsafe(48),
        }
        write_private(home.secrets, json.dumps(drawn))
    return Secrets(**json.loads(home.secrets.read_text()))


def keep_password(home: Home) -> tuple[str, bool]:
    """Return the login's password, and whether it was drawn just now."""
    if home.passwords.is_file():
        return str(json.loads(home.passwords.read_text())[USER]), False
    password = secrets.token_urlsafe(12)
    write_private(home.passwords, json.dumps({USER: password}))
    return password, True


def write_private(path: Path, text: str) -> None:
    """Replace a file that only its owner may read; never half-written, never readable for a moment in between."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.unlink(missing_ok=True)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    part.replace(path)
