"""What table libraries are told of S3: what cdr's own client uses, and nothing that somebody else has said already."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.credentials import RefreshableCredentials

from cdr_core.storage import s3_access
from cdr_core.storage.s3_access import iceberg_properties, paimon_options

ON_S3 = {"type": "sql", "warehouse": "s3://lake/w"}


@pytest.fixture(autouse=True)
def _told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDR_S3_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "who")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    for name in ("AWS_SESSION_TOKEN", "AWS_DEFAULT_REGION", "AWS_REGION", "AWS_PROFILE", "AWS_EC2_METADATA_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    s3_access._session.cache_clear()
    monkeypatch.setattr(s3_access, "_session", s3_access._session.__wrapped__)


def test_the_text_of_an_access_holds_no_secret() -> None:
    access = s3_access.s3_access()
    assert (access.key, access.secret, access.token, access.region) == ("who", "hush", "", "us-east-1")
    assert "hush" not in f"{access!r} {access}"
    assert "who" not in f"{access!r} {access}"


def test_a_paimon_warehouse_on_a_disk_is_told_nothing_and_one_on_s3_all_it_needs() -> None:
    assert paimon_options("/w") == {"warehouse": "/w"}
    assert paimon_options("s3://lake/w") == {
        "warehouse": "s3://lake/w",
        "fs.s3.endpoint": "http://127.0.0.1:9",
        "fs.s3.region": "us-east-1",
        "fs.s3.accessKeyId": "who",
        "fs.s3.accessKeySecret": "hush",
        "s3.path-style-access": "true",
    }


def test_what_an_iceberg_catalog_says_itself_stands() -> None:
    where = {"s3.endpoint": "http://127.0.0.1:9", "s3.region": "us-east-1"}
    assert iceberg_properties({"type": "sql", "warehouse": "file:///w"}) == {}
    assert iceberg_properties({"type": "rest", "uri": "http://catalog"}) == {}
    assert iceberg_properties(ON_S3) == where | {"s3.access-key-id": "who", "s3.secret-access-key": "hush"}
    for own in ("s3.access-key-id", "client.access-key-id", "s3.role-arn", "s3.anonymous", "client.profile-name"):
        assert iceberg_properties({**ON_S3, own: "theirs"}) == where
    assert "s3.endpoint" not in iceberg_properties({**ON_S3, "s3.endpoint": "http://other"})
    assert "s3.region" not in iceberg_properties({**ON_S3, "client.region": "eu-west-1"})


def test_an_endpoint_of_aws_tools_counts_and_aws_itself_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CDR_S3_ENDPOINT")
    monkeypatch.setattr(s3_access, "_endpoint_of_aws_tools", s3_access._endpoint_of_aws_tools.__wrapped__)
    found = paimon_options("s3://lake/w")
    assert set(found) == {"warehouse", "fs.s3.accessKeyId", "fs.s3.accessKeySecret"}
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:10")
    assert paimon_options("s3://lake/w")["fs.s3.endpoint"] == "http://127.0.0.1:10"


def test_credentials_of_a_role_can_still_be_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    """pypaimon switches the instance's metadata service off for the whole process when it is given a key."""

    class Session:
        region_name = "eu-west-1"

        def get_credentials(self) -> Any:
            return RefreshableCredentials("k", "s", "t", datetime.now(UTC) + timedelta(hours=1), dict, "iam-role")

    monkeypatch.setattr(s3_access, "_session", Session)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "")
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    assert paimon_options("s3://lake/w")["fs.s3.securityToken"] == "t"
    assert os.environ["AWS_EC2_METADATA_DISABLED"] == "false"
