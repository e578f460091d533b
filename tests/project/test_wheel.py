"""The wheel in an empty environment, far from the checkout: pip installs it, and it recovers the shipped checkpoint.

``make test-wheel`` runs it. It takes a minute or two, most of it for pyspark, which pip builds from source.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cdr_airflow.demo_checkpoint import Shipped

ROOT = Path(__file__).resolve().parents[2]
MINUTES = 15

pytestmark = pytest.mark.timeout(MINUTES * 60)


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel, a folder to work in, and the demo's checkpoint there."""

    bin: Path
    folder: Path
    demo: Shipped

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a command of the environment as a user without any other setting would."""
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        env = {"PATH": f"{self.bin}:/usr/bin:/bin", "HOME": str(home), "LANG": "C.UTF-8"}
        done = [str(part) for part in command]
        return subprocess.run(done, cwd=home, env=env, capture_output=True, text=True, check=False)

    def cdr(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return self.run(self.bin / "cdr", *arguments)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "venv", with_pip=True)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH" and not name.startswith("CDR_")}
    # The machine's own pip, with whatever registry and certificate it is configured for.
    pip = [str(folder / "venv" / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*pip, f"{wheel}[spark]"], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    demo = Shipped(folder / "demo")
    demo.unpack()
    return Installed(folder / "venv" / "bin", folder, demo)


def last_object(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_wheel_has_the_migrations_and_no_optional_library(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        lines = archive.read(metadata).decode().splitlines()
    assert {f"cdr_core/_sql/versions/{file.name}" for file in (ROOT / "sql" / "versions").glob("*.py")} <= set(names)
    core = [line for line in lines if line.startswith("Requires-Dist:") and "extra ==" not in line]
    assert not [line for line in core if any(name in line for name in ("airflow", "pypaimon", "pyspark", "psycopg"))]


def test_the_wheel_recovers_and_verifies_outside_of_the_checkout(installed: Installed) -> None:
    asked = ("--spec", installed.demo.spec, "--parallelism", "2", "--to", f"parquet:{installed.folder / 'out'}")
    value = last_object(installed.cdr("recover", installed.demo.checkpoint, *asked, "--json"))
    assert (value["state"], value["verdict"], value["records"]) == ("DONE", "balanced", 1878)
    verified = installed.cdr("verify", value["receipt"])
    assert verified.returncode == 0, verified.stderr
    listed = installed.run(installed.bin / "python", "-c", "import cdr_core; print(cdr_core.__file__)")
    assert listed.stdout.startswith(str(installed.folder)), "the checkout's own package was not used"


@pytest.mark.parametrize(
    ("target", "extra"), [("paimon:/warehouse/db.t", "paimon"), ("iceberg:catalog/db.t", "iceberg")]
)
def test_an_absent_library_is_a_sentence_with_its_extra(installed: Installed, target: str, extra: str) -> None:
    source = ("--source", installed.demo.checkpoint, "--spec", installed.demo.spec)
    done = installed.cdr("verify", *source, "--output", target)
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr
    assert f'pip install "cdr[{extra}]"' in done.stderr
