"""The compose file, as far as it can be judged without an engine: its structure, its references, its promises."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
AIRFLOW = {"api-server", "scheduler", "dag-processor", "triggerer"}
SPARK = {"spark-master", "spark-worker-1", "spark-worker-2"}

KEYS = {
    *("build", "cap_drop", "command", "depends_on", "environment", "healthcheck", "hostname", "image", "init"),
    *("networks", "ports", "restart", "secrets", "security_opt", "stop_grace_period", "tmpfs", "user", "volumes"),
}
"""Of a service, those we use: a misspelt one would be ignored by some versions and refused by others."""


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    return document


@pytest.fixture(scope="module")
def services(compose: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = compose["services"]
    return found


def test_everything_that_was_promised_is_there(services: dict[str, Any]) -> None:
    assert services.keys() == AIRFLOW | SPARK | {"init", "postgres", "s3"}


def test_only_known_keys_are_used_and_each_reference_has_its_definition(
    compose: dict[str, Any], services: dict[str, Any]
) -> None:
    assert {key for key in compose if not key.startswith("x-")} == {
        "name",
        "services",
        "networks",
        "volumes",
        "secrets",
    }
    for name, service in services.items():
        assert service.keys() <= KEYS, name
        assert set(service.get("secrets", ())) <= compose["secrets"].keys(), name
        assert set(service["networks"]) <= compose["networks"].keys(), name
        assert set(service.get("depends_on", {})) <= services.keys(), name
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in compose["volumes"] or (DOCKER / source).exists(), volume


def test_nothing_waits_for_itself(services: dict[str, Any]) -> None:
    waiting = {name: set(service.get("depends_on", {})) for name, service in services.items()}
    while ready := {name for name, others in waiting.items() if not others}:
        waiting = {name: others - ready for name, others in waiting.items() if name not in ready}
    assert waiting == {}


def test_whoever_is_waited_for_to_be_healthy_can_be_asked(services: dict[str, Any]) -> None:
    for service in services.values():
        for other, wait in service.get("depends_on", {}).items():
            if wait["condition"] == "service_healthy":
                assert "healthcheck" in services[other], other
    assert {name for name, service in services.items() if "healthcheck" not in service} == {"init"}


def test_nobody_is_root_or_may_become_it(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert re.fullmatch(r"[1-9]\d*:\d+", service["user"]), name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
    assert "USER 10001:0" in (DOCKER / "Dockerfile").read_text()


def test_programs_can_be_run_from_a_home_in_memory(services: dict[str, Any]) -> None:
    """Docker mounts a tmpfs noexec unless told otherwise, and ``CDR_HOME/java`` holds programs."""
    mounted = [mount.split(":") for service in services.values() for mount in service.get("tmpfs", ())]
    assert len(mounted) == 4
    for place, options in mounted:
        assert place == "/var/lib/cdr"
        assert "exec" in options.split(","), options


def test_only_one_port_is_open_and_only_on_loopback(services: dict[str, Any]) -> None:
    ports = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert list(ports) == ["api-server"]
    assert all(port.startswith("127.0.0.1:") for port in ports["api-server"])


def test_images_are_pinned_to_an_exact_version(services: dict[str, Any]) -> None:
    (base,) = re.findall(r"^FROM (\S+)$", (DOCKER / "Dockerfile").read_text(), re.MULTILINE)
    others = {service["image"] for service in services.values()} - {"${CDR_IMAGE:-cdr:local}"}
    for image in (base, *others):
        assert re.search(r":\d+\.\d+(\.\d+)?(-slim)?-bookworm(@sha256:[0-9a-f]{64})?$", image), image


def test_a_role_gets_only_the_secrets_it_needs(services: dict[str, Any]) -> None:
    for worker in ("spark-worker-1", "spark-worker-2", "s3"):
        assert set(services[worker]["secrets"]) == {"s3_access_key", "s3_secret_key"}
    assert services["postgres"]["secrets"] == ["postgres_password"]
    assert "secrets" not in services["spark-master"]


def test_workers_get_no_address_of_a_database(services: dict[str, Any]) -> None:
    for name in SPARK:
        assert not any("DATABASE" in key or "POSTGRES" in key for key in services[name].get("environment", {}))


def test_no_secret_is_written_down(compose: dict[str, Any]) -> None:
    for file in (DOCKER / "compose.yaml", DOCKER / ".env.example"):
        for name, value in re.findall(
            r"(?i)^\s*([A-Z_]*(?:password|secret|key|token)[A-Z_]*)[:=]\s*(\S+)", file.read_text()
        ):
            assert value.startswith(("/run/secrets/", "{file:")), name
    assert all(re.fullmatch(r"\./secrets/\w+", secret["file"]) for secret in compose["secrets"].values())
    ignored = (DOCKER / ".gitignore").read_text().split()
    assert {"secrets/", ".env"} <= set(ignored)
    assert {"docker/secrets", "docker/.env"} <= set((DOCKER / "Dockerfile.dockerignore").read_text().split())


def test_each_variable_has_a_default_or_is_in_the_example(compose: dict[str, Any]) -> None:
    text = (DOCKER / "compose.yaml").read_text()
    used = set(re.findall(r"\$\{(\w+)", text))
    assert used == set(re.findall(r"^(\w+)=", (DOCKER / ".env.example").read_text(), re.MULTILINE))
    assert used == set(re.findall(r"\$\{(\w+):-", text))


def test_what_the_image_is_made_of_exists_and_is_let_in() -> None:
    let_in = {line[1:] for line in (DOCKER / "Dockerfile.dockerignore").read_text().split() if line.startswith("!")}
    for sources in re.findall(r"^COPY (.+) \S+$", (DOCKER / "Dockerfile").read_text(), re.MULTILINE):
        for source in sources.split():
            assert (ROOT / source).exists(), source
            assert source in let_in, source
