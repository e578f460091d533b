"""The entry point in each of its roles, outside a container: what it starts, with which secrets, what it refuses."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
STAND_IN = f"""#!{sys.executable}
import json, os, sys
command = [os.path.basename(sys.argv[0]), *sys.argv[1:]]
with open(os.environ["CALLS"], "a") as calls:
    calls.write(json.dumps({{"command": command, "env": dict(os.environ)}}) + "\\n")
"""
"""Takes the place of a command: writes down how it was called."""

NAMES = ["postgres_password", "fernet_key", "api_secret_key", "jwt_secret"]
NAMES += ["admin_password", "s3_access_key", "s3_secret_key"]


class Container:
    """The directories that a container would have, and stand-ins for what it would start."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.secrets, self.state = folder, folder / "secrets", folder / "state"
        for made in (self.secrets, self.state, folder / "bin"):
            made.mkdir()
        for name in NAMES:
            (self.secrets / name).write_text(f"secret-of-{name}/+@")
        for name in ("airflow", "cdr", "spark-class", "weed"):
            file = folder / "bin" / name
            file.write_text(STAND_IN)
            file.chmod(0o755)
        (folder / "bin" / "python").symlink_to(sys.executable)

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        kept = {"PATH": f"{self.folder / 'bin'}:/usr/bin:/bin", "CALLS": str(self.folder / "calls")}
        kept |= {"SECRETS_DIR": str(self.secrets), "CDR_HOME": str(self.state), "S3_DATA": str(self.folder)}
        # The stand-in for python is outside its environment, which a container's is not.
        kept |= {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "HOME": str(self.folder)}
        command = ["/bin/sh", str(DOCKER / "entrypoint.sh"), *arguments]
        return subprocess.run(command, env=kept | environment, capture_output=True, text=True, check=False, timeout=120)

    def calls(self) -> list[dict[str, Any]]:
        file = self.folder / "calls"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.fixture
def container(tmp_path: Path) -> Container:
    return Container(tmp_path)


@pytest.mark.parametrize("role", ["api-server", "scheduler", "dag-processor", "triggerer"])
def test_a_role_of_airflow_starts_it_with_its_secrets_in_the_environment_and_on_no_command_line(
    container: Container, role: str
) -> None:
    done = container.run(role, POSTGRES_HOST="db.example")
    assert done.returncode == 0, done.stderr
    (call,) = container.calls()
    assert call["command"] == ["airflow", role]
    for name in (
        "CDR_DATABASE_URL",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC",
    ):
        url = urlsplit(call["env"][name])
        assert (url.scheme, url.hostname, url.username) == ("postgresql+psycopg", "db.example", "cdr")
        assert unquote(url.password or "") == "secret-of-postgres_password/+@"
    assert call["env"]["AIRFLOW__CORE__FERNET_KEY"] == "secret-of-fernet_key/+@"
    assert call["env"]["AWS_SECRET_ACCESS_KEY"] == "secret-of-s3_secret_key/+@"
    assert "secret-of" not in done.stdout + done.stderr


@pytest.mark.parametrize("name", ["postgres_password", "fernet_key", "jwt_secret", "s3_secret_key"])
def test_a_missing_or_empty_secret_is_a_sentence_and_nothing_is_started(container: Container, name: str) -> None:
    (container.secrets / name).write_text("")
    done = container.run("scheduler")
    assert done.returncode != 0
    assert f"the secret {name} is missing or empty" in done.stderr
    assert container.calls() == []


def test_a_worker_gets_credentials_of_s3_and_nothing_else(container: Container) -> None:
    for name in set(NAMES) - {"s3_access_key", "s3_secret_key"}:
        (container.secrets / name).unlink()
    done = container.run("spark-worker", SPARK_MASTER="spark://master:7077", CDR_SCRATCH=str(container.state / "s"))
    assert done.returncode == 0, done.stderr
    (call,) = container.calls()
    assert call["command"][:2] == ["spark-class", "org.apache.spark.deploy.worker.Worker"]
    assert call["command"][-1] == "spark://master:7077"
    assert call["env"]["AWS_ACCESS_KEY_ID"] == "secret-of-s3_access_key/+@"
    assert not any("DATABASE" in name for name in call["env"])
    assert "secret-of" not in " ".join(call["command"])
    assert Path(call["env"]["JAVA_HOME"], "bin", "java").exists()


def test_the_master_needs_no_secret(container: Container) -> None:
    for name in NAMES:
        (container.secrets / name).unlink()
    assert container.run("spark-master").returncode == 0
    (call,) = container.calls()
    assert call["command"][1] == "org.apache.spark.deploy.master.Master"
    assert "AWS_SECRET_ACCESS_KEY" not in call["env"]


def test_the_s3_server_gets_its_keys_in_a_file_of_its_own(container: Container) -> None:
    assert container.run("s3").returncode == 0
    (call,) = container.calls()
    keys = container.state / "s3.json"
    assert f"-s3.config={keys}" in call["command"]
    (user,) = json.loads(keys.read_text())["identities"]
    assert user["credentials"] == [
        {"accessKey": "secret-of-s3_access_key/+@", "secretKey": "secret-of-s3_secret_key/+@"}
    ]
    assert stat.S_IMODE(keys.stat().st_mode) == 0o600
    assert "secret-of" not in " ".join(call["command"])


def test_init_stops_at_the_first_thing_that_fails(container: Container) -> None:
    (container.folder / "bin" / "airflow").write_text("#!/bin/sh\nexit 3\n")
    assert container.run("init").returncode == 3
    assert container.calls() == []
    assert json.loads((container.state / "passwords.json").read_text()) == {"admin": "secret-of-admin_password/+@"}
    assert stat.S_IMODE((container.state / "passwords.json").stat().st_mode) == 0o600


def test_without_a_role_it_says_which_there_are(container: Container) -> None:
    done = container.run()
    assert done.returncode == 64
    assert "spark-worker" in done.stderr


def test_anything_else_is_run_as_it_is(container: Container) -> None:
    assert container.run("cdr", "settings").returncode == 0
    assert container.calls()[0]["command"] == ["cdr", "settings"]


def test_secrets_are_drawn_once_and_only_their_owner_gets_to_them(tmp_path: Path) -> None:
    command = ["/bin/sh", str(DOCKER / "make-secrets.sh"), str(tmp_path / "secrets")]
    subprocess.run(command, check=True, capture_output=True)
    drawn = {file.name: file.read_text() for file in (tmp_path / "secrets").iterdir()}
    assert drawn.keys() == set(NAMES)
    assert len(set(drawn.values())) == len(NAMES)
    assert stat.S_IMODE((tmp_path / "secrets").stat().st_mode) == 0o700
    again = subprocess.run(command, check=True, capture_output=True, text=True)
    assert {file.name: file.read_text() for file in (tmp_path / "secrets").iterdir()} == drawn
    assert not any(value in again.stdout for value in drawn.values())


def test_the_drawn_fernet_key_is_one(tmp_path: Path) -> None:
    from cryptography.fernet import Fernet

    subprocess.run(["/bin/sh", str(DOCKER / "make-secrets.sh"), str(tmp_path)], check=True, capture_output=True)
    Fernet((tmp_path / "fernet_key").read_text())


# --- health ---------------------------------------------------------------------------------------------------------


@contextmanager
def answering(body: Any) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_: Any) -> None:
            """A test's output is its own."""

    with HTTPServer(("", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def health(*arguments: str, **environment: str) -> int:
    return subprocess.run(
        [sys.executable, str(DOCKER / "health.py"), *arguments], env=os.environ | environment, check=False
    ).returncode


def test_a_part_of_airflow_is_as_healthy_as_airflow_says() -> None:
    parts = {"metadatabase": {"status": "healthy"}, "scheduler": {"status": "unhealthy"}, "triggerer": {"status": None}}
    with answering(parts) as port:
        address = f"http://127.0.0.1:{port}/"
        found = {name: health("airflow", name, AIRFLOW_HEALTH=address) for name in (*parts, "dag_processor")}
        assert health("http", str(port)) == 0
        assert health("port", str(port)) == 0
    assert found == {"metadatabase": 0, "scheduler": 1, "triggerer": 1, "dag_processor": 1}
    assert health("airflow", "scheduler", AIRFLOW_HEALTH=address) == 1
    assert health("port", "1") == 1
    assert health("sideways", "1") == 1
