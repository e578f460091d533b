"""Airflow's connections as a driver's environment: a ``spark`` connection names the master, an ``aws`` one gives S3.

Credentials are in the environment of the task and its driver alone: never on a command line, never in a file, never on
the executors of a cluster, whose operator provides their own (``docs/cluster.md``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from cdr_core.errors import Refused


def environment(spark_conn: str, aws_conn: str) -> dict[str, str]:
    """Return the environment that the two connections stand for; an id that is empty adds nothing."""
    found = _spark(spark_conn) if spark_conn else {}
    return found | (_aws(aws_conn) if aws_conn else {})


@contextmanager
def applied(values: Mapping[str, str]) -> Iterator[None]:
    """Set the values in this process's environment while the block runs."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def master(host: str | None, port: int | None) -> str:
    """Return the master that a ``spark`` connection names: ``spark://host`` and a port, a bare host, or
    ``local[2]``.
    """
    if not host:
        raise Refused("the spark connection has no host", hint="give it spark://HOST and a port, or local[N]")
    if "://" not in host and not host.startswith("local"):
        host = f"spark://{host}"
    named = f"{host}:{port}" if port else host
    if not named.startswith(("spark://", "local")):
        raise Refused(
            f"the spark connection names {named}, and only standalone masters (spark://) are supported",
            hint="docs/cluster.md lists what is tested",
        )
    return named


def _spark(conn_id: str) -> dict[str, str]:
    connection = _connection(conn_id)
    return {"CDR_SPARK": master(connection.host, connection.port)}


def _connection(conn_id: str) -> Any:
    from airflow.sdk import Connection
    from airflow.sdk.exceptions import AirflowNotFoundException

    try:
        return Connection.get(conn_id)
    except AirflowNotFoundException:
        raise Refused(
            f"Airflow has no connection {conn_id!r}", hint="create it, or correct CDR_SPARK_CONN or CDR_AWS_CONN"
        ) from None


def _aws(conn_id: str) -> dict[str, str]:
    """Read the connection by Airflow's own hook, so that roles, profiles and instance identities work."""
    _connection(conn_id)
    from airflow.providers.amazon.aws.hooks.base_aws import AwsGenericHook

    hook: Any = AwsGenericHook(aws_conn_id=conn_id, client_type="s3")
    credentials = hook.get_credentials(region_name=hook.region_name)
    # Set even if empty: a token of another identity would be taken for part of this one.
    values = {
        "AWS_ACCESS_KEY_ID": credentials.access_key,
        "AWS_SECRET_ACCESS_KEY": credentials.secret_key,
        "AWS_SESSION_TOKEN": credentials.token or "",
    }
    if hook.region_name:
        values |= {"AWS_REGION": hook.region_name, "AWS_DEFAULT_REGION": hook.region_name}
    if endpoint := hook.conn_config.get_service_endpoint_url("s3"):
        values["CDR_S3_ENDPOINT"] = endpoint
    return values
