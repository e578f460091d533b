"""Airflow's connections as the environment of a driver."""

from __future__ import annotations

import os

import pytest

from cdr_airflow import connections
from cdr_core.errors import Refused

AWS = (
    '{"conn_type": "aws", "login": "AKIAEXAMPLE", "password": "s3cr3t-of-aws",'
    ' "extra": {"region_name": "eu-west-3", "endpoint_url": "http://s3.example:8333"}}'
)


@pytest.mark.parametrize(
    ("host", "port", "master"),
    [
        ("spark://master", 7077, "spark://master:7077"),
        ("spark://master:7077", None, "spark://master:7077"),
        ("master", 7077, "spark://master:7077"),
        ("local[2]", None, "local[2]"),
    ],
)
def test_a_spark_connection_names_the_master_however_it_was_typed(host: str, port: int | None, master: str) -> None:
    assert connections.master(host, port) == master


@pytest.mark.parametrize("host", ["yarn://rm", "k8s://https://api", None, ""])
def test_other_cluster_managers_are_refused_with_a_sentence(host: str | None) -> None:
    with pytest.raises(Refused, match="spark connection"):
        connections.master(host, 1234)


def test_connections_become_the_environment_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_MY_SPARK", '{"conn_type": "spark", "host": "spark://master", "port": 7077}')
    monkeypatch.setenv("AIRFLOW_CONN_MY_AWS", AWS)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of another identity")
    assert connections.environment("my_spark", "my_aws") == {
        "CDR_SPARK": "spark://master:7077",
        "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE",
        "AWS_SECRET_ACCESS_KEY": "s3cr3t-of-aws",
        "AWS_SESSION_TOKEN": "",
        "AWS_REGION": "eu-west-3",
        "AWS_DEFAULT_REGION": "eu-west-3",
        "CDR_S3_ENDPOINT": "http://s3.example:8333",
    }


def test_without_ids_nothing_is_looked_up() -> None:
    assert connections.environment("", "") == {}


def test_an_unknown_connection_is_refused_with_its_name() -> None:
    with pytest.raises(Refused, match="no connection 'nowhere'"):
        connections.environment("nowhere", "")


def test_what_was_applied_is_gone_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "before")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY", raising=False)
    with connections.applied({"AWS_REGION": "within", "AWS_SECRET_ACCESS_KEY": "s"}):
        assert (os.environ["AWS_REGION"], os.environ["AWS_SECRET_ACCESS_KEY"]) == ("within", "s")
    assert os.environ["AWS_REGION"] == "before"
    assert "AWS_SECRET_ACCESS_KEY" not in os.environ
