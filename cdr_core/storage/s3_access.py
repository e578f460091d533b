"""Where S3 is and who asks, as a plain value for table libraries that bring a client of their own.

It is what cdr's own client uses, so that a library reaches the same server as the same user. No secret is in its text.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from cdr_core import settings
from cdr_core.storage.base import is_local

_DEFAULT_REGION = "us-east-1"
"""Of servers that are not AWS: they do not care, but a signature names one."""

_OWN_CREDENTIALS = ("access-key-id", "profile-name", "role-arn", "anonymous", "signer")
"""Ways in which a catalog's configuration says who asks."""


@dataclass(frozen=True, slots=True)
class S3Access:
    """Empty is unsaid: then a library finds it out in its own way. ``endpoint`` is empty for AWS itself.

    ``renewed``: the credentials expire, and their provider is asked again.
    """

    endpoint: str
    region: str
    key: str = field(repr=False)
    secret: str = field(repr=False)
    token: str = field(repr=False)
    renewed: bool = False


def s3_access() -> S3Access:
    """As it is now: credentials of a role change every hour or so."""
    found = _session().get_credentials()
    frozen = None if found is None else found.get_frozen_credentials()
    endpoint = settings.load().s3_endpoint or _endpoint_of_aws_tools()
    region = _session().region_name or (_DEFAULT_REGION if endpoint else "")
    if frozen is None:
        return S3Access(endpoint, region, "", "", "")
    renewed = hasattr(found, "refresh_needed")
    return S3Access(endpoint, region, frozen.access_key or "", frozen.secret_key or "", frozen.token or "", renewed)


def paimon_options(warehouse: str) -> dict[str, str]:
    """Options of a pypaimon catalog: the warehouse, and how to reach it."""
    options = {"warehouse": warehouse}
    if is_local(warehouse):
        return options
    access = s3_access()
    if access.renewed:  # given a key, the library would keep the whole process from asking for the next one
        os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "false")
    given = {
        "fs.s3.endpoint": access.endpoint,
        "fs.s3.region": access.region,
        "fs.s3.accessKeyId": access.key,
        "fs.s3.accessKeySecret": access.secret,
        "fs.s3.securityToken": access.token,
        "s3.path-style-access": "true" if access.endpoint else "",
    }
    return options | {name: value for name, value in given.items() if value}


def iceberg_properties(configured: Mapping[str, Any]) -> dict[str, str]:
    """What a pyiceberg catalog with its warehouse on S3 does not say itself; nothing for any other."""
    if not str(configured.get("warehouse", "")).startswith("s3"):
        return {}
    access = s3_access()
    given = {"s3.endpoint": access.endpoint}
    if "client.region" not in configured:
        given["s3.region"] = access.region
    if not any(f"{prefix}.{name}" in configured for prefix in ("s3", "client") for name in _OWN_CREDENTIALS):
        given |= {"s3.access-key-id": access.key, "s3.secret-access-key": access.secret}
        given["s3.session-token"] = access.token
    return {name: value for name, value in given.items() if value and name not in configured}


@lru_cache(maxsize=1)
def _session() -> Any:
    import boto3  # not needed for local tables

    return boto3.session.Session()


# A lock of the parent's, held while it renewed its credentials, would never be released in a forked process.
os.register_at_fork(after_in_child=_session.cache_clear)


@lru_cache(maxsize=1)
def _endpoint_of_aws_tools() -> str:
    """What a profile or ``AWS_ENDPOINT_URL`` says, which cdr's own client follows as well; empty for AWS itself."""
    url = str(_session().client("s3").meta.endpoint_url)
    return "" if (urlsplit(url).hostname or "").endswith((".amazonaws.com", ".amazonaws.com.cn")) else url
